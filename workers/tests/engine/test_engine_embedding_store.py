"""The directory of embeddings: complete files or none, and open ones stay readable."""

import os

import pytest
import torch

from mmdisagg_workers.contract import IdentityError
from mmdisagg_workers.engine.embedding_store import EmbeddingStore, load

ID = "ab" * 32
EMBEDDING = torch.arange(64, dtype=torch.float32).reshape(16, 4)


@pytest.fixture
def store(tmp_path):
    return EmbeddingStore(tmp_path / "store")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_was_published_is_loaded(store, dtype):
    store.publish(ID, EMBEDDING.to(dtype))
    opened = store.open(ID)
    loaded = load(opened.source)
    assert (opened.shape, loaded.dtype) == ((16, 4), dtype)
    assert torch.equal(loaded, EMBEDDING.to(dtype))


def test_a_view_is_published_alone(store):
    store.publish(ID, EMBEDDING[4:8])
    assert torch.equal(load(store.open(ID).source), EMBEDDING[4:8])


@pytest.mark.case("x01")
def test_an_open_embedding_outlives_its_removal(store):
    store.publish(ID, EMBEDDING)
    opened = store.open(ID)
    os.remove(store.path(ID))
    assert torch.equal(load(opened.source), EMBEDDING)
    opened.close()
    assert store.open(ID) is None


def test_nothing_is_left_beside_the_file(store):
    store.publish(ID, EMBEDDING)
    assert [path.name for path in store.path(ID).parent.iterdir()] == [f"{ID}.safetensors"]


def test_publishing_again_changes_nothing(store):
    store.publish(ID, EMBEDDING)
    before = store.path(ID).stat()
    store.publish(ID, EMBEDDING)
    assert store.path(ID).stat().st_ino == before.st_ino


def test_a_failed_write_leaves_nothing(store, monkeypatch):
    def fail(*args):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        store.publish(ID, EMBEDDING)
    assert list(store.path(ID).parent.iterdir()) == []


@pytest.mark.case("x01")
@pytest.mark.parametrize("keep", [0, 4, 8, 40, -1])
def test_an_incomplete_file_is_absent(store, keep):
    store.publish(ID, EMBEDDING)
    content = store.path(ID).read_bytes()
    store.path(ID).write_bytes(content[:keep])
    assert store.open(ID) is None


@pytest.mark.parametrize(
    "content", [b"x" * 500, b"\xff" * 500, (2).to_bytes(8, "little") + b"{}", b"\0" * 64]
)
def test_a_foreign_file_is_absent(store, content):
    store.publish(ID, EMBEDDING)
    store.path(ID).write_bytes(content)
    assert store.open(ID) is None


@pytest.mark.case("c25")
@pytest.mark.parametrize("identity", ["../../x", "/etc/passwd", "ab/cd" * 8, "", "AB" * 16, "ab"])
def test_no_identity_leads_outside(store, identity, tmp_path):
    for use in (store.path, store.has, store.open, lambda name: store.publish(name, EMBEDDING)):
        with pytest.raises(IdentityError):
            use(identity)
    assert list(tmp_path.iterdir()) == []


def test_looking_makes_no_directory(store, tmp_path):
    assert not store.has(ID)
    assert store.open(ID) is None
    assert list(tmp_path.iterdir()) == []

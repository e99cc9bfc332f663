import hashlib
import json
import tarfile

from testbed import base_image
from testbed.base_image import bootstrap_command, write_image


def read(archive, member):
    with tarfile.open(archive) as tar:
        return tar.extractfile(member).read()


def test_an_archive_names_its_image_and_its_layer(tmp_path):
    layer, archive = tmp_path / "root.tar", tmp_path / "image.tar"
    layer.write_bytes(b"files")
    write_image(archive, layer, "localhost/a:1")
    (manifest,) = json.loads(read(archive, "manifest.json"))
    config = json.loads(read(archive, manifest["Config"]))
    assert manifest["RepoTags"] == ["localhost/a:1"]
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(b"files").hexdigest()]
    assert read(archive, manifest["Layers"][0]) == b"files"
    assert len(config["history"]) == len(manifest["Layers"])


def test_the_name_changes_with_the_recipe(monkeypatch):
    before = base_image.name()
    monkeypatch.setattr(base_image, "INCLUDED", ("python3",))
    assert base_image.name() != before


def test_no_registry_is_asked_for_the_image():
    assert base_image.name().startswith("localhost/")


def test_the_sources_and_options_of_the_system_are_used(tmp_path):
    command = bootstrap_command(tmp_path / "root.tar", ["deb http://mirror.invalid/ x main"], ['A::B "c";'])
    assert command[-1] == "deb http://mirror.invalid/ x main"
    assert '--aptopt=A::B "c";' in command

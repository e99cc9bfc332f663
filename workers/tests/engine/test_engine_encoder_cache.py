"""The EC connectors, driven as vLLM's scheduler and workers drive them."""

import os
from types import SimpleNamespace

import pytest
import torch
from test_engine_guard import GEOMETRY as GEOMETRY_JSON
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole

from mmdisagg_workers.contract import FAMILY
from mmdisagg_workers.engine import encoder_cache, media_report
from mmdisagg_workers.engine.embedding_store import EmbeddingStore
from mmdisagg_workers.engine.encoder_cache import (
    DecodeGuardConnector,
    ReportingConnector,
    SharedVolumeConnector,
    needed,
)
from mmdisagg_workers.engine.settings import GEOMETRY

A, B = "aa" * 32, "bb" * 32
WIDTH = 8


def feature(identity=A, offset=2, length=4, modality="image", **data):
    position = SimpleNamespace(offset=offset, length=length, get_num_embeds=lambda: length)
    processed = SimpleNamespace(get_data=lambda: data) if data else None
    return SimpleNamespace(identifier=identity, mm_position=position, modality=modality, data=processed)


def request(name="r", *features):
    return SimpleNamespace(request_id=name, mm_features=list(features) or [feature()])


def config(role, root=None):
    transfer = SimpleNamespace(
        is_ec_producer=role in ("ec_producer", "ec_both"),
        is_ec_consumer=role in ("ec_consumer", "ec_both"),
        get_from_extra_config=lambda key, default: root if key == "shared_storage_path" else default,
    )
    return SimpleNamespace(ec_transfer_config=transfer)


def step(*new, resumed=(), running=()):
    """A scheduler output: new requests as objects, resumed and running ones as (name, computed tokens)."""
    cached = SimpleNamespace(
        req_ids=[name for name, _ in (*resumed, *running)],
        num_computed_tokens=[computed for _, computed in (*resumed, *running)],
        resumed_req_ids={name for name, _ in resumed},
    )
    return SimpleNamespace(scheduled_new_reqs=list(new), scheduled_cached_reqs=cached)


def begun(name, tokens, computed=0, features=()):
    return SimpleNamespace(
        req_id=name, prompt_token_ids=tokens, num_computed_tokens=computed, mm_features=list(features)
    )


@pytest.fixture(autouse=True)
def _model(monkeypatch):
    monkeypatch.setenv(FAMILY, "Qwen2.5-VL")
    monkeypatch.setenv(GEOMETRY, GEOMETRY_JSON)


@pytest.fixture
def store(tmp_path):
    return EmbeddingStore(tmp_path)


@pytest.fixture
def pair(tmp_path):
    """A connector's two instances of one engine, with the steps between them."""

    class Pair:
        def __init__(self, kind, role):
            self.scheduler = kind(config(role, str(tmp_path)), ECConnectorRole.SCHEDULER)
            self.worker = kind(config(role, str(tmp_path)), ECConnectorRole.WORKER)
            self.cache = {}

        def step(self):
            self.worker.bind_connector_metadata(self.scheduler.build_connector_meta(step()))
            if self.worker.is_producer:
                self.worker.start_save_caches(encoder_cache=self.cache)
            if self.worker.is_consumer:
                self.worker.start_load_caches(self.cache)
            self.worker.clear_connector_metadata()

        def counts(self):
            stats = self.scheduler.get_ec_connector_stats()
            return {} if stats is None else stats.data

    return Pair


def embedding(value=1.0, rows=4):
    return torch.full((rows, WIDTH), value)


def consumer(pair):
    return pair(SharedVolumeConnector, "ec_consumer")


@pytest.mark.parametrize(("computed", "expected"), [(0, [0, 1]), (5, [0, 1]), (6, [1]), (13, [1]), (14, [])])
def test_media_are_needed_until_their_placeholders_are_computed(computed, expected):
    two = request("r", feature(A, 2, 4), feature(B, 10, 4))
    assert list(needed(two, computed)) == expected


def test_an_embedding_goes_from_encode_to_prefill(pair):
    encode, prefill = pair(SharedVolumeConnector, "ec_producer"), consumer(pair)
    encode.worker.save_caches({A: embedding(3.0)}, A)
    asked = request()
    assert prefill.scheduler.ensure_cache_available(asked, 0)
    assert prefill.scheduler.has_cache_item(A)
    prefill.scheduler.update_state_after_alloc(asked, 0)
    prefill.step()
    assert torch.equal(prefill.cache[A], embedding(3.0))
    assert prefill.counts() == {"loads": 1}
    assert prefill.scheduler.request_finished(asked) == (False, None)


def test_a_cached_item_is_not_loaded_again(pair, store):
    store.publish(A, embedding())
    prefill = consumer(pair)
    prefill.cache[A] = embedding(9.0)
    asked = request()
    prefill.scheduler.ensure_cache_available(asked, 0)
    prefill.scheduler.update_state_after_alloc(asked, 0)
    prefill.step()
    assert torch.equal(prefill.cache[A], embedding(9.0))


@pytest.mark.case("x01")
def test_a_missing_embedding_fails_its_request_alone(pair, store):
    store.publish(B, embedding())
    prefill = consumer(pair)
    assert not prefill.scheduler.ensure_cache_available(request("lost", feature(A)), 0)
    assert prefill.scheduler.ensure_cache_available(request("fine", feature(B)), 0)
    assert prefill.scheduler.take_unavailable_requests() == {"lost"}
    assert prefill.scheduler.take_unavailable_requests() == set()
    assert prefill.counts() == {"missing": 1}


@pytest.mark.case("t07")
def test_one_missing_of_two_fails_the_request(pair, store):
    store.publish(A, embedding())
    prefill = consumer(pair)
    assert not prefill.scheduler.ensure_cache_available(request("r", feature(A), feature(B, 10)), 0)
    assert prefill.scheduler.take_unavailable_requests() == {"r"}


def test_media_that_the_prefix_cache_covers_need_no_embedding(pair):
    prefill = consumer(pair)
    assert prefill.scheduler.ensure_cache_available(request(), 6)
    assert prefill.scheduler.take_unavailable_requests() == set()


def test_rows_that_do_not_fit_the_prompt_count_as_missing(pair, store):
    store.publish(A, embedding(rows=3))
    assert not consumer(pair).scheduler.ensure_cache_available(request(), 0)


@pytest.mark.case("x01")
def test_a_file_that_vanishes_after_the_decision_is_still_loaded(pair, store):
    store.publish(A, embedding(5.0))
    prefill = consumer(pair)
    asked = request()
    assert prefill.scheduler.ensure_cache_available(asked, 0)
    os.remove(store.path(A))
    assert prefill.scheduler.ensure_cache_available(asked, 0)
    prefill.scheduler.update_state_after_alloc(asked, 0)
    prefill.step()
    assert torch.equal(prefill.cache[A], embedding(5.0))


def test_an_abort_between_schedule_and_execution_does_not_take_the_file_away(pair, store):
    store.publish(A, embedding(5.0))
    prefill = consumer(pair)
    asked = request()
    prefill.scheduler.ensure_cache_available(asked, 0)
    prefill.scheduler.update_state_after_alloc(asked, 0)
    plan = prefill.scheduler.build_connector_meta(step())
    prefill.scheduler.request_finished(asked)
    os.remove(store.path(A))
    prefill.scheduler.build_connector_meta(step())
    prefill.worker.bind_connector_metadata(plan)
    prefill.worker.start_load_caches(prefill.cache)
    assert torch.equal(prefill.cache[A], embedding(5.0))


def test_files_are_closed_once_no_step_can_need_them(pair, store, monkeypatch):
    monkeypatch.setattr(encoder_cache, "_STEPS_IN_FLIGHT", 2)
    store.publish(A, embedding())
    prefill = consumer(pair)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        asked = request(f"r{number}")
        prefill.scheduler.ensure_cache_available(asked, 0)
        prefill.scheduler.update_state_after_alloc(asked, 0)
        prefill.step()
        prefill.scheduler.update_state_after_free(asked, 0)
        prefill.scheduler.request_finished(asked)
    for _ in range(4):
        prefill.step()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.case("c25")
def test_an_identity_that_is_no_hash_is_missing(pair):
    prefill = consumer(pair)
    assert not prefill.scheduler.ensure_cache_available(request("r", feature("../../etc/passwd")), 0)


def test_a_preempted_request_loads_again(pair, store):
    store.publish(A, embedding())
    prefill = consumer(pair)
    asked = request()
    for _ in range(2):
        assert prefill.scheduler.ensure_cache_available(asked, 0)
        prefill.scheduler.update_state_after_alloc(asked, 0)
        prefill.step()
        prefill.scheduler.update_state_after_free(asked, 0)
        prefill.cache.clear()
    assert prefill.counts() == {"loads": 2}


def test_the_same_picture_twice_in_a_request_is_loaded_once(pair, store):
    store.publish(A, embedding())
    prefill = consumer(pair)
    asked = request("r", feature(A, 2), feature(A, 10))
    assert prefill.scheduler.ensure_cache_available(asked, 0)
    prefill.scheduler.update_state_after_alloc(asked, 0)
    prefill.step()
    assert list(prefill.cache) == [A]


def test_a_consumer_publishes_nothing(pair, store):
    consumer(pair).worker.save_caches({A: embedding()}, A)
    assert not store.has(A)


def test_encode_never_skips_its_vision_tower_for_a_file(pair, store):
    store.publish(A, embedding())
    encode = pair(SharedVolumeConnector, "ec_producer")
    assert encode.scheduler.ensure_cache_available(request(), 0)
    assert not encode.scheduler.has_cache_item(A)


def test_encode_publishes_again_what_it_still_has_cached(pair, store):
    encode = pair(SharedVolumeConnector, "ec_producer")
    encode.cache = {A: embedding(2.0), B: embedding()}
    encode.scheduler.ensure_cache_available(request(), 0)
    encode.step()
    assert store.has(A)
    assert not store.has(B)


def test_a_store_that_cannot_be_written_does_not_kill_encode(pair, monkeypatch, caplog):
    def fail(*args):
        raise OSError("no space left")

    monkeypatch.setattr(EmbeddingStore, "publish", fail)
    pair(SharedVolumeConnector, "ec_producer").worker.save_caches({A: embedding()}, A)
    assert "was not published" in caplog.text


@pytest.mark.parametrize("identity", [A, "../../etc/passwd"])
def test_what_was_not_published_is_not_reported(pair, identity):
    asked = request("r", feature(identity, image_grid_thw=torch.tensor([1, 16, 16])))
    assert pair(SharedVolumeConnector, "ec_producer").scheduler.request_finished(asked) == (False, None)


def test_encode_reports_identity_grid_and_occurrences(pair, store):
    store.publish(A, embedding())
    encode = pair(SharedVolumeConnector, "ec_producer")
    grid = torch.tensor([1, 16, 16])
    asked = request("r", feature(A, image_grid_thw=grid, pixel_values=torch.zeros(3)), feature(A, 10))
    report = {A: {"item_indices": [0, 1], "metadata": {"image_grid_thw": [1, 16, 16]}}}
    assert encode.scheduler.request_finished(asked) == (False, report)


@pytest.mark.case("t10")
def test_encode_reports_the_timing_of_a_video(pair, store):
    store.publish(A, embedding())
    encode = pair(SharedVolumeConnector, "ec_producer")
    data = {"video_grid_thw": torch.tensor([4, 4, 4]), "second_per_grid_ts": torch.tensor(2.0)}
    _, report = encode.scheduler.request_finished(request("r", feature(A, modality="video", **data)))
    assert report[A]["metadata"] == {"video_grid_thw": [4, 4, 4], "second_per_grid_ts": [2.0]}


def test_qwen3_reports_timestamps(pair, store, monkeypatch):
    store.publish(A, embedding())
    monkeypatch.setenv(FAMILY, "Qwen3-VL")
    encode = pair(SharedVolumeConnector, "ec_producer")
    data = {"video_grid_thw": torch.tensor([2, 4, 4]), "timestamps": [0.5, 2.5]}
    _, report = encode.scheduler.request_finished(request("r", feature(A, modality="video", **data)))
    assert report[A]["metadata"]["timestamps"] == [0.5, 2.5]


def test_metadata_of_a_cached_item_are_remembered(pair, store):
    store.publish(A, embedding())
    encode = pair(SharedVolumeConnector, "ec_producer")
    first = request("r1", feature(A, image_grid_thw=torch.tensor([1, 2, 4])))
    _, report = encode.scheduler.request_finished(first)
    assert encode.scheduler.request_finished(request("r2", feature(A)))[1] == report


def test_memory_of_metadata_is_bounded(pair, store, monkeypatch):
    store.publish(A, embedding())
    store.publish(B, embedding())
    monkeypatch.setattr(media_report, "REMEMBERED", 1)
    encode = pair(SharedVolumeConnector, "ec_producer")
    for identity in (A, B):
        one = request(identity, feature(identity, image_grid_thw=torch.tensor([1, 2, 4])))
        encode.scheduler.request_finished(one)
    assert encode.scheduler.request_finished(request("r", feature(A)))[1][A]["metadata"] == {}
    assert encode.scheduler.request_finished(request("r", feature(B)))[1][B]["metadata"]


def test_a_text_request_reports_nothing(pair):
    encode = pair(SharedVolumeConnector, "ec_producer")
    assert encode.scheduler.request_finished(SimpleNamespace(request_id="r", mm_features=[])) == (False, None)


def test_the_directory_must_be_named():
    with pytest.raises(ValueError, match="shared_storage_path"):
        SharedVolumeConnector(config("ec_producer"), ECConnectorRole.SCHEDULER)


@pytest.mark.case("x02")
def test_decode_lets_pass_only_what_kv_blocks_cover(pair):
    decode = pair(DecodeGuardConnector, "ec_consumer")
    assert decode.scheduler.ensure_cache_available(request("covered"), 6)
    assert not decode.scheduler.ensure_cache_available(request("bare"), 0)
    assert decode.scheduler.take_unavailable_requests() == {"bare"}
    assert not decode.scheduler.has_cache_item(A)
    decode.step()
    assert decode.cache == {}


def test_decode_fails_a_preempted_request_whose_blocks_are_lost(pair):
    decode = pair(DecodeGuardConnector, "ec_consumer")
    running = request("r")
    assert decode.scheduler.ensure_cache_available(running, 20)
    assert not decode.scheduler.ensure_cache_available(running, 0)


EXPANDED = [1, 12, 12, 12, 5, 6]
"""A prompt with three placeholder tokens that end at position 4."""


@pytest.mark.case("t08")
@pytest.mark.parametrize(("computed", "failed"), [(5, set()), (4, set()), (3, {"r"}), (0, {"r"})])
def test_a_token_prompt_passes_only_when_its_placeholders_are_loaded(pair, computed, failed):
    decode = pair(DecodeGuardConnector, "ec_consumer")
    decode.scheduler.build_connector_meta(step(begun("r", EXPANDED, computed)))
    assert decode.scheduler.take_unavailable_requests() == failed


def test_a_preempted_token_prompt_fails_when_it_resumes(pair):
    decode = pair(DecodeGuardConnector, "ec_consumer")
    decode.scheduler.build_connector_meta(step(begun("r", EXPANDED, 5), begun("text", [1, 2])))
    decode.scheduler.build_connector_meta(step(running=[("r", 0)]))
    assert decode.scheduler.take_unavailable_requests() == set()
    decode.scheduler.build_connector_meta(step(resumed=[("r", 0), ("text", 0)]))
    assert decode.scheduler.take_unavailable_requests() == {"r"}
    assert decode.counts() == {"missing": 1}


def test_a_finished_token_prompt_is_forgotten(pair):
    decode = pair(DecodeGuardConnector, "ec_consumer")
    decode.scheduler.build_connector_meta(step(begun("r", EXPANDED, 5)))
    decode.scheduler.request_finished(SimpleNamespace(request_id="r", mm_features=[]))
    decode.scheduler.build_connector_meta(step(resumed=[("r", 0)]))
    assert decode.scheduler.take_unavailable_requests() == set()


def test_placeholders_of_known_media_are_the_other_hooks_business(pair):
    decode = pair(DecodeGuardConnector, "ec_consumer")
    decode.scheduler.build_connector_meta(step(begun("r", EXPANDED, 0, [feature()])))
    assert decode.scheduler.take_unavailable_requests() == set()


def test_reporting_prefill_encodes_by_itself_and_reports(pair, store):
    prefill = pair(ReportingConnector, "ec_both")
    asked = request("r", feature(A, image_grid_thw=torch.tensor([1, 2, 4])))
    assert prefill.scheduler.ensure_cache_available(asked, 0)
    assert not prefill.scheduler.has_cache_item(A)
    prefill.scheduler.update_state_after_alloc(asked, 0)
    prefill.cache[A] = embedding()
    prefill.step()
    prefill.worker.save_caches(prefill.cache, A)
    assert not store.has(A)
    assert prefill.scheduler.request_finished(asked)[1][A]["metadata"] == {"image_grid_thw": [1, 2, 4]}
    assert prefill.counts() == {"encodes": 1}
    assert prefill.counts() == {}

"""`TcpConnector`, driven as vLLM's scheduler and workers drive it, over real sockets."""

import socket
from types import SimpleNamespace

import pytest
import torch
from tcp_peers import TOKEN, eventually
from test_engine_encoder_cache import feature, step
from test_engine_guard import GEOMETRY as GEOMETRY_JSON
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole

from mmdisagg_workers.contract import FAMILY, STAGE_TOKEN
from mmdisagg_workers.engine import encoder_cache
from mmdisagg_workers.engine.embedding_metrics import COUNTERS
from mmdisagg_workers.engine.settings import GEOMETRY, geometry_from_json
from mmdisagg_workers.engine.tcp_handoff import connector as connector_module
from mmdisagg_workers.engine.tcp_handoff import reservations as reservations_module
from mmdisagg_workers.engine.tcp_handoff.connector import ENCODE_COUNTERS, TcpConnector

A, B, C, D = (letter * 64 for letter in "abcd")
WIDTH = geometry_from_json(GEOMETRY_JSON).embedding_width
ROWS = 4
SIZE = ROWS * WIDTH * 4
GRID = torch.tensor([1, 4, 4])


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    monkeypatch.setenv(FAMILY, "Qwen2.5-VL")
    monkeypatch.setenv(GEOMETRY, GEOMETRY_JSON)
    monkeypatch.setenv(STAGE_TOKEN, TOKEN)
    monkeypatch.setattr(connector_module, "meeting_place", lambda engine_id: tmp_path / engine_id)


def config(role, rank=0, **extra):
    transfer = SimpleNamespace(
        is_ec_producer=role == "ec_producer",
        is_ec_consumer=role == "ec_consumer",
        engine_id=f"engine-{extra.get('port', 0)}",
        get_from_extra_config=extra.get,
    )
    return SimpleNamespace(
        ec_transfer_config=transfer,
        model_config=SimpleNamespace(dtype=torch.float32),
        parallel_config=SimpleNamespace(rank=rank),
    )


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


class Engine:
    """A connector's two instances of one engine, with the steps between them."""

    def __init__(self, role, **extra):
        settings = config(role, **extra)
        self.scheduler = TcpConnector(settings, ECConnectorRole.SCHEDULER)
        self.worker = TcpConnector(settings, ECConnectorRole.WORKER)
        self.worker.start_worker_services()
        self.cache = {}
        self.counted = {}

    def step(self):
        self.worker.bind_connector_metadata(self.scheduler.build_connector_meta(step()))
        if self.worker.is_producer:
            self.worker.start_save_caches(encoder_cache=self.cache)
        else:
            self.worker.start_load_caches(self.cache)
        self.worker.clear_connector_metadata()

    def counts(self):
        stats = self.scheduler.get_ec_connector_stats()
        for name, amount in (stats.data if stats else {}).items():
            self.counted[name] = self.counted.get(name, 0) + amount
        return self.counted

    def encode(self, identity, value, rows=ROWS, name="e"):
        """A request for one picture, from its arrival to the report; None where it must wait."""
        asked = request(name, feature(identity, length=rows, image_grid_thw=GRID))
        if not self.scheduler.ensure_cache_available(asked, 0):
            return None
        cached = identity in self.cache
        self.step()
        if not cached:
            self.cache[identity] = torch.full((rows, WIDTH), value)
            self.worker.save_caches(self.cache, identity)
        _, report = self.scheduler.request_finished(asked)
        return report

    def give_up(self, report):
        """What was reported is not kept any longer, as when the time of its reservation has passed."""
        for entry in report.values():
            self.worker._store.end(entry["reservation"])
            self.scheduler._admission.end(entry["reservation"])
        return report

    def ready(self, asked, computed=0):
        """Whether a request may run, after waiting for what comes; the scheduler asks in each step."""
        answers = []

        def settled():
            available = self.scheduler.ensure_cache_available(asked, computed)
            failed = asked.request_id in self.scheduler.take_unavailable_requests()
            answers.append(available)
            self.step()
            return available or failed

        eventually(settled)
        return answers[-1]

    def run(self, asked):
        """Load the media of a request that is ready, and finish it."""
        for index, one in enumerate(asked.mm_features):
            if one.identifier not in self.cache:
                self.scheduler.update_state_after_alloc(asked, index)
        self.step()
        for index in range(len(asked.mm_features)):
            self.scheduler.update_state_after_free(asked, index)
        self.scheduler.request_finished(asked)


def request(name, *features, params=None):
    return SimpleNamespace(request_id=name, mm_features=list(features), ec_transfer_params=params)


def wants(name, params, *identities):
    return request(name, *(feature(i, offset=10 * n) for n, i in enumerate(identities)), params=params)


@pytest.fixture
def encode():
    engine = Engine("ec_producer", capacity=3 * SIZE, host="127.0.0.1", port=free_port())
    yield engine
    engine.worker.shutdown()


@pytest.fixture
def prefill():
    return Engine("ec_consumer", capacity=16 * SIZE)


def test_an_embedding_goes_from_encode_to_prefill(encode, prefill):
    asked = wants("r", encode.encode(A, 3.0), A)
    assert prefill.ready(asked)
    assert prefill.scheduler.has_cache_item(A)
    prefill.run(asked)
    assert torch.equal(prefill.cache[A], torch.full((ROWS, WIDTH), 3.0))
    counts = prefill.counts()
    assert (counts["misses"], counts["loads"], counts["fetched_bytes"]) == (1, 1, SIZE)
    eventually(lambda: encode.counts().get("served_bytes") == SIZE)


def test_encode_reports_place_size_grid_and_timing(encode):
    place = {"peer_host": "127.0.0.1", "peer_port": encode.worker._address.port, "size_bytes": SIZE}
    metadata = {"image_grid_thw": [1, 4, 4]}
    report = encode.encode(A, 1.0)
    assert 0 < report[A].pop("reservation") < 1 << 48
    assert report == {A: {"item_indices": [0], "metadata": metadata, **place}}


def test_encode_reports_the_timing_of_a_video(encode):
    timing = {"video_grid_thw": torch.tensor([4, 4, 4]), "second_per_grid_ts": torch.tensor(2.0)}
    asked = request("v", feature(B, modality="video", **timing))
    assert encode.scheduler.ensure_cache_available(asked, 0)
    encode.cache[B] = torch.zeros(ROWS, WIDTH)
    encode.step()
    _, report = encode.scheduler.request_finished(asked)
    assert report[B]["metadata"]["second_per_grid_ts"] == [2.0]


def test_more_requests_than_the_store_has_room_for_lose_nothing(encode, prefill):
    """What was reported is kept until it is fetched; further requests wait for it, and each other's turn."""
    pictures = [f"{n:064x}" for n in range(12)]
    reports = {i: encode.encode(i, float(n), name=i) for n, i in enumerate(pictures)}
    assert [bool(report) for report in reports.values()] == [True] * 3 + [False] * 9
    while reports:
        reported = {identity: report for identity, report in reports.items() if report}
        assert len(reported) == 3
        for identity, report in reported.items():
            del reports[identity]
            asked = wants(identity, report, identity)
            assert prefill.ready(asked)
            prefill.run(asked)
            assert prefill.cache[identity][0, 0] == pictures.index(identity)
        eventually(lambda: encode.worker._store._reservations.identities() == frozenset())
        reports = {i: encode.encode(i, float(pictures.index(i)), name=i) for i in reports}
    assert encode.counts()["held_back"] == 9
    assert "serve_misses" not in encode.counts()
    assert "missing" not in prefill.counts()


def test_a_picture_that_the_consumer_has_or_does_not_need_is_not_kept_for_it(encode, prefill):
    asked = wants("r1", encode.encode(A, 1.0), A)
    assert prefill.ready(asked)
    prefill.run(asked)
    here_already = wants("r2", encode.encode(A, 1.0), A)
    assert prefill.ready(here_already)
    in_the_prefix_cache = wants("r3", encode.encode(B, 1.0), B)
    assert prefill.scheduler.ensure_cache_available(in_the_prefix_cache, 6)
    aborted = wants("r4", encode.encode(C, 1.0), C)
    for one in (in_the_prefix_cache, aborted):
        prefill.scheduler.request_finished(one)
    eventually(lambda: encode.worker._store._reservations.identities() == frozenset())
    eventually(lambda: encode.encode(D, 1.0), seconds=2)


def test_an_embedding_that_found_no_room_is_not_reported(encode, caplog):
    reports = [encode.encode(identity, 1.0) for identity in (A, B, C)]
    encode.give_up(reports[0])
    store = encode.worker._store
    with store.reading(A), store.reading(B), store.reading(C):
        assert encode.encode(D, 1.0) is None
    assert "was not published" in caplog.text
    assert encode.encode(D, 1.0)
    assert encode.counts()["unpublished"] == 1


@pytest.mark.parametrize("shape", [(ROWS * WIDTH,), (1, ROWS, WIDTH)])
def test_an_embedding_of_another_shape_is_refused_and_encode_lives(encode, shape, caplog):
    encode.worker.save_caches({A: torch.zeros(shape)}, A)
    assert "not rows and width" in caplog.text
    assert encode.encode(B, 1.0)


def test_an_embedding_that_was_never_computed_is_not_reported(encode):
    asked = request("e", feature(A))
    assert encode.scheduler.ensure_cache_available(asked, 0)
    assert encode.scheduler.request_finished(asked) == (False, None)


def test_a_request_that_waits_too_long_for_room_fails_alone(encode, monkeypatch, caplog):
    for identity in (A, B, C):
        encode.encode(identity, 1.0)
    assert encode.encode(D, 1.0) is None
    assert encode.scheduler.take_unavailable_requests() == set()
    now = reservations_module.time.monotonic()
    encode.scheduler._admission._clock = lambda: now + 2 * reservations_module.SECONDS
    for identity, name in ((A, "x"), (B, "y"), (C, "z")):
        encode.scheduler._admission._reservations.keep(hash(name), identity)
    assert encode.encode(D, 1.0) is None
    assert encode.scheduler.take_unavailable_requests() == {"e"}
    assert "no room for 30 s" in caplog.text


def test_a_step_that_was_planned_before_the_fetch_reserves_nothing_again(encode, prefill):
    """Asynchronous scheduling asks about a request once more while its last step runs."""
    asked = request("e", feature(A, image_grid_thw=GRID))
    assert encode.scheduler.ensure_cache_available(asked, 0)
    encode.cache[A] = torch.ones(ROWS, WIDTH)
    encode.step()
    assert encode.scheduler.ensure_cache_available(asked, 6)
    planned = encode.scheduler.build_connector_meta(step())
    _, report = encode.scheduler.request_finished(asked)
    assert prefill.ready(wants("r", report, A))
    eventually(lambda: encode.worker._store._reservations.identities() == frozenset())
    encode.worker.bind_connector_metadata(planned)
    encode.worker.start_save_caches(encoder_cache=encode.cache)
    assert encode.worker._store._reservations.identities() == frozenset()


@pytest.mark.parametrize("number", [None, "7", -1, 0, True, 1.5, 1 << 48, 1 << 70])
def test_a_reservation_that_is_no_number_is_none(encode, prefill, number):
    params = encode.encode(A, 1.0)
    params[A]["reservation"] = number
    asked = wants("r", params, A)
    assert prefill.ready(asked)
    prefill.run(asked)


def test_a_request_is_held_back_while_its_embedding_comes_and_the_scheduler_does_not_wait(encode, prefill):
    asked = wants("r", encode.encode(A, 1.0), A)
    held_back = not prefill.scheduler.ensure_cache_available(asked, 0)
    assert held_back or prefill.scheduler.ensure_cache_available(asked, 0)
    assert prefill.scheduler.take_unavailable_requests() == set()
    assert prefill.ready(asked)


@pytest.mark.case("x01", "t07")
def test_an_embedding_that_encode_lost_fails_its_request_alone(encode, prefill):
    lost = encode.give_up(encode.encode(A, 1.0))
    kept = [encode.encode(identity, 2.0) for identity in (B, C, D)]
    assert not prefill.ready(wants("lost", lost, A))
    assert prefill.ready(wants("kept", kept[0], B))
    assert prefill.counts()["missing"] == 1


def test_one_lost_of_two_fails_the_request(encode, prefill):
    params = {**encode.encode(A, 1.0), B: {"peer_host": "127.0.0.1", "peer_port": free_port()}}
    assert not prefill.ready(wants("r", params, A, B))


@pytest.mark.parametrize(
    "params",
    [None, {}, {A: {}}, {A: {"peer_host": "::bad::", "peer_port": 1}}, {A: {"peer_host": "127.0.0.1"}}],
)
def test_a_request_that_names_no_place_fails_alone(prefill, params):
    assert not prefill.scheduler.ensure_cache_available(wants("r", params, A), 0)
    assert prefill.scheduler.take_unavailable_requests() == {"r"}


@pytest.mark.case("c25")
def test_an_identity_that_is_no_hash_fails_its_request(encode, prefill):
    bad = "../../etc/passwd"
    params = {bad: encode.encode(A, 1.0)[A]}
    assert not prefill.scheduler.ensure_cache_available(wants("r", params, bad), 0)
    assert prefill.scheduler.take_unavailable_requests() == {"r"}


def test_media_that_the_prefix_cache_covers_are_not_fetched(prefill):
    assert prefill.scheduler.ensure_cache_available(wants("r", None, A), 6)
    assert prefill.counts() == {}


def test_an_evicted_embedding_that_encode_still_has_cached_is_published_again(encode, prefill):
    for identity in (A, B, C, D):
        encode.give_up(encode.encode(identity, 5.0))
    assert not prefill.ready(wants("r1", encode.encode(A, 5.0) and {A: {}}, A))
    assert prefill.ready(wants("r2", encode.encode(A, 5.0), A))
    assert encode.counts()["published"] == 5


def test_an_embedding_larger_than_encodes_store_fails_its_request_alone(encode, caplog):
    assert encode.encode(A, 1.0, rows=4 * ROWS) is None
    assert encode.scheduler.take_unavailable_requests() == {"e"}
    assert "handoff.tcp.capacity" in caplog.text
    assert encode.encode(B, 1.0)


def test_media_that_a_consumer_could_never_hold_fail_their_request(encode):
    small = Engine("ec_consumer", capacity=2 * SIZE)
    params = {}
    for identity in (A, B, C):
        params |= encode.encode(identity, 1.0)
    assert not small.ready(wants("r", params, A, B, C))
    assert small.ready(wants("r2", params, A, B))


def test_a_request_waits_for_memory_that_others_hold_and_then_runs(encode):
    small = Engine("ec_consumer", capacity=2 * SIZE)
    params = {}
    for identity in (A, B, C):
        params |= encode.encode(identity, 1.0)
    first, second = wants("first", params, A, B), wants("second", params, B, C)
    assert small.ready(first)
    assert not small.scheduler.ensure_cache_available(second, 0)
    assert small.scheduler.take_unavailable_requests() == set()
    small.run(first)
    assert small.ready(second)
    small.run(second)
    assert set(small.cache) == {A, B, C}


def test_memory_is_not_used_again_while_a_step_in_flight_may_read_it(encode, monkeypatch):
    monkeypatch.setattr(encoder_cache, "_STEPS_IN_FLIGHT", 3)
    small = Engine("ec_consumer", capacity=SIZE)
    first = wants("first", encode.encode(A, 1.0), A)
    assert small.ready(first)
    small.scheduler.update_state_after_alloc(first, 0)
    plan = small.scheduler.build_connector_meta(step())
    small.scheduler.request_finished(first)
    second = wants("second", encode.encode(B, 2.0), B)
    for _ in range(3):
        assert not small.scheduler.ensure_cache_available(second, 0)
        assert ("second", 0) not in small.scheduler._held, "its fetch has not begun"
        small.scheduler.build_connector_meta(step())
    small.worker.bind_connector_metadata(plan)
    small.worker.start_load_caches(small.cache)
    assert torch.equal(small.cache[A], torch.full((ROWS, WIDTH), 1.0))
    assert small.ready(second)
    small.run(second)
    assert torch.equal(small.cache[B], torch.full((ROWS, WIDTH), 2.0))
    assert torch.equal(small.cache[A], torch.full((ROWS, WIDTH), 1.0)), "the engine has a copy of its own"


def test_a_picture_seen_before_is_not_fetched_again(encode, prefill):
    params = encode.encode(A, 1.0)
    for name in ("r1", "r2", "r3"):
        asked = wants(name, params, A)
        assert prefill.ready(asked)
        prefill.run(asked)
        prefill.cache.clear()
    counts = prefill.counts()
    assert (counts["misses"], counts["hits"], counts["loads"]) == (1, 2, 3)


def test_the_same_picture_twice_in_a_request_is_fetched_once(encode, prefill):
    asked = wants("r", encode.encode(A, 1.0), A, A)
    assert prefill.ready(asked)
    prefill.run(asked)
    assert prefill.counts()["misses"] == 1


def test_an_aborted_request_leaves_nothing_held(encode, prefill):
    asked = wants("r", encode.encode(A, 1.0), A)
    prefill.scheduler.ensure_cache_available(asked, 0)
    prefill.scheduler.request_finished(asked)
    assert prefill.scheduler._held == {}


def test_an_embedding_of_another_dtype_is_converted_to_the_models(encode, prefill):
    params = encode.encode(A, 0.0)
    encode.worker.save_caches({B: torch.full((ROWS, WIDTH), 1.5, dtype=torch.bfloat16)}, B)
    asked = wants("r", {B: params[A]}, B)
    assert prefill.ready(asked)
    prefill.run(asked)
    assert torch.equal(prefill.cache[B], torch.full((ROWS, WIDTH), 1.5))


def test_only_the_first_of_several_workers_serves():
    port = free_port()
    other = TcpConnector(
        config("ec_producer", rank=1, capacity=SIZE, host="127.0.0.1", port=port), ECConnectorRole.WORKER
    )
    other.start_worker_services()
    other.save_caches({A: torch.zeros(ROWS, WIDTH)}, A)
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_worker_counts_nothing_of_its_own(encode):
    """vLLM's second model runner asks workers too; the scheduler would count everything twice."""
    encode.encode(A, 1.0)
    assert encode.worker.get_ec_connector_stats() is None


def test_every_count_has_a_counter(encode, prefill):
    assert set(ENCODE_COUNTERS) <= COUNTERS.keys()
    assert prefill.ready(wants("r", encode.encode(A, 1.0), A))
    assert prefill.counts().keys() | encode.counts().keys() <= COUNTERS.keys()


@pytest.mark.parametrize("extra", [{}, {"capacity": 0}])
def test_the_capacity_must_be_named(extra):
    with pytest.raises(ValueError, match="capacity"):
        TcpConnector(config("ec_consumer", **extra), ECConnectorRole.SCHEDULER)

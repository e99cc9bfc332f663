"""Additions to vLLM's worker: found by name, without clashes, and effective."""

import inspect
import os
from threading import Thread

import pytest
from vllm.utils.import_utils import resolve_obj_by_qualname

from mmdisagg_workers.engine.worker_cores import CORES_AT_START
from mmdisagg_workers.engine.worker_extension import EXTENSION, WorkerExtension


def test_vllm_finds_the_extension():
    assert resolve_obj_by_qualname(EXTENSION) is WorkerExtension


def test_its_names_do_not_clash_with_the_workers_own():
    from vllm.v1.worker.cpu_worker import CPUWorker
    from vllm.v1.worker.gpu_worker import Worker

    names = [name for name in dir(WorkerExtension) if not name.startswith("__")]
    assert names == ["loaded_weight_bytes", "restore_cores"]
    assert not any(hasattr(worker, name) for worker in (CPUWorker, Worker) for name in names)


@pytest.mark.skipif(len(CORES_AT_START) < 2, reason="pinning shows only where there are cores to choose from")
def test_a_pinned_thread_gets_its_cores_back():
    seen = []

    def work():
        os.sched_setaffinity(0, {max(CORES_AT_START)})
        WorkerExtension().restore_cores()
        seen.append(os.sched_getaffinity(0))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [set(CORES_AT_START)]


def test_upstream_still_pins_the_worker():
    """When this fails, vLLM's NIXL connector has changed: worker_cores can probably go."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

    assert "os.sched_setaffinity(0, rsv_cores_for_kv)" in inspect.getsource(base_worker)

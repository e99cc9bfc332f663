"""Sessions of processes and how they end."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

from machine import eventually

from mmdisagg_cli.processes import (
    ProcessId,
    end_sessions,
    identify,
    is_alive,
    remove_shared_memory,
    session_members,
    shared_memory,
)

ORPHAN = "import os, time; pid = os.fork(); os._exit(0) if pid else time.sleep(60)"
SLEEP = "import time; time.sleep(60)"


def leader_of(code: str) -> tuple[subprocess.Popen[bytes], ProcessId]:
    process = subprocess.Popen([sys.executable, "-IS", "-c", code], start_new_session=True)
    leader = identify(process.pid)
    assert leader is not None
    return process, leader


def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    own = identify(os.getpid())
    assert own is not None
    assert is_alive(own)
    assert not is_alive(ProcessId(own.pid, own.started + 1))


def test_a_zombie_is_not_alive() -> None:
    process, leader = leader_of("pass")
    eventually(lambda: not is_alive(leader))
    assert identify(process.pid) is None
    process.wait()


def test_the_members_of_a_session_are_found_after_the_leader_has_ended() -> None:
    process, leader = leader_of(ORPHAN)
    process.wait()
    eventually(lambda: len(session_members(leader)) == 1)
    end_sessions([leader], grace_s=0)
    assert session_members(leader) == []


def test_a_reused_number_is_not_taken_for_the_session() -> None:
    process, leader = leader_of(SLEEP)
    assert session_members(ProcessId(leader.pid, leader.started - 1)) == []
    end_sessions([ProcessId(leader.pid, leader.started - 1)], grace_s=0)
    assert is_alive(leader)
    process.kill()
    process.wait()


def test_hurry_ends_the_grace() -> None:
    process, leader = leader_of(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    )
    end_sessions([leader], grace_s=60, hurry=lambda: True)
    assert process.wait(5) < 0


def test_shared_memory_that_another_process_maps_is_kept() -> None:
    segment = Path("/dev/shm") / uuid.uuid4().hex
    map_it = f"import mmap; f = open({str(segment)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0); {SLEEP}"
    segment.write_bytes(b"\0" * 4096)
    process, leader = leader_of(map_it)
    eventually(lambda: shared_memory([leader]) == {segment})
    remove_shared_memory([segment])
    assert segment.exists()
    process.kill()
    process.wait()
    remove_shared_memory([segment])
    assert not segment.exists()


def test_a_named_semaphore_goes_with_its_process() -> None:
    code = "import _multiprocessing as m, time; s = m.SemLock(1, 1, 1, '/{0}', False); time.sleep(60)"
    name = f"mp-{uuid.uuid4().hex}"
    process, leader = leader_of(code.format(name))
    eventually(lambda: shared_memory([leader]))
    assert shared_memory([leader]) == {Path("/dev/shm") / f"sem.{name}"}
    end_sessions([leader], grace_s=0)
    process.wait()
    assert not (Path("/dev/shm") / f"sem.{name}").exists()

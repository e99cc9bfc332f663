"""Four engine slots for the machine."""

import subprocess
import sys
from pathlib import Path

import pytest
from machine import eventually

from mmdisagg_cli.engine_slots import SLOTS, EngineSlots, NoEngineSlot

HOLD = """
import sys, time
from pathlib import Path
from mmdisagg_cli.engine_slots import EngineSlots
EngineSlots(Path(sys.argv[1])).acquire(3, "another deployment")
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def slots(tmp_path: Path) -> EngineSlots:
    return EngineSlots(tmp_path / "slots")


def test_the_fifth_engine_waits_and_is_told_for_whom(slots: EngineSlots) -> None:
    first = slots.acquire(3, "first")
    messages: list[str] = []
    with pytest.raises(NoEngineSlot, match="no 2 free engine slots after 0 s; held by first"):
        slots.acquire(2, "second", timeout_s=0, waiting=messages.append)
    assert messages[0].startswith("waiting for 2 of 4 engine slots; held by first (pid ")
    for lease in first:
        lease.release()
    assert len(slots.acquire(SLOTS, "second", timeout_s=0)) == SLOTS


def test_nothing_is_kept_by_a_request_that_cannot_be_met(slots: EngineSlots) -> None:
    slots.acquire(3, "first")
    with pytest.raises(NoEngineSlot):
        slots.acquire(2, "second", timeout_s=0)
    slots.acquire(1, "third", timeout_s=0)


def test_more_than_the_machine_has_is_refused_at_once(slots: EngineSlots) -> None:
    with pytest.raises(NoEngineSlot, match="5 engines are wanted at once; a machine runs at most 4"):
        slots.acquire(5, "first")


def test_a_killed_holder_frees_its_slots(slots: EngineSlots, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "slots")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert "another deployment" in slots.holders()
        holder.kill()
    assert len(slots.acquire(SLOTS, "next", timeout_s=0)) == SLOTS


def test_an_engine_keeps_its_slot_when_whoever_started_it_lets_go(slots: EngineSlots) -> None:
    (lease,) = slots.acquire(1, "starter")
    sleep = [sys.executable, "-IS", "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleep, pass_fds=[lease.fileno()]) as engine:
        lease.release()
        with pytest.raises(NoEngineSlot):
            slots.acquire(SLOTS, "next", timeout_s=0)
        engine.kill()
    eventually(lambda: slots.holders() == EngineSlots.ALL_FREE)
    with pytest.raises(ValueError, match="released"):
        lease.fileno()

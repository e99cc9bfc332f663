"""What `up` writes down for the other commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from machine import eventually

from mmdisagg_cli.down import down
from mmdisagg_cli.processes import ProcessId, identify, is_alive
from mmdisagg_cli.state import (
    AlreadyRunning,
    DeploymentState,
    RoleState,
    StateStore,
    StillRunning,
    UnusableState,
)

GONE = ProcessId(2**22 - 1, 1)


def state(scratch: Path, supervisor: ProcessId | None = None, *roles: RoleState) -> DeploymentState:
    return DeploymentState(
        name="one",
        spec_digest="d",
        supervisor=supervisor or identify(os.getpid()) or GONE,
        phase="ready",
        url="http://127.0.0.1:8000",
        scratch=scratch,
        roles=roles,
    )


def test_a_state_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "states")
    store.claim(state(tmp_path))
    assert store.read("one") == state(tmp_path)
    assert store.names() == ["one"]
    store.remove("one")
    assert (store.names(), store.read("one")) == ([], None)


def test_a_living_deployment_keeps_its_name(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "states")
    store.claim(state(tmp_path))
    with pytest.raises(AlreadyRunning, match=r"one already runs at http://127\.0\.0\.1:8000"):
        store.claim(state(tmp_path))
    assert not store.clean_stale("one")


def test_what_a_killed_supervisor_left_behind_is_ended_and_replaced(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    orphan = subprocess.Popen(
        [sys.executable, "-IS", "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    process = identify(orphan.pid)
    assert process is not None
    role = RoleState(name="decode", process=process, port=1, url="", log=tmp_path / "log")
    store = StateStore(tmp_path / "states")
    store.claim(state(scratch, GONE, role))
    assert store.running("one") is None
    store.claim(state(tmp_path))
    eventually(lambda: not is_alive(process))
    assert not scratch.exists()
    orphan.wait()


def test_an_unreadable_state_is_not_taken_for_none(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "state.json").write_text("{")
    for use in (store.read, store.clean_stale, lambda name: store.claim(state(tmp_path))):
        with pytest.raises(UnusableState, match=r"one/state\.json cannot be read"):
            use("one")
    assert (tmp_path / "one" / "state.json").exists()


def test_what_could_not_be_ended_is_not_called_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdisagg_cli.down._send", lambda process, number: None)
    monkeypatch.setattr("mmdisagg_cli.down._KILL_WAIT_S", 0.1)
    store = StateStore(tmp_path / "states")
    store.claim(state(tmp_path))
    with pytest.raises(StillRunning, match="one still runs"):
        down(store, "one", timeout_s=0.1)
    assert store.names() == ["one"]


@pytest.mark.parametrize("name", ["", "..", "../one", "/etc", ".failed"])
def test_a_name_never_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no deployment's name"):
        StateStore(tmp_path).directory(name)

import os
import signal
import sys

import pytest

from testbed.deadline import until
from testbed.errors import ProgramFailed
from testbed.processes import MARK, Processes, mark, read_mark

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
PARENT = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"]


@pytest.fixture
def processes(tmp_path):
    instance = tmp_path / "live"
    instance.mkdir()
    started = Processes(instance, tmp_path / "log")
    yield started
    started.kill()


def test_a_mark_is_read_back_from_an_environment(tmp_path):
    environ = f"PATH=/bin\0{MARK}={mark(tmp_path / 'a#b', 'etcd')}\0HOME=/".encode()
    assert read_mark(environ) == (tmp_path / "a#b", "etcd")


def test_an_environment_without_a_mark_is_nobodys():
    assert read_mark(b"PATH=/bin\0HOME=/") is None


def test_a_started_program_is_found_by_its_name_until_it_is_killed(processes):
    processes.start("etcd", SLEEP)
    processes.start("kubelet", SLEEP)
    assert processes.running().keys() == {"etcd", "kubelet"}
    processes.kill("etcd")
    assert processes.running().keys() == {"kubelet"}


def test_another_process_of_this_library_finds_it_too(processes):
    processes.start("etcd", SLEEP)
    stranger = Processes(processes.instance, processes.logs)
    assert stranger.running().keys() == {"etcd"}
    stranger.kill()
    assert stranger.running() == {}


def test_what_a_program_started_is_killed_with_it(processes):
    processes.start("runtime", PARENT)
    until("the child", lambda: len(processes.running().get("runtime", ())) == 2, seconds=10)
    processes.kill()
    assert processes.running() == {}


def test_orphans_of_a_killed_program_are_still_found(processes):
    processes.start("runtime", PARENT)
    until("the child", lambda: len(processes.running().get("runtime", ())) == 2, seconds=10)
    os.kill(min(processes.running()["runtime"]), signal.SIGKILL)
    until("end of the parent", lambda: len(processes.running()["runtime"]) == 1, seconds=10)
    processes.kill()
    assert processes.running() == {}


def test_a_program_that_has_ended_is_reported_with_its_last_words(processes):
    processes.start("etcd", [sys.executable, "-c", "raise SystemExit('disk is full')"])
    until("its end", lambda: not processes.running(), seconds=10)
    with pytest.raises(ProgramFailed, match=r"(?s)etcd has ended.*disk is full"):
        processes.require("etcd")


def test_nothing_of_the_callers_environment_reaches_a_program(processes, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid")
    processes.start("etcd", [sys.executable, "-c", "import os; print(sorted(os.environ))"])
    until("its end", lambda: not processes.running(), seconds=10)
    assert "HTTPS_PROXY" not in processes.log("etcd").read_text()

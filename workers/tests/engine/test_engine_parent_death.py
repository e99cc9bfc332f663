"""Processes that end with their parents, tried on real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import os, signal, time
from mmdisagg_workers.engine.parent_death import {call}
{setup}
print(os.getpid(), flush=True)
time.sleep(60)
"""
DIRECT = CHILD.format(call="end_with_parent", setup="end_with_parent({parent}, signal.SIGTERM)")
FORKED = CHILD.format(
    call="bind_engine_processes", setup="bind_engine_processes()\nif os.fork(): time.sleep(60)"
)


def start(code, parent="os.getppid()"):
    """Start `code` as the child of a middle process that can be killed; return both and the child's pid."""
    middle = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code.format(parent=parent)!r}])"
    process = subprocess.Popen([sys.executable, "-c", middle], stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def gone(pid, seconds=10):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_a_child_ends_when_its_parent_is_killed():
    parent, child = start(DIRECT)
    assert not gone(child, 0.1)
    parent.kill()
    parent.wait()
    assert gone(child)


def test_a_parent_that_was_gone_before_is_noticed():
    code = DIRECT.format(parent=1_000_000)
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=False)
    assert finished.returncode == -signal.SIGTERM


def test_forked_engine_processes_are_bound_too():
    code = FORKED.replace("{parent}", "")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    assert not gone(child, 0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert gone(child)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_multiprocessing_children_are_bound(method, tmp_path):
    """As vLLM does it: a forked process inherits the plugin's hook, a spawned one loads the plugin again."""
    script = tmp_path / "tree.py"
    script.write_text(
        "import multiprocessing, os, time\n"
        "from mmdisagg_workers.engine.parent_death import bind_engine_processes\n"
        "def work():\n"
        "    if multiprocessing.get_start_method() == 'spawn':\n"
        "        bind_engine_processes()\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    bind_engine_processes()\n"
        f"    multiprocessing.set_start_method({method!r})\n"
        "    process = multiprocessing.Process(target=work)\n"
        "    process.start()\n"
        "    process.join()\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert not gone(child, 0.1)
    parent.kill()
    parent.wait()
    assert gone(child)

"""`mmdisagg up`, `down` and `status` as a user runs them, with fake roles."""

import signal
import subprocess

import pytest
from machine import Machine, eventually

from mmdisagg_cli.state import StateStore

CHILDREN = {role: {"child": True} for role in ("encode", "prefill", "decode")}


def ready(machine: Machine) -> bool:
    state = StateStore().running("fake")
    return state is not None and state.phase == "ready"


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=30)
    return process.returncode, output, errors


def test_up_prints_progress_the_url_and_an_example(machine: Machine) -> None:
    process = machine.start("up", "-f", "fake.yaml")
    eventually(lambda: ready(machine))
    state = StateStore().running("fake")
    assert state is not None
    process.send_signal(signal.SIGINT)
    code, output, errors = finish(process)
    assert code == 130
    assert f"fake is ready at {state.url}" in output
    assert f"curl -s {state.url}/v1/chat/completions" in output
    assert '"model": "fake-model"' in output
    assert "decode: ready" in errors
    assert "nothing is left running" in errors
    assert machine.leftovers() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_it_too(machine: Machine, number: signal.Signals) -> None:
    # Whoever runs the tests may have told them to survive a hangup, which children inherit.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    machine.behave({**CHILDREN, "router": {"ready_after": 60}})
    process = machine.start("up", "-f", "fake.yaml")
    signal.signal(signal.SIGHUP, before)
    eventually(lambda: len(machine.processes()) == 8)
    process.send_signal(number)
    assert finish(process)[0] == 128 + number
    assert machine.leftovers() == []


def test_a_second_ctrl_c_does_not_wait_for_stubborn_engines(machine: Machine) -> None:
    machine.behave({"decode": {"ignore_sigterm": True, "child": True}})
    process = machine.start("up", "-f", "fake.yaml")
    eventually(lambda: ready(machine))
    process.send_signal(signal.SIGINT)
    eventually(lambda: len(machine.processes()) == 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == 130
    assert machine.leftovers() == []


def test_a_role_that_dies_while_starting_ends_everything(machine: Machine) -> None:
    machine.behave(
        {**CHILDREN, "prefill": {"exit_after": 0.2, "exit_code": 40}, "router": {"ready_after": 60}}
    )
    result = machine.run("up", "-f", "fake.yaml")
    assert result.returncode == 1
    assert "prefill died with exit code 40" in result.stderr
    assert "the fake engine cannot go on" in result.stderr
    assert machine.leftovers() == []
    assert "cannot go on" in (machine.state / ".failed" / "fake" / "prefill.log").read_text()


def test_logs_that_cannot_be_kept_do_not_hide_why_a_role_died(machine: Machine) -> None:
    machine.behave({"prefill": {"exit_after": 0.2, "exit_code": 40}, "router": {"ready_after": 60}})
    machine.state.mkdir(parents=True)
    (machine.state / ".failed").write_text("no directory")
    result = machine.run("up", "-f", "fake.yaml")
    assert result.returncode == 1
    assert "the logs could not be kept" in result.stderr
    assert "the fake engine cannot go on" in result.stderr
    assert "error: prefill died with exit code 40" in result.stderr


def test_a_role_that_dies_later_ends_everything(machine: Machine) -> None:
    process = machine.start("up", "-f", "fake.yaml")
    eventually(lambda: ready(machine))
    state = StateStore().running("fake")
    assert state is not None
    (decode,) = [role.process for role in state.roles if role.name == "decode"]
    assert decode is not None
    subprocess.run(["kill", "-9", str(decode.pid)], check=True)
    code, _, errors = finish(process)
    assert code == 1
    assert "decode died of signal 9" in errors
    assert machine.leftovers() == []


def test_detached_it_returns_when_ready_and_down_ends_it(machine: Machine) -> None:
    machine.behave(CHILDREN)
    result = machine.run("up", "-f", "fake.yaml", "--detach")
    assert result.returncode == 0, result.stderr
    assert "fake is ready at http://127.0.0.1:" in result.stdout
    assert "decode: ready" in result.stderr
    status = machine.run("status").stdout
    assert "ready" in status
    assert "dead" not in status
    second = machine.run("up", "-f", "fake.yaml")
    assert second.returncode == 1
    assert "stop it with `mmdisagg down fake`" in second.stderr
    assert "fake is down" in machine.run("down", "-f", "fake.yaml").stderr
    assert machine.leftovers() == []
    assert machine.run("status").stdout == "nothing is running\n"


def test_detached_it_fails_like_in_the_foreground(machine: Machine) -> None:
    machine.behave({"encode": {"exit_after": 0.1}, "router": {"ready_after": 60}})
    result = machine.run("up", "-f", "fake.yaml", "--detach")
    assert result.returncode == 1
    assert "encode died with exit code 3" in result.stderr
    assert machine.leftovers() == []


def test_ctrl_c_while_it_starts_in_the_background_stops_it(machine: Machine) -> None:
    machine.behave({"router": {"ready_after": 60}})
    process = machine.start("up", "-f", "fake.yaml", "--detach")
    eventually(lambda: len(machine.processes()) == 6)
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    assert machine.leftovers() == []


def test_what_a_killed_up_left_behind_is_shown_and_ended(machine: Machine) -> None:
    process = machine.start("up", "-f", "fake.yaml")
    eventually(lambda: ready(machine))
    process.kill()
    finish(process)
    assert len(machine.processes()) == 4
    assert "left behind" in machine.run("status").stdout
    assert machine.run("down", "--all").returncode == 0
    assert machine.leftovers() == []

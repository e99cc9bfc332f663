"""`mmdisagg verify` and `mmdisagg demo` against fake roles."""

import json
import re
import signal

import pytest
from machine import DEPLOYMENT, Machine, eventually
from PIL import Image
from typer.testing import CliRunner

from mmdisagg_cli.local import LocalDeployment
from mmdisagg_cli.main import app
from mmdisagg_operator.api import load_deployment


def run(*arguments: object):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def verify(machine: Machine, *more: str):
    return run("verify", "-f", machine.file, "--requests", "7", *more)


def test_equal_answers_pass_and_the_json_is_all_of_the_output(machine: Machine) -> None:
    result = verify(machine, "-o", "json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {"requests": 7, "identical": 7, "different": 0, "errors": 0}
    assert "7/7 identical" in result.stderr
    assert machine.leftovers() == []


def test_different_answers_fail_and_are_shown(machine: Machine) -> None:
    machine.behave({"router": {"answer": "a red circle."}})
    result = verify(machine)
    assert result.exit_code == 1
    assert "7 requests: 0 identical, 7 different, 0 errors" in result.stdout
    assert "a red circle." in result.stdout
    assert machine.leftovers() == []


def test_errors_fail_and_are_counted_apart(machine: Machine) -> None:
    machine.behave({"router": {"status": 500}})
    result = verify(machine, "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"requests": 7, "identical": 0, "different": 0, "errors": 7}
    assert "HTTP 500: the fake refuses" in verify(machine).stdout


def test_one_answer_to_everything_is_warned_of(machine: Machine) -> None:
    machine.behave({role: {"answer": "a red circle."} for role in ("router", "aggregated")})
    result = verify(machine)
    assert result.exit_code == 0
    assert "warning: the aggregated engine gave one answer to all pictures" in result.stderr


def test_a_running_deployment_is_used_and_left_alone(machine: Machine) -> None:
    with LocalDeployment(load_deployment(DEPLOYMENT), machine.root) as local:
        local.start()
        local.wait_ready(10)
        result = verify(machine)
        assert result.exit_code == 0, result.stderr
        assert "encode: " not in result.stderr
        local.check()
        assert len(machine.processes()) == 4


def test_a_running_deployment_of_another_spec_is_not_compared(machine: Machine) -> None:
    spec = {**DEPLOYMENT["spec"], "engine": {"device": "Cpu", "maxModelLen": 1024}}
    with LocalDeployment(load_deployment({**DEPLOYMENT, "spec": spec}), machine.root) as local:
        local.start()
        still_starting = LocalDeployment(load_deployment(DEPLOYMENT), machine.root)
        assert still_starting.name == local.name
        result = verify(machine)
        assert result.exit_code == 1
        assert "fake runs with another spec" in result.stderr


def test_a_deployment_that_is_still_starting_is_not_compared(machine: Machine) -> None:
    with LocalDeployment(load_deployment(DEPLOYMENT), machine.root) as local:
        local.start()
        assert "fake is still starting" in verify(machine).stderr


def test_the_demo_shows_answers_times_and_bytes(machine: Machine) -> None:
    result = run("demo", "-f", machine.file, "--seed", "1")
    assert result.exit_code == 0, result.stdout + result.stderr
    assert len(re.findall(r"token ids +equal", result.stdout)) == 2
    for words in (
        "time of encode +12 ms",
        "time of decode +41 ms",
        r"bytes sent to decode +700 \(the picture: \d+\)",
    ):
        assert re.search(words, result.stdout)
    assert "2 of 2 answers equal" in result.stdout
    (first, second) = sorted(machine.temporary.glob("mmdisagg-demo-*/*.png"))
    assert Image.open(first).size == Image.open(second).size


@pytest.mark.parametrize(
    ("router", "words"),
    [
        ({"answer": "a red circle."}, "0 of 2 answers equal"),
        ({"decode_bytes": 4096}, "2 of 2 answers equal .* but more than 2048 bytes went to decode"),
    ],
)
def test_the_demo_is_honest(machine: Machine, router: dict[str, object], words: str) -> None:
    machine.behave({"router": router})
    result = run("demo", "-f", machine.file, "--seed", "1")
    assert result.exit_code == 1
    assert re.search(words, " ".join(result.stdout.split()))


def test_the_demo_asks_about_a_picture_of_the_user(machine: Machine) -> None:
    picture = machine.root / "own.png"
    Image.new("L", (30, 20)).save(picture)
    result = run("demo", "-f", machine.file, "--picture", picture, "--question", "What is it?")
    assert result.exit_code == 0, result.stdout + result.stderr
    assert "What is it?" in result.stdout
    assert "picture: 30 x 20 pixels" in result.stdout


def test_the_demo_refuses_what_is_no_picture(machine: Machine) -> None:
    result = run("demo", "-f", machine.file, "--picture", machine.file)
    assert result.exit_code == 2
    assert "cannot be shown" in result.stderr


def test_a_demo_that_is_stopped_while_engines_load_leaves_nothing(machine: Machine) -> None:
    machine.behave({"router": {"ready_after": 60}})
    process = machine.start("demo", "-f", "fake.yaml")
    eventually(lambda: len(machine.processes()) == 6)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert machine.leftovers() == []

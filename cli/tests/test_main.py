"""The command line itself: usage, exit codes, what goes to which stream."""

import json

import pytest
import yaml
from machine import DEPLOYMENT, Machine
from typer.testing import CliRunner

from mmdisagg_cli.main import app


def run(*arguments: object):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_down_says_when_there_is_nothing_to_end(machine: Machine) -> None:
    assert "fake is not running" in run("down", "fake").stderr
    assert "../fake is not running" in run("down", "../fake").stderr
    assert run("down", "--all").exit_code == 0


def test_down_wants_exactly_one_target(machine: Machine) -> None:
    assert run("down").exit_code == 2
    assert run("down", "fake", "--all").exit_code == 2


def test_status_says_when_nothing_runs(machine: Machine) -> None:
    assert run("status").stdout == "nothing is running\n"


def test_a_wrong_file_is_refused_with_the_fields_path(machine: Machine) -> None:
    machine.write_deployment({**DEPLOYMENT, "spec": {**DEPLOYMENT["spec"], "decoder": {}}})
    for command in ("up", "render", "verify", "down", "demo"):
        result = run(command, "-f", machine.file)
        assert result.exit_code == 2
        assert "fake.yaml: spec.decoder: unknown field" in result.stderr


def test_a_file_that_cannot_be_read_is_named(machine: Machine) -> None:
    missing = run("render", "-f", machine.root / "nowhere.yaml")
    assert missing.exit_code == 2
    assert "nowhere.yaml: No such file" in missing.stderr
    machine.file.write_text("a: b: c")
    assert "is no YAML" in run("render", "-f", machine.file).stderr
    machine.file.write_bytes(b"\xff\xfe\xff")
    assert "is no YAML" in run("render", "-f", machine.file).stderr


def test_a_state_that_cannot_be_read_fails_and_is_kept(machine: Machine) -> None:
    broken = machine.state / "fake" / "state.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    for arguments in (["down", "fake"], ["down", "--all"], ["status"], ["up", "-f", machine.file]):
        result = run(*arguments)
        assert (result.exit_code, str(broken) in result.stderr) == (2, True)
        assert "is down" not in result.stderr
    assert broken.exists()


def test_a_state_directory_that_is_none_is_an_error(machine: Machine) -> None:
    machine.state.parent.mkdir()
    machine.state.write_text("")
    for arguments in (["down", "--all"], ["status"], ["up", "-f", machine.file]):
        result = run(*arguments)
        assert (result.exit_code, f"error: {machine.state}" in result.stderr) == (2, True)


@pytest.mark.parametrize("text", ["a: 2024-99-99", "a: " + "1" * 5000, "[" * 5000])
def test_yaml_that_python_chokes_on_is_an_error(machine: Machine, text: str) -> None:
    machine.file.write_text(text)
    result = run("render", "-f", machine.file)
    assert (result.exit_code, "error: " in result.stderr) == (2, True)


def test_yaml_aliases_are_refused(machine: Machine) -> None:
    machine.file.write_text("a: &a [x, x]\nb: [*a, *a]")
    result = run("render", "-f", machine.file)
    assert (result.exit_code, "aliases are not supported" in result.stderr) == (2, True)


def test_a_key_that_comes_twice_is_refused(machine: Machine) -> None:
    machine.file.write_text(machine.file.read_text() + "\nspec: {}\n")
    result = run("render", "-f", machine.file)
    assert (result.exit_code, "'spec' comes twice" in result.stderr) == (2, True)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_is_none_is_wrong_usage(machine: Machine, port: int) -> None:
    assert run("up", "-f", machine.file, "--port", port).exit_code == 2


def test_render_prints_arguments_and_environment_of_each_role(machine: Machine) -> None:
    result = run("render", "-f", machine.file, "-o", "json")
    roles = json.loads(result.stdout)
    assert list(roles) == ["encode", "prefill", "decode", "router"]
    assert all(list(launch) == ["args", "env"] for launch in roles.values())
    assert "--mm-encoder-only" in roles["encode"]["args"]
    assert roles["decode"]["env"]["MMDISAGG_TOPOLOGY"] == "E/P/D"
    assert roles == yaml.safe_load(run("render", "-f", machine.file, "-o", "yaml").stdout)


def test_render_never_shows_the_secret(machine: Machine) -> None:
    roles = json.loads(run("render", "-f", machine.file, "-o", "json").stdout)
    assert {launch["env"]["MMDISAGG_STAGE_TOKEN"] for launch in roles.values()} == {"(secret)"}


def test_render_knows_where_a_cluster_is_different(machine: Machine) -> None:
    cluster = json.loads(run("render", "-f", machine.file, "--for", "cluster", "-o", "json").stdout)
    local = json.loads(run("render", "-f", machine.file, "-o", "json").stdout)
    name = "VLLM_NIXL_SIDE_CHANNEL_HOST"
    assert (local["decode"]["env"][name], cluster["decode"]["env"][name]) == ("127.0.0.1", "$(POD_IP)")


def test_render_has_a_table_for_people(machine: Machine) -> None:
    table = run("render", "-f", machine.file).stdout
    assert "--mm-encoder-only" in table
    assert "prefill" in table

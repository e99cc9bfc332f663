"""The launcher up to the point where vLLM takes over."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from test_engine_model_facts import QWEN
from test_engine_settings import MINIMAL

from mmdisagg_workers.engine import main as launcher
from mmdisagg_workers.engine import settings as names
from mmdisagg_workers.engine import start_errors
from mmdisagg_workers.engine.start_errors import BadSettings, UnknownFamily, WrongEngineVersion
from mmdisagg_workers.engine.worker_extension import EXTENSION


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return str(tmp_path)


@pytest.fixture
def environ(monkeypatch):
    for name in [name for name in os.environ if name.startswith("MMDISAGG_")]:
        monkeypatch.delenv(name)
    for name, value in MINIMAL.items():
        monkeypatch.setenv(name, value)


def test_the_supported_vllm_is_the_installed_one():
    launcher.check_vllm_version()
    assert launcher.installed_vllm() == launcher.VLLM_VERSION


@pytest.mark.parametrize("found", ["0.31.9", "0.32.1", ""])
def test_another_vllm_is_refused(found):
    with pytest.raises(WrongEngineVersion, match=r"install vLLM 0\.32\.0"):
        launcher.check_vllm_version(found)


def test_resolved_facts_are_left_for_the_plugins(model):
    environ = dict(MINIMAL)
    settings = launcher.prepare("prefill", ["--port", "1", "--model", model], environ)
    assert settings.family == environ[names.FAMILY] == "Qwen2.5-VL"
    assert json.loads(environ[names.GEOMETRY])["embedding_width"] == 128


def test_the_role_of_the_command_line_wins(model):
    environ = MINIMAL | {names.ROLE: "decode", names.GEOMETRY: "stale"}
    assert launcher.prepare("encode", [f"--model={model}"], environ).role == "encode"


def test_a_missing_model_is_refused():
    with pytest.raises(BadSettings, match="--model"):
        launcher.prepare("encode", [], dict(MINIMAL))


def test_a_wrong_family_is_refused(model):
    with pytest.raises(UnknownFamily):
        launcher.prepare("encode", ["--model", model], MINIMAL | {names.FAMILY: "LLaVA"})


@pytest.mark.parametrize(
    ("changed", "code", "line"),
    [
        ({names.FAMILY: "Pixtral"}, 40, "UnknownFamily: "),
        ({names.STAGE_TOKEN: "short"}, 42, "BadSettings: "),
    ],
)
@pytest.mark.usefixtures("environ")
def test_a_refused_start_has_its_code_and_one_line(model, monkeypatch, capsys, changed, code, line):
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    assert launcher.main(["--role", "encode", "--model", model]) == code
    printed = capsys.readouterr().err
    assert line in printed
    assert printed.count("\n") == 1


@pytest.mark.usefixtures("environ")
def test_a_wrong_version_has_its_code(model, monkeypatch):
    monkeypatch.setattr(launcher, "installed_vllm", lambda: "0.1.0")
    assert launcher.main(["--role", "encode", "--model", model]) == 41


@pytest.mark.usefixtures("environ")
def test_vllm_gets_all_other_arguments_unchanged_and_the_weight_report(model, monkeypatch):
    seen = []
    entry = ModuleType("vllm.entrypoints.launchers.api_server.entry")
    entry.main = lambda: seen.append(sys.argv[1:])
    monkeypatch.setitem(sys.modules, entry.__name__, entry)
    arguments = ["--model", model, "--port", "7", "--block-size=32"]
    monkeypatch.setattr(sys, "argv", ["mmdisagg-worker"])
    with pytest.raises(SystemExit) as end:
        launcher.main(["--role", "decode", *arguments])
    assert end.value.code == 0
    assert seen == [[*arguments, "--worker-extension-cls", EXTENSION]]


STARTING = """
import sys, time
from mmdisagg_workers.engine import main as launcher
launcher.prepare = lambda *_: (print("prepares", flush=True), time.sleep(60))
launcher.main(["--role", "encode"])
"""
AS_FIRST_PROCESS = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child=KILL"]


def test_a_containers_first_process_ends_when_it_is_told_to_before_vllm_is_there():
    """Given a process 1: the kernel drops signals that it has no handler for."""
    if subprocess.run([*AS_FIRST_PROCESS, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces of processes can be made here")
    command = [*AS_FIRST_PROCESS, sys.executable, "-c", STARTING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout.readline() == "prepares\n"
        (inner,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        os.kill(int(inner), signal.SIGTERM)
        assert outer.wait(10) == 128 + signal.SIGTERM


def test_a_pod_finds_the_message_as_termination_message(tmp_path):
    log = tmp_path / "termination-log"
    log.touch()
    start_errors.report(BadSettings("several\n lines"), log)
    assert log.read_text() == "BadSettings: several lines"


def test_without_a_pod_no_file_is_made(tmp_path):
    start_errors.report(BadSettings("x"), tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_vllm_has_the_entry_point_that_the_launcher_calls():
    spec = importlib.util.find_spec("vllm.entrypoints.launchers.api_server.entry")
    assert "\ndef main():" in Path(spec.origin).read_text()


def test_help_names_roles_variables_and_exit_codes():
    command = [sys.executable, "-m", "mmdisagg_workers.engine.main", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    for expected in ("--role {encode,prefill,decode,aggregated}", names.STAGE_TOKEN, "40", "41", "42"):
        assert expected in shown

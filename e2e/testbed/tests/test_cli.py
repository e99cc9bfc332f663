import pytest

from testbed import cli, probe
from testbed.cli import CANNOT, FAILED, main


@pytest.fixture(autouse=True)
def _own_root(tmp_path, monkeypatch):
    monkeypatch.setenv("MMDISAGG_TESTBED_DIR", str(tmp_path))


def test_env_prints_shell_settings(capsys, tmp_path):
    assert main(["env"]) == 0
    printed = capsys.readouterr().out
    assert f"export KUBECONFIG={tmp_path}/live/cluster/kubeconfig\n" in printed
    assert f"export PATH={tmp_path}/programs/kube-" in printed


def test_the_api_server_alone_has_another_kubeconfig(capsys, tmp_path):
    assert main(["env", "--api-only"]) == 0
    assert f"export KUBECONFIG={tmp_path}/live/api/kubeconfig\n" in capsys.readouterr().out


def test_status_fails_while_nothing_runs(capsys):
    assert main(["status"]) == FAILED
    assert "the cluster is not up" in capsys.readouterr().out


def test_a_machine_that_cannot_run_it_is_told_why(monkeypatch, capsys):
    monkeypatch.setattr(probe, "capable", lambda layout: "cannot run here: no luck")
    assert main(["up"]) == CANNOT
    assert capsys.readouterr().err == "testbed: cannot run here: no luck\n"


def test_loading_without_nodes_says_what_to_do(tmp_path, capsys):
    assert main(["load", str(tmp_path / "image.tar")]) == FAILED
    assert "bring the test bed up first" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["up", "--nodes", "0"], ["up", "--nodes", "99"], ["fly"], []])
def test_nonsense_is_refused(words):
    with pytest.raises(SystemExit):
        main(words)


def test_every_command_has_a_help_text(capsys):
    with pytest.raises(SystemExit):
        cli.parser().parse_args(["--help"])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("up", "down", "prepare", "build", "load", "env", "status"))

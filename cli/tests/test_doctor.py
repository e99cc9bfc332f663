"""What `mmdisagg doctor` makes of what it finds."""

import pytest
from typer.testing import CliRunner

from mmdisagg_cli import doctor
from mmdisagg_cli.doctor import Finding, Verdict
from mmdisagg_cli.main import app

GIB = 2**30


@pytest.mark.parametrize(
    ("finding", "verdict"),
    [
        (doctor.judge_python((3, 10)), Verdict.FAILED),
        (doctor.judge_python((3, 11)), Verdict.OK),
        (doctor.judge_python((3, 13)), Verdict.WARNING),
        (doctor.judge_vllm(None, "0.32.0"), Verdict.FAILED),
        (doctor.judge_vllm("0.31.2", "0.32.0"), Verdict.FAILED),
        (doctor.judge_vllm("0.32.0+cpu", "0.32.0"), Verdict.OK),
        (doctor.judge_memory(2 * GIB), Verdict.FAILED),
        (doctor.judge_memory(8 * GIB), Verdict.WARNING),
        (doctor.judge_memory(20 * GIB), Verdict.OK),
        (doctor.judge_shared_memory(64 * 2**20), Verdict.FAILED),
        (doctor.judge_shared_memory(8 * GIB), Verdict.OK),
    ],
)
def test_findings_are_judged_and_say_what_to_do(finding: Finding, verdict: Verdict) -> None:
    assert finding.verdict is verdict
    assert bool(finding.remedy) == (verdict is not Verdict.OK)


def test_the_supported_engine_is_the_one_of_the_distributions_metadata() -> None:
    assert doctor.supported_vllm() == "0.32.0"


def test_the_container_limit_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1000\n")
    monkeypatch.setattr(doctor, "_CGROUP_LIMITS", (limit,))
    assert doctor.available_memory() == 1000
    limit.write_text("max\n")
    assert doctor.available_memory() > 1000


@pytest.mark.parametrize(("verdict", "code"), [(Verdict.OK, 0), (Verdict.WARNING, 0), (Verdict.FAILED, 1)])
def test_only_failures_fail_the_command(monkeypatch: pytest.MonkeyPatch, verdict: Verdict, code: int) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [Finding("memory", verdict, "3 GiB", "buy some")])
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == code
    assert "memory" in result.stdout


def test_this_machine_can_be_examined() -> None:
    subjects = [finding.subject for finding in doctor.examine()]
    assert {"system", "Python", "vLLM", "NIXL", "memory", "/dev/shm"} <= set(subjects)

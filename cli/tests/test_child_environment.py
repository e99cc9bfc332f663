"""What a role gets of the user's environment."""

from pathlib import Path

from mmdisagg_cli.child_environment import child_environment

SHELL = {
    "PATH": "/bin",
    "HOME": "/home/user",
    "HF_TOKEN": "for the hub",
    "MMDISAGG_STAGE_TOKEN": "of another deployment",
    "VLLM_USE_V1": "0",
    "AWS_SECRET_ACCESS_KEY": "private",
    "TMPDIR": "/somewhere",
}


def test_only_what_programs_need_is_passed_on() -> None:
    child = child_environment(SHELL, {}, Path("/scratch"))
    assert {"PATH", "HOME", "HF_TOKEN"} <= child.keys()
    assert not {"MMDISAGG_STAGE_TOKEN", "VLLM_USE_V1", "AWS_SECRET_ACCESS_KEY"} & child.keys()


def test_temporary_files_go_to_the_deployments_own_directory() -> None:
    assert child_environment(SHELL, {}, Path("/scratch"))["TMPDIR"] == "/scratch"


def test_the_plan_wins() -> None:
    child = child_environment({"HF_HOME": "/a"}, {"HF_HOME": "/b", "OMP_NUM_THREADS": "1"}, Path("/scratch"))
    assert (child["HF_HOME"], child["OMP_NUM_THREADS"]) == ("/b", "1")


def test_compiled_kernels_stay_in_the_users_cache() -> None:
    name = "TORCHINDUCTOR_CACHE_DIR"
    assert child_environment(SHELL, {}, Path("/s"))[name] == "/home/user/.cache/mmdisagg/inductor"
    assert child_environment({**SHELL, name: "/own"}, {}, Path("/s"))[name] == "/own"

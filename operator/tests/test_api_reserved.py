"""Flags and variables of the plan cannot be set by users, however they are spelt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdisagg_operator.api.reserved import RESERVED_FLAGS, reserved_flag, reserved_variable

FLAGS = st.sampled_from(sorted(RESERVED_FLAGS))


@given(FLAGS, st.data())
def test_a_reserved_flag_is_known_in_every_spelling(flag, data):
    spelling = "--" + flag[2:].replace("-", data.draw(st.sampled_from(["-", "_"])))
    spelling += data.draw(st.sampled_from(["", "=1", "=a.b-c", ".key", ".key=1", ".key+=1,2"]))
    assert reserved_flag(spelling) == flag


@given(FLAGS, st.data())
def test_its_beginnings_are_reserved_too(flag, data):
    beginning = flag[: data.draw(st.integers(2, len(flag)))]
    assert reserved_flag(beginning) is not None


def test_code_that_runs_inside_the_workers_is_not_the_users():
    assert reserved_flag("--worker_extension_cls=package.Class") == "--worker-extension-cls"


@pytest.mark.parametrize(
    "argument",
    [
        *("--dtype=float32", "--enforce-eager", "--block-size=32", "--max-num-seqs", "--model-impl=auto"),
        *("--gpu-memory-utilization=0.9", "--tool-call-parser", "--enable-auto-tool-choice"),
        *(
            "--compilation-config={'level':3}",
            "--config-format=auto",
            "--host-memory",
            "-tp",
            "-O3",
            "2",
            "x=--port",
        ),
    ],
)
def test_other_arguments_are_free(argument):
    assert reserved_flag(argument) is None


@pytest.mark.parametrize(
    ("name", "reserved"),
    [
        ("MMDISAGG_STAGE_TOKEN", True),
        ("MMDISAGG_ANYTHING", True),
        ("VLLM_PLUGINS", True),
        ("VLLM_NIXL_SIDE_CHANNEL_HOST", True),
        ("VLLM_CPU_KVCACHE_SPACE", False),
        ("OMP_NUM_THREADS", False),
    ],
)
def test_variables_of_the_plan_are_reserved(name, reserved):
    assert reserved_variable(name) is reserved

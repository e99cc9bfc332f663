"""The images start as any user on a read-only root, and hold what they should."""

import hashlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OWN = {"mmdisagg_operator": ROOT / "operator", "mmdisagg_workers": ROOT / "workers"}
DIGEST = """
import hashlib, sys
from importlib.util import find_spec
from pathlib import Path
for name in sys.argv[1:]:
    folder = Path(find_spec(name).origin).parent
    files = sorted(folder.rglob("*.py"))
    print(name, hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest())
"""
PROGRAMS = {"worker": "mmdisagg-worker", "router": "mmdisagg-router", "operator": "mmdisagg-operator"}
WHERE_IS = (
    "from importlib.util import find_spec as f; print(*(name for name in {names!r}.split() if f(name)))"
)


@pytest.mark.case("c23")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_entry_point_starts(pods, image, name):
    ended = pods.run(image(name), "--help")
    assert ended.code == 0, ended.log
    assert f"usage: {PROGRAMS[name]}" in ended.log


@pytest.mark.parametrize("name", ["worker", "router"])
def test_the_plans_command_is_there(pods, image, name):
    """The operator's pods name the program, whatever the image's entry point is."""
    ended = pods.run(image(name), "--help", command=[PROGRAMS[name]])
    assert ended.code == 0, ended.log


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_holds_this_very_tree(pods, image, name):
    """Given a builder with layers of earlier builds: what is old in them would be tested here."""
    ended = pods.run(image(name), "-c", DIGEST, *OWN, command=["python3"])
    assert dict(line.split() for line in ended.log.splitlines()) == {
        package: digest(folder / package) for package, folder in OWN.items()
    }


def digest(folder):
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(folder.rglob("*.py")))).hexdigest()


@pytest.mark.parametrize("name", ["router", "operator"])
def test_it_holds_no_engine(pods, image, name):
    names = "mmdisagg_workers mmdisagg_operator torch vllm"
    ended = pods.run(image(name), "-c", WHERE_IS.format(names=names), command=["python3"])
    assert ended.log.split() == ["mmdisagg_workers", "mmdisagg_operator"]


def test_a_process_that_cannot_start_says_why_where_the_operator_reads_it(pods, image):
    ended = pods.run(image("router"), "--served-model", "m")
    assert ended.code == 42
    assert "mmdisagg-router:" in ended.log


def test_the_test_beds_worker_finds_the_mounted_engine_and_is_itself_from_the_image(pods, image, engine):
    asked = "import mmdisagg_workers as ours, vllm; print(ours.__file__, vllm.__file__, vllm.__version__)"
    ended = pods.run(image("worker"), "-c", asked, command=["python3"], engine=engine)
    ours, theirs, version = ended.log.splitlines()[-1].split()
    assert ours.startswith("/usr/")
    assert theirs.startswith("/engine/")
    assert version.startswith("0.32.0")


def test_a_worker_without_settings_says_so_after_it_has_found_its_engine(pods, image, engine):
    ended = pods.run(image("worker"), "--role", "encode", engine=engine)
    assert ended.code == 42, ended.log
    assert "MMDISAGG_" in ended.message


def test_a_worker_without_an_engine_says_which_one_it_needs(pods, image):
    """Given the test bed's image without its volume, as an image of another vLLM would be refused."""
    if has_engine(pods, image):
        pytest.skip("this worker image holds its engine")
    ended = pods.run(image("worker"), "--role", "encode")
    assert ended.code == 41, ended.log
    assert "install vLLM 0.32.0" in ended.message


def has_engine(pods, image):
    return (
        pods.run(image("worker"), "-c", WHERE_IS.format(names="vllm"), command=["python3"]).log.strip()
        == "vllm"
    )

import pytest

from testbed import programs
from testbed.errors import CannotRunHere
from testbed.layout import Layout
from testbed.programs import KUBE, TOOLS, Module, compile_command, linker_flags
from testbed.steps import silent


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "SOURCES", tmp_path)
    (tmp_path / "kube").mkdir()
    for name in ("main.go", "go.mod", "go.sum"):
        (tmp_path / "kube" / name).write_text(name)
    return Module("kube", ("etcd",))


@pytest.mark.parametrize("changed", ["main.go", "go.mod", "go.sum"])
def test_a_changed_source_or_pin_is_another_build(module, changed):
    before = module.fingerprint()
    (module.source / changed).write_text("changed")
    assert module.fingerprint() != before


def test_changed_flags_are_another_build(module, monkeypatch):
    before = module.fingerprint()
    monkeypatch.setattr(programs, "FLAGS", (*programs.FLAGS, "-race"))
    assert module.fingerprint() != before


def test_the_same_content_is_the_same_build(module):
    assert module.fingerprint() == Module("kube", ("etcd",)).fingerprint()


def test_every_dependency_of_the_modules_is_pinned():
    for module in (KUBE, TOOLS):
        assert len((module.source / "go.sum").read_text().splitlines()) > 100


def test_kubernetes_is_told_its_version():
    flags = linker_flags((KUBE.source / "go.mod").read_text())
    assert "-X k8s.io/component-base/version.gitVersion=v1.34.4" in flags
    assert "-X k8s.io/client-go/pkg/version.gitMinor=34" in flags
    assert linker_flags((TOOLS.source / "go.mod").read_text()) == "-s -w"


def test_niceness_and_parallel_compilations_come_from_the_environment(tmp_path):
    polite = {"MMDISAGG_TESTBED_NICE": "19", "MMDISAGG_TESTBED_GO_JOBS": "1"}
    command = compile_command(KUBE, tmp_path / "kube", polite)
    assert command[:7] == ["nice", "-n", "19", "go", "build", "-p", "1"]
    assert compile_command(KUBE, tmp_path / "kube", {})[:3] == ["go", "build", "-trimpath"]


def test_without_go_an_unbuilt_module_is_refused_and_a_built_one_is_not(module, tmp_path, monkeypatch):
    layout = Layout(tmp_path / "cache")
    monkeypatch.setattr(programs, "present", lambda name: False)
    with pytest.raises(CannotRunHere, match="Go is not installed"):
        programs.build(layout, module, silent())
    module.folder(layout).mkdir(parents=True)
    programs.build(layout, module, silent())


def test_programs_are_found_in_the_module_that_has_them(tmp_path):
    layout = Layout(tmp_path)
    assert programs.program(layout, "helm").parent == TOOLS.folder(layout)
    assert programs.program(layout, "kubectl").parent == KUBE.folder(layout)

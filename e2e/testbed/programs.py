"""Kubernetes, etcd, Helm and CoreDNS, compiled from their pinned sources and kept.

Two Go modules, because Helm and CoreDNS want newer Kubernetes libraries than
the release under test has. Each is compiled into one file that behaves as the
program it is called by; ``go.sum`` pins every source file of it.

``MMDISAGG_TESTBED_NICE`` (default 0) is the niceness of long builds, and
``MMDISAGG_TESTBED_GO_JOBS`` (default: Go's) how many packages Go compiles at once.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import CannotRunHere
from testbed.execute import run
from testbed.layout import Layout
from testbed.packages import present
from testbed.scratch import Scratch, scratch
from testbed.steps import Steps

SOURCES = Path(__file__).parent / "go"
# Part of Go's own cache key too: other flags would compile everything anew.
FLAGS = ("-trimpath", "-buildvcs=false")
KUBERNETES = "k8s.io/kubernetes"
FINGERPRINTED = ("main.go", "go.mod", "go.sum")


@dataclass(frozen=True)
class Module:
    """A Go module below ``go/`` and the programs that its one binary can be."""

    name: str
    programs: tuple[str, ...]

    @property
    def source(self) -> Path:
        """The module's folder."""
        return SOURCES / self.name

    def flags(self) -> list[str]:
        """The compiler's flags."""
        return [*FLAGS, f"-ldflags={linker_flags((self.source / 'go.mod').read_text())}"]

    def fingerprint(self) -> str:
        """Hash of all that decides the binary: sources, pins, flags and architecture."""
        digest = hashlib.sha256("\0".join((*self.flags(), platform.machine())).encode())
        for name in FINGERPRINTED:
            digest.update((self.source / name).read_bytes())
        return digest.hexdigest()[:12]

    def folder(self, layout: Layout) -> Path:
        """Where its programs lie once they are built."""
        return layout.programs / f"{self.name}-{self.fingerprint()}"


def linker_flags(go_mod: str) -> str:
    """Leave out debugging tables, and tell Kubernetes its version, which charts ask for.

    Args:
        go_mod: The content of a module's ``go.mod``; it names the version.
    """
    version = re.search(rf"^\s*{KUBERNETES} (v(\d+)\.(\d+)\S*)$", go_mod, re.MULTILINE)
    if version is None:
        return "-s -w"
    names = ("gitVersion", "gitMajor", "gitMinor")
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    values = zip(names, version.groups(), strict=True)
    settings = [f"-X {package}.{name}={value}" for name, value in values for package in packages]
    return " ".join(("-s -w", *settings))


KUBE = Module(
    "kube",
    (
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "kubelet",
        "kubectl",
    ),
)
TOOLS = Module("tools", ("helm", "coredns"))


def program(layout: Layout, name: str) -> Path:
    """The path of a compiled program."""
    module = next(m for m in (KUBE, TOOLS) if name in m.programs)
    return module.folder(layout) / name


def politeness(env: Mapping[str, str] = os.environ) -> list[str]:
    """The words before a long build's command that set its niceness."""
    niceness = env.get("MMDISAGG_TESTBED_NICE") or "0"
    return [] if niceness == "0" else ["nice", "-n", niceness]


def compile_command(module: Module, target: Path, env: Mapping[str, str] = os.environ) -> list[str]:
    """The command that compiles a module, in its folder, into ``target``."""
    jobs = env.get("MMDISAGG_TESTBED_GO_JOBS")
    parallel = ["-p", jobs] if jobs else []
    return [*politeness(env), "go", "build", *parallel, *module.flags(), "-o", str(target), "."]


def obstacle(layout: Layout, *modules: Module) -> str | None:
    """Why modules that are not built yet cannot be compiled here, or None."""
    if all(module.folder(layout).exists() for module in modules) or present("go"):
        return None
    return (
        "Go is not installed, and it compiles Kubernetes once; install the version that e2e/testbed/go names"
    )


def build(layout: Layout, module: Module, steps: Steps) -> None:
    """Compile a module unless that is done.

    Raises:
        CannotRunHere: There is no Go.
        ProgramFailed: Go failed.
    """
    folder = module.folder(layout)
    with layout.locked(f"build-{module.name}"):
        if folder.exists():
            return
        if reason := obstacle(layout, module):
            raise CannotRunHere(reason)
        layout.programs.mkdir(parents=True, exist_ok=True)
        steps.begin(f"compiling {module.name}: up to ten minutes the first time on two cores")
        with steps.timed(f"compiled {', '.join(module.programs)}"), scratch(layout) as place:
            _compile(module, place, folder)


def _compile(module: Module, place: Scratch, folder: Path) -> None:
    """Compile in a scratch folder, so that the final one is whole or absent."""
    unfinished = place.folder / module.name
    unfinished.mkdir()
    command = compile_command(module, unfinished / module.name)
    run(command, cwd=module.source, env={**place.env, "CGO_ENABLED": "0"})
    for name in module.programs:
        (unfinished / name).symlink_to(module.name)
    unfinished.rename(folder)

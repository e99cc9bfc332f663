"""Installing what the machine lacks, and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from testbed.errors import CannotRunHere
from testbed.execute import SEARCH_PATH, run
from testbed.steps import Steps

CNI_PLUGINS = Path("/usr/lib/cni")

API_PROGRAMS = {"openssl": "openssl"}
"""What an API server alone needs: program -> the package that has it in Debian and Ubuntu."""

CLUSTER_PROGRAMS = {
    **API_PROGRAMS,
    "ip": "iproute2",
    "nft": "nftables",
    "containerd": "containerd",
    "runc": "runc",
    f"{CNI_PLUGINS}/ptp": "containernetworking-plugins",
    "mmdebstrap": "mmdebstrap",
    "buildah": "buildah",
}
"""What nodes need besides."""


def present(program: str) -> bool:
    """Whether a program can be run, by its name or its path."""
    return shutil.which(program, path=SEARCH_PATH) is not None


def missing(programs: Mapping[str, str]) -> list[str]:
    """The packages of those programs that the machine lacks."""
    return sorted({package for program, package in programs.items() if not present(program)})


def obstacle(programs: Mapping[str, str]) -> str | None:
    """Why the missing packages cannot be installed, or None."""
    packages = " ".join(missing(programs))
    if not packages:
        return None
    if not present("apt-get"):
        return f"these are missing and there is no apt-get to install them with: {packages}"
    if os.geteuid() != 0:
        return f"these are missing: {packages}; install them as root (apt-get install {packages})"
    return None


def install(programs: Mapping[str, str], steps: Steps) -> None:
    """Install the missing packages with apt-get.

    Raises:
        CannotRunHere: They cannot be installed here.
        ProgramFailed: apt-get failed.
    """
    if reason := obstacle(programs):
        raise CannotRunHere(reason)
    if not (packages := missing(programs)):
        return
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    steps.begin(f"installing {' '.join(packages)}")
    with steps.timed(f"installed {' '.join(packages)}"):
        run(["apt-get", "update", "-qq"], env=env)
        run(["apt-get", "install", "-qq", "-y", "--no-install-recommends", *packages], env=env)

"""The system's own distribution and where apt gets its packages from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError
from testbed.execute import run

OS_RELEASE = Path("/etc/os-release")
TARGET_FORMAT = "$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(CODENAME)"
OPTION_FORMAT = '%F "%v";%n'
CARRIED_OPTIONS = ("Acquire::http", "Acquire::Check-", "Acquire::Max-ValidTime")


@dataclass(frozen=True)
class Release:
    """A distribution's release: ``debian``, ``bookworm``."""

    distribution: str
    codename: str


def read_release(os_release: str) -> Release:
    """The release by the content of ``/etc/os-release``."""
    fields = dict(line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    return Release(fields.get("ID", "").strip('"'), fields.get("VERSION_CODENAME", "").strip('"'))


def this_release() -> Release:
    """The release of this system."""
    return read_release(OS_RELEASE.read_text())


def package_sources(targets: str, release: Release) -> list[str]:
    """A distribution's own package sources, as one-line entries of ``sources.list``.

    Args:
        targets: Output of ``apt-get indextargets`` in the format ``TARGET_FORMAT``.
        release: Whose sources are wanted; others (of third parties) are left out.

    Raises:
        TestbedError: There are none.
    """
    entries = set()
    for line in targets.splitlines():
        origin, uri, suite, component, codename = line.split("|")
        if origin.lower() == release.distribution and codename.startswith(release.codename):
            entries.add(f"deb {uri} {suite} {component}")
    if not entries:
        name = f"{release.distribution} {release.codename}"
        raise TestbedError(f"apt knows no package source of {name}; run apt-get update")
    return sorted(entries)


def this_systems_sources() -> list[str]:
    """The package sources that apt uses here."""
    targets = run(["apt-get", "indextargets", "--format", TARGET_FORMAT, "Created-By: Packages"])
    return package_sources(targets, this_release())


def carried_options(dump: str) -> list[str]:
    """Of apt's configuration: how it reaches its sources, and whether it believes the clock.

    Args:
        dump: Output of ``apt-config dump`` in the format ``OPTION_FORMAT``.
    """
    return [
        line for line in dump.splitlines() if line.startswith(CARRIED_OPTIONS) and not line.endswith(' "";')
    ]


def this_systems_options() -> list[str]:
    """The options that apt uses here."""
    return carried_options(run(["apt-config", "dump", "--format", OPTION_FORMAT, "Acquire"]))

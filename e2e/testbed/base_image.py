"""The image that all others here are built on: the machine's own distribution with Python and pip.

``mmdebstrap`` makes it from the system's own package sources. A pod may
therefore use a virtual environment of the machine's ``/usr/bin/python3`` by
hostPath. It serves as the pods' sandbox image too.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from testbed.confined import CONFINED
from testbed.distribution import OS_RELEASE, this_release, this_systems_options, this_systems_sources
from testbed.execute import run
from testbed.layout import Layout
from testbed.programs import politeness
from testbed.scratch import scratch
from testbed.steps import Steps

INCLUDED = ("python3-pip", "ca-certificates", "libnuma1")
# Debian's pip refuses to install into the system's Python; in an image that is what one wants.
HOOK = "rm -f $1/usr/lib/python3*/EXTERNALLY-MANAGED"
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def name() -> str:
    """The image's name; its tag changes with its recipe. No registry is ever asked for ``localhost/``."""
    recipe = "\0".join((*INCLUDED, HOOK, json.dumps(image_config("")), OS_RELEASE.read_text()))
    return f"localhost/testbed/base:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def archive(layout: Layout) -> Path:
    """The file with the image."""
    return layout.images / f"base-{name().rpartition(':')[2]}.tar"


def make(layout: Layout, steps: Steps) -> None:
    """Make the image's archive unless that is done.

    Raises:
        TestbedError: apt does not know the distribution's package sources.
        ProgramFailed: mmdebstrap failed.
    """
    with layout.locked("base-image"):
        if archive(layout).exists():
            return
        layout.images.mkdir(parents=True, exist_ok=True)
        steps.begin("making the base image: about a minute")
        with steps.timed(f"made the base image {name()}"), scratch(layout) as place:
            root, unfinished = place.folder / "root.tar", place.folder / "image.tar"
            run(bootstrap_command(root, this_systems_sources(), this_systems_options()), env=place.env)
            write_image(unfinished, root, name())
            unfinished.rename(archive(layout))


def bootstrap_command(root: Path, sources: Iterable[str], options: Iterable[str]) -> list[str]:
    """The command that writes the image's files to a tar archive.

    Args:
        root: The archive to write.
        sources: Entries of ``sources.list``.
        options: Entries of ``apt.conf``.
    """
    return [
        *politeness(),
        *CONFINED,
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(INCLUDED)}"),
        *(f"--aptopt={option}" for option in options),
        f"--customize-hook={HOOK}",
        *(this_release().codename, str(root)),
        *sources,
    ]


def image_config(layer_digest: str) -> Mapping[str, object]:
    """The configuration of an image of one layer that sleeps unless told otherwise."""
    return {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        # buildah wants one entry per layer.
        "history": [{"created_by": "mmdebstrap"}],
        "config": {"Cmd": ["sleep", "infinity"], "Env": [SEARCH_PATH]},
    }


def write_image(target: Path, layer: Path, image_name: str) -> None:
    """Write an image of one layer as an archive that containerd and buildah read.

    Args:
        target: The file to write.
        layer: Tar archive of the image's files.
        image_name: The image's name and tag.
    """
    with open(layer, "rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    manifest = [{"Config": "config.json", "RepoTags": [image_name], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as tar:
        tar.add(layer, "layer.tar")
        _add(tar, "config.json", image_config(digest))
        _add(tar, "manifest.json", manifest)


def _add(tar: tarfile.TarFile, member: str, content: object) -> None:
    encoded = json.dumps(content).encode()
    entry = tarfile.TarInfo(member)
    entry.size = len(encoded)
    tar.addfile(entry, io.BytesIO(encoded))

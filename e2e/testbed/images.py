"""Building container images from Dockerfiles, without a registry and without a daemon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed import base_image
from testbed.confined import CONFINED
from testbed.errors import TestbedError
from testbed.execute import run
from testbed.layout import Layout
from testbed.programs import politeness
from testbed.scratch import Scratch

LOCAL = "localhost/"


def check_name(name: str) -> str:
    """An image name that a node never looks for in a registry.

    Raises:
        TestbedError: It does not start with ``localhost/`` or has no tag.
    """
    if not name.startswith(LOCAL) or ":" not in name:
        raise TestbedError(f"image name {name!r}: write {LOCAL}NAME:TAG, since nodes have no registry")
    return name


def builder(layout: Layout, run_root: Path) -> list[str]:
    """The words before buildah's commands; its store is kept, its state of this run is not."""
    store = (
        "--root",
        str(layout.images / "buildah"),
        "--runroot",
        str(run_root),
        "--storage-driver",
        "overlay",
    )
    return [*politeness(), *CONFINED, "buildah", *store]


def build_options(name: str, dockerfile: Path, arguments: Sequence[str]) -> list[str]:
    """The options of a build.

    Args:
        name: The image's name and tag.
        dockerfile: The Dockerfile.
        arguments: Build arguments, ``NAME=VALUE``; ``BASE_IMAGE`` is set unless it is one of them.
    """
    every = (f"BASE_IMAGE={base_image.name()}", *arguments)
    return [
        *("--isolation", "chroot", "--network", "host", "--pull-never", "--layers", "--force-rm"),
        *(word for argument in every for word in ("--build-arg", argument)),
        *("--file", str(dockerfile), "--tag", name),
    ]


def build(
    layout: Layout, place: Scratch, name: str, folder: Path, dockerfile: Path, arguments: Sequence[str]
) -> Path:
    """Build a Dockerfile into an image archive; only images on this machine may be its base.

    Args:
        layout: Where the builder's store lies.
        place: Where the archive is written.
        name: The image's name and tag.
        folder: The build context.
        dockerfile: The Dockerfile.
        arguments: Build arguments, ``NAME=VALUE``.

    Returns:
        The archive.

    Raises:
        TestbedError: The name is not a local one.
        ProgramFailed: The build failed; the message has its last lines.
    """
    options = build_options(check_name(name), dockerfile, arguments)
    buildah = builder(layout, place.folder / "run")
    archive = place.folder / "image.tar"
    with layout.locked("image-build"):
        if not run([*buildah, "images", "--quiet", "--filter", f"reference={base_image.name()}"]):
            base = f"docker-archive:{base_image.archive(layout)}"
            run([*buildah, "pull", "--quiet", base], env=place.env)
        run([*buildah, "bud", *options, folder], env=place.env)
        run([*buildah, "push", "--quiet", name, f"docker-archive:{archive}:{name}"], env=place.env)
        run([*buildah, "rmi", "--prune"], env=place.env)
    return archive

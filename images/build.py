"""Builds the images of worker, router and operator.

    python images/build.py --registry registry.example.com/team --push    # with Docker
    python images/build.py --tool podman
    python images/build.py --testbed                                      # in e2e/testbed, without a network

Each Dockerfile gets the same small context: the project's wheel and the requirement files. For the test bed
it also holds the wheels of all dependencies.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

ROOT: Final = Path(__file__).resolve().parents[1]
IMAGES: Final = ("worker", "router", "operator")
CONTEXT: Final = ROOT / "build/images"
LOCAL: Final = "localhost"
MOUNTED_ENGINE: Final = f"{LOCAL}/mmdisagg-mounted-engine:1"


class Builder(Protocol):
    """What makes an image of a Dockerfile."""

    def build(self, name: str, dockerfile: str, arguments: Mapping[str, str]) -> None:
        """Build an image.

        Args:
            name: its full name.
            dockerfile: the Dockerfile's name in this folder, without its ending.
            arguments: build arguments; `BASE_IMAGE` is what to build on, instead of what the Dockerfile or
                the builder says.
        """


@dataclass(frozen=True)
class Docker:
    """Docker, or a tool that takes the same commands.

    Attributes:
        tool: its command.
    """

    tool: str = "docker"

    def build(self, name: str, dockerfile: str, arguments: Mapping[str, str]) -> None:
        """Build an image; see `Builder`."""
        chosen = [word for pair in _pairs(arguments) for word in ("--build-arg", pair)]
        _run(self.tool, "build", "--file", _file(dockerfile), *chosen, "--tag", name, CONTEXT)

    def push(self, name: str) -> None:
        """Push an image to its registry."""
        _run(self.tool, "push", name)


class Testbed:
    """The test bed's builder: on its own base image, from the wheels in the context alone."""

    def build(self, name: str, dockerfile: str, arguments: Mapping[str, str]) -> None:
        """Build an image and load it on the nodes; see `Builder`."""
        given = _pairs({"PIP_NO_INDEX": "1", **arguments})
        words = ("build", name, CONTEXT, *given, "--file", _file(dockerfile))
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "e2e")}
        _run("/usr/bin/python3", "-m", "testbed", *words, environment=environment)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the images that the command line asks for."""
    options = _parser().parse_args(arguments)
    registry = LOCAL if options.testbed else options.registry
    names = {image: image_name(image, registry, options.tag) for image in options.images}
    make_context(CONTEXT, names, with_dependencies=options.testbed)
    docker = Docker(options.tool)
    builder: Builder = Testbed() if options.testbed else docker
    build_images(builder, names, mounted_engine=options.testbed or options.mounted_engine)
    for name in names.values() if options.push else ():
        docker.push(name)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python images/build.py", description="Build the container images.")
    parser.add_argument(
        "images", nargs="*", default=IMAGES, metavar="IMAGE", help=f"default: {' '.join(IMAGES)}"
    )
    parser.add_argument("--registry", default="", help="goes before the images' names")
    parser.add_argument("--tag", default=version(), help="default: the project's version, %(default)s")
    parser.add_argument("--tool", default="docker", help="docker, or what takes the same commands")
    parser.add_argument("--push", action="store_true", help="push them too")
    parser.add_argument(
        "--mounted-engine", action="store_true", help="a worker without vLLM, which a volume at /engine holds"
    )
    parser.add_argument(
        "--testbed",
        action="store_true",
        help="build in the test bed, with a mounted engine, and load on its nodes",
    )
    return parser


def version() -> str:
    """Return the project's version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def image_name(image: str, registry: str, tag: str) -> str:
    """Return the full name of an image."""
    return f"{registry.rstrip('/')}/mmdisagg-{image}:{tag}".removeprefix("/")


def make_context(folder: Path, images: Iterable[str], *, with_dependencies: bool) -> None:
    """Make the build context.

    Args:
        folder: where; wheels of dependencies that are there already are used again.
        images: images that it is for.
        with_dependencies: whether it holds the dependencies' wheels, for this machine's /usr/bin/python3.
    """
    wheels, requirements = folder / "wheels", folder / "requirements"
    requirements.mkdir(parents=True, exist_ok=True)
    for old in wheels.glob("mmdisagg-*.whl"):
        old.unlink()
    hatchling = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", wheels)
    _run(*hatchling)
    for image in images:
        file = shutil.copy(ROOT / f"requirements/{image}.txt", requirements)
        if with_dependencies:
            _run(
                *("/usr/bin/python3", "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"),
                *("--only-binary", ":all:", "--dest", wheels, "-r", file),
            )


def build_images(builder: Builder, names: Mapping[str, str], *, mounted_engine: bool) -> None:
    """Build images from the context.

    Args:
        builder: what builds them.
        names: names to give, by image.
        mounted_engine: whether the worker's engine comes by a volume (mounted-engine.Dockerfile).
    """
    for image, name in names.items():
        arguments = {"CONTENT": content_digest(CONTEXT, image)}
        if image == "worker" and mounted_engine:
            builder.build(MOUNTED_ENGINE, "mounted-engine", {})
            arguments["BASE_IMAGE"] = MOUNTED_ENGINE
        builder.build(name, image, arguments)


def content_digest(context: Path, image: str) -> str:
    """Return the hash of what an image takes from the context.

    A Dockerfile's RUN sees the context by a mount. Buildah and podman do not look into mounts when they judge
    whether a layer of an earlier build still holds; they do look at build arguments.
    """
    digest = hashlib.sha256()
    (wheel,) = (context / "wheels").glob("mmdisagg-*.whl")
    for file in (wheel, context / f"requirements/{image}.txt"):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _pairs(arguments: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in arguments.items()]


def _file(name: str) -> Path:
    return ROOT / f"images/{name}.Dockerfile"


def _run(*words: object, environment: Mapping[str, str] = os.environ) -> None:
    subprocess.run(list(map(str, words)), cwd=ROOT, env=environment, check=True)  # noqa: S603 - a developer's own words


if __name__ == "__main__":
    sys.exit(main())

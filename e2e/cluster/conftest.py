"""Fixtures of the cluster tier: nodes with this project's images, the operator, a deployment with real engines.

By default the cluster is the test bed (e2e/testbed): it is brought up, gets images of this very tree, and is
taken down unless it was up before. `MMDISAGG_E2E_KUBECONFIG` names any other cluster with two nodes that take
pods and with the images loaded; kubectl and helm then come from PATH:

| variable                | default      |                                                                     |
|-------------------------|--------------|---------------------------------------------------------------------|
| `MMDISAGG_E2E_REGISTRY` | `localhost`  | what stands before the images' names                                |
| `MMDISAGG_E2E_TAG`      | the version  | their tag; the worker image is there with `TAG-next` too            |
| `MMDISAGG_E2E_ENGINE`   |              | folder of the nodes with the engine, for a worker image without one |
| `MMDISAGG_E2E_MODELS`   | `/models`    | folder of the nodes with this repository's models                   |
| `MMDISAGG_E2E_SHARED`   | `/embeddings`| folder that all nodes share and everyone may write to               |
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(Path(__file__).parent),
    *(str(ROOT / part) for part in ("e2e", "e2e/local", "images", "operator/tests")),
]

import build  # noqa: E402
from deployed import Deployed, Places, shapes  # noqa: E402
from installed import Installed  # noqa: E402
from kubectl import Kubectl, Outside  # noqa: E402
from restricted_pods import Pods  # noqa: E402

import testbed  # noqa: E402
from mmdisagg_cli.engine_slots import SLOTS, EngineSlots  # noqa: E402
from testbed import programs  # noqa: E402
from testbed.cluster import Cluster  # noqa: E402
from testbed.layout import Layout  # noqa: E402
from testbed.steps import Steps  # noqa: E402

TAG = os.environ.get("MMDISAGG_E2E_TAG", build.version())
NEXT = f"{TAG}-next"
"""Tag of the same worker image under another name, for a change of the image."""
NAMESPACE = "mmdisagg-e2e"
REQUEST_SECONDS = 120
"""The longest request; a pod that must end has as long to finish what it does."""
FIRST_NODES_GPUS = 3
"""One each for encode and decode, and one for the yardstick, later for a second decode."""


ORDER = ("advice", "images", "answers", "installed", "changes", "uninstall")
"""The modules, so that the first ones have their say while engines load, and few engines start twice."""


def pytest_collection_modifyitems(items):
    own = [item for item in items if item.path.parent == Path(__file__).parent]
    for item in own:
        if not any(item.iter_markers("timeout")):
            item.add_marker(pytest.mark.timeout(900))
    own.sort(key=lambda item: ORDER.index(item.path.stem.removeprefix("test_")))
    places = [number for number, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    for place, item in zip(places, own, strict=True):
        items[place] = item


@dataclass(frozen=True)
class Nodes:
    """A cluster as the suite needs it."""

    client: Callable[[str], tuple[str, ...]]
    models: Path
    engine: Path | None
    shared: Path


@pytest.fixture(scope="session")
def image() -> Callable[..., str]:
    """The name of one of the project's images."""
    registry = os.environ.get("MMDISAGG_E2E_REGISTRY", build.LOCAL)
    return lambda name, tag=TAG: build.image_name(name, registry, tag)


@pytest.fixture(scope="session")
def next_tag() -> str:
    """The tag of the same worker image under another name."""
    return NEXT


@pytest.fixture(scope="session")
def slots() -> Iterator[None]:
    """All engine slots of this machine, for the pods."""
    said: set[str] = set()
    taken = EngineSlots().acquire(
        SLOTS, "cluster tier", waiting=lambda line: line in said or (said.add(line), print(line))
    )
    yield
    for slot in taken:
        slot.release()


@pytest.fixture(scope="session")
def nodes(image, slots) -> Iterator[Nodes]:
    """The cluster, with the images on its nodes."""
    given = os.environ.get("MMDISAGG_E2E_KUBECONFIG")
    if given:
        yield _foreign(given)
        return
    layout = Layout.from_environment()
    if reason := testbed.capable(layout):
        if os.environ.get("CI"):
            pytest.exit(f"the cluster tier {reason}", returncode=1)
        pytest.skip(reason)
    cluster = Cluster(layout, Steps())
    was_up = cluster.whole()
    try:
        cluster.up(2, 4)
        with tempfile.TemporaryDirectory(prefix="mmdisagg-embeddings-") as shared:
            Path(shared).chmod(0o1777)
            _build_images(cluster, image, Path(shared))
            own = f"--kubeconfig={cluster.plane.kubeconfig()}"
            yield Nodes(
                lambda program: (str(programs.program(layout, program)), own),
                ROOT / "models",
                (ROOT / ".venv").resolve(),
                Path(shared),
            )
    finally:
        if not was_up:
            cluster.down()


def _foreign(kubeconfig: str) -> Nodes:
    def path(name: str, default: str = "") -> str:
        return os.environ.get(f"MMDISAGG_E2E_{name}", default)

    return Nodes(
        lambda program: (shutil.which(program) or program, f"--kubeconfig={kubeconfig}"),
        Path(path("MODELS", "/models")),
        Path(path("ENGINE")) if path("ENGINE") else None,
        Path(path("SHARED", "/embeddings")),
    )


def _build_images(cluster: Cluster, image: Callable[..., str], folder: Path) -> None:
    """Build them of this tree: an older image would prove nothing about it."""
    subprocess.run(
        [sys.executable, str(ROOT / "images/build.py"), "--testbed", f"--tag={TAG}"], check=True, cwd=ROOT
    )
    dockerfile = folder / "Dockerfile"
    dockerfile.write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nLABEL mmdisagg.io/again=1\n")
    cluster.build(image("worker", NEXT), folder, dockerfile, [f"BASE_IMAGE={image('worker')}"])
    dockerfile.unlink()


@pytest.fixture(scope="session")
def kubectl(nodes) -> Kubectl:
    """kubectl as the cluster's administrator, in no namespace."""
    return Kubectl(nodes.client("kubectl"))


@pytest.fixture(scope="session")
def operator(nodes, kubectl, image) -> Iterator[Installed]:
    """The operator, installed by Helm for the whole cluster, as a user that no password file knows."""
    installed = Installed(nodes.client("helm"), kubectl, image)
    installed.remove()
    installed.install()
    yield installed
    installed.remove()


@pytest.fixture(scope="session")
def namespace(nodes, kubectl, operator) -> Iterator[Kubectl]:
    """kubectl in the namespace of the deployments, with the volume for embeddings."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "embeddings", "namespace": NAMESPACE},
        "spec": _storage("", volumeName=NAMESPACE, resources={"requests": {"storage": "1Gi"}}),
    }
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": NAMESPACE},
        "spec": _storage(
            "",
            capacity={"storage": "1Gi"},
            claimRef={"namespace": NAMESPACE, "name": "embeddings"},
            hostPath={"path": str(nodes.shared), "type": "Directory"},
        ),
    }
    _forget(kubectl)
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, volume, claim)
    yield kubectl.inside(NAMESPACE)
    _forget(kubectl)


def _storage(storage_class: str, **more: object) -> dict[str, object]:
    return {"accessModes": ["ReadWriteMany"], "storageClassName": storage_class, **more}


def _forget(kubectl: Kubectl) -> None:
    # A namespace whose pods have a long grace period looks again only after half of it.
    words = ("--all", "--force", "--grace-period=0", "--ignore-not-found")
    kubectl("delete", "deployments,pods", f"--namespace={NAMESPACE}", *words)
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait", "--timeout=240s")
    kubectl("delete", "persistentvolume", NAMESPACE, "--ignore-not-found", "--wait")


@pytest.fixture(scope="session")
def places(nodes, kubectl) -> Places:
    """Two nodes that take pods, with GPUs that are numbers, and the folders."""
    free = [
        node["metadata"]["name"]
        for node in kubectl.items("nodes")
        if not any(taint["effect"] == "NoSchedule" for taint in node["spec"].get("taints", ()))
    ]
    assert len(free) >= 2, f"two nodes that take pods are needed: {free}"
    first, second, *_ = sorted(free)
    for node, gpus in ((first, FIRST_NODES_GPUS), (second, 1)):
        amounts = {"capacity": {"nvidia.com/gpu": str(gpus)}, "allocatable": {"nvidia.com/gpu": str(gpus)}}
        patch = f"--patch={json.dumps({'status': amounts})}"
        kubectl("patch", "node", node, "--subresource=status", "--type=merge", patch)
    return Places(nodes.models, nodes.engine, first, second)


@pytest.fixture(scope="session")
def applied(namespace, places) -> Deployed:
    """Encode, prefill and decode of the trained tiny model; prefill is on the other node. Not waited for."""
    roles = {"encode": places.first, "prefill": places.second, "decode": places.first}
    router = {"requestTimeoutSeconds": REQUEST_SECONDS}
    made = shapes("shapes", places, roles, router=router, rollout={"strategy": "Recreate"})
    deployed = Deployed(namespace, made)
    deployed.apply()
    return deployed


@pytest.fixture(scope="session")
def applied_yardstick(namespace, places) -> Deployed:
    """One engine that does everything: no connector is configured in it. Not waited for."""
    router = {"requestTimeoutSeconds": REQUEST_SECONDS}
    deployed = Deployed(namespace, shapes("alone", places, {"decode": places.first}, router=router))
    deployed.apply()
    return deployed


@pytest.fixture(scope="session")
def demo(applied, applied_yardstick) -> Deployed:
    """The deployment, which serves."""
    applied.serves()
    return applied


@pytest.fixture(scope="session")
def yardstick(applied, applied_yardstick) -> Deployed:
    """The aggregated engine, which serves."""
    applied_yardstick.serves()
    return applied_yardstick


@pytest.fixture
def outside(demo) -> Iterator[Outside]:
    """The way to the deployment's router from outside of the cluster."""
    with Outside(demo.kubectl, "shapes-router") as way:
        yield way


@pytest.fixture(scope="session")
def pods(namespace) -> Pods:
    """Runs pods of one command."""
    return Pods(namespace)


@pytest.fixture(scope="session")
def engine(nodes) -> Path:
    """The folder with vLLM on the nodes, for worker images without one."""
    if nodes.engine is None:
        pytest.skip("MMDISAGG_E2E_ENGINE is not set: the image holds its engine")
    return nodes.engine

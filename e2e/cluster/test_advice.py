"""What `kubectl describe` tells a newcomer about each way in which pods do not come up: cause and remedy."""

import pytest
from deployed import Deployed, changed, shapes

MISSING_CLAIM = {
    "embedding": "SharedVolume",
    "sharedVolume": {"persistentVolumeClaim": {"claimName": "absent"}},
}
HUB = {
    "source": "Hub",
    "path": None,
    "volume": None,
    "name": "org/model",
    "tokenSecretRef": {"name": "hub", "key": "token"},
}
STRANGE = {"volume": {"hostPath": None, "configMap": {"name": "strange-model"}}}
GPU = "nvidia.com/gpu"


def decode(**fields):
    return {"decode": fields}


# Name: the change that makes the trouble, the reason, the cause and the remedy.
TROUBLES = {
    "image": (
        {"image": "localhost/mmdisagg-worker:absent"},
        ("ImagePullFailed", "mmdisagg-worker:absent", "Check the image's name and tag"),
    ),
    "secret": (
        {"model": HUB},
        ("MissingSecret", "hub", "kubectl create secret generic hub"),
    ),
    "gpus": (
        decode(resources={"limits": {GPU: 64}}),
        ("InsufficientGPU", f"Insufficient {GPU}", "Free or add GPUs, or lower spec.decode.replicas"),
    ),
    "nowhere": (
        decode(scheduling={"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}),
        ("Unschedulable", "didn't match Pod's node affinity/selector", "Check spec.decode.scheduling"),
    ),
    "claim": (
        {"encode": {}, "handoff": MISSING_CLAIM},
        ("VolumePending", '"absent" not found', "kubectl describe pvc"),
    ),
    "memory": (
        decode(resources={"limits": {"memory": "100Mi"}}),
        ("OutOfMemory", "out of memory", "Raise the memory limit in spec.decode.resources"),
    ),
    "family": (
        {"model": STRANGE},
        ("UnknownFamily", "Qwen2.5-VL", "Serve a model of a known family"),
    ),
    "argument": (
        {"engine": {"extraArgs": ["--no-such-flag"]}},
        ("CrashLoop", "--no-such-flag", "kubectl logs -n mmdisagg-e2e"),
    ),
}


@pytest.fixture(scope="module")
def troubled(applied, applied_yardstick, namespace, places):
    """One deployment for each trouble, all at once and while the good ones load."""
    config = {
        "config.json": '{"model_type": "strange", "architectures": ["StrangeForConditionalGeneration"]}'
    }
    namespace.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "strange-model"}, "data": config}
    )
    # GPUs are there for the good ones only.
    roles, free = {"decode": places.second}, {"decode": {"resources": {"limits": {GPU: None}}}}
    deployed = {}
    for name, (change, _) in TROUBLES.items():
        resource = changed(shapes(f"bad-{name}", places, roles, **free), **change)
        deployed[name] = Deployed(namespace, resource)
        deployed[name].apply()
    yield deployed
    for one in deployed.values():
        one.delete()


@pytest.mark.parametrize("trouble", TROUBLES)
def test_describe_names_the_cause_and_the_remedy(troubled, trouble):
    _, (reason, cause, remedy) = TROUBLES[trouble]
    deployed = troubled[trouble]
    role = "Encode" if trouble == "claim" else "Decode"
    deployed.says(f"{role}Ready", "False", reason, seconds=180)
    described = " ".join(deployed.describe().split())
    assert cause in described
    assert remedy in described
    row = deployed.kubectl("get", "mmdd", deployed.name, "--no-headers").split()
    assert (row[0], row[-2:]) == (deployed.name, ["False", reason])
    deployed.delete()

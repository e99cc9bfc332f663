"""The Kubernetes objects of a deployment: readable goldens, and what each rule is for.

`MMDISAGG_UPDATE_GOLDENS=1 pytest operator/tests/test_plan_objects.py` writes the goldens anew; read the diff.
"""

import base64
import os
from itertools import chain
from pathlib import Path

import pytest
import yaml
from documents import document, merged

from mmdisagg_operator.api import ResourceError, Topology, load_deployment
from mmdisagg_operator.kinds import CHILDREN, kind_of
from mmdisagg_operator.plan import revision
from mmdisagg_operator.plan.objects import (
    Images,
    Seen,
    is_stage_token,
    objects,
    stage_token_secret,
    with_images,
)

GOLDENS = Path(__file__).parent / "goldens" / "objects"
GOLDEN = {
    "model": {"tokenSecretRef": {"name": "hub", "key": "token"}},
    "decode": {
        "replicas": 2,
        "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "64Gi"}},
        "scheduling": {
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
    },
}
ON_PATH = {"model": {"source": "Path", "name": None, "path": "/models/tiny"}}


def wish(topology=Topology.E_P_D, change=None):
    made = document(topology, change)
    made["metadata"] |= {"namespace": "ns", "uid": "uid-of-demo"}
    return with_images(load_deployment(made), Images("worker:1", "router:1"))


def manifests(topology=Topology.E_P_D, change=None, **seen):
    return objects(wish(topology, change), Seen("uid-of-token", **seen))


def named(found, kind, name):
    return next(m for m in found if (m["kind"], m["metadata"]["name"]) == (kind, name))


def workload(role, change=None, topology=Topology.E_P_D):
    return named(manifests(topology, change), "Deployment", f"demo-{role}")


def pod(role, change=None, topology=Topology.E_P_D):
    return workload(role, change, topology)["spec"]["template"]["spec"]


def container(role, change=None, topology=Topology.E_P_D):
    (only,) = pod(role, change, topology)["containers"]
    return only


def environment(role, change=None, topology=Topology.E_P_D):
    return {variable["name"]: variable.get("value") for variable in container(role, change, topology)["env"]}


def mounts(role, change=None, topology=Topology.E_P_D):
    volumes = {volume["name"]: volume for volume in pod(role, change, topology)["volumes"]}
    return {
        mount["mountPath"]: (volumes[mount["name"]], mount.get("readOnly", False))
        for mount in container(role, change, topology)["volumeMounts"]
    }


ROLES = ["encode", "prefill", "decode", "router"]
ENGINES = ROLES[:3]


class Readable(yaml.SafeDumper):
    """Writes every value out."""

    def ignore_aliases(self, data):
        return True


@pytest.mark.parametrize("topology", Topology)
def test_the_objects_are_the_golden_ones(topology):
    file = GOLDENS / f"{topology.replace('/', '-').lower()}.yaml"
    planned = manifests(topology, GOLDEN)
    if os.environ.get("MMDISAGG_UPDATE_GOLDENS"):
        GOLDENS.mkdir(exist_ok=True)
        file.write_text(yaml.dump_all(planned, Dumper=Readable, sort_keys=False, width=10000))
    assert list(yaml.safe_load_all(file.read_text())) == list(planned)


@pytest.mark.parametrize("topology", Topology)
def test_every_object_is_of_a_known_kind_in_the_deployments_namespace_and_owned_by_it(topology):
    found = manifests(topology)
    for manifest in found:
        assert kind_of(manifest) in CHILDREN
        metadata = manifest["metadata"]
        assert metadata["namespace"] == "ns"
        assert metadata["labels"]["mmdisagg.io/deployment"] == "demo"
        (owner,) = metadata["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == ("uid-of-demo", True)
        assert "blockOwnerDeletion" not in owner
    names = [(m["kind"], m["metadata"]["name"]) for m in found]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("topology", Topology)
def test_no_secret_stands_in_any_object(topology):
    text = yaml.safe_dump_all(manifests(topology, GOLDEN))
    assert "(secret)" in text
    assert "kind: Secret\n" not in text


def test_the_longest_name_makes_names_that_services_may_have():
    made = document()
    made["metadata"] = {"name": "d" * 40, "namespace": "ns", "uid": "u"}
    deployment = with_images(load_deployment(made), Images("w", "r"))
    assert max(len(m["metadata"]["name"]) for m in objects(deployment, Seen("t"))) <= 63


@pytest.mark.case("c08")
@pytest.mark.parametrize("role", ENGINES)
def test_a_rollout_can_replace_in_place_where_no_gpu_is_spare(role):
    in_place = {"rollout": {"strategy": "Recreate"}}
    assert workload(role, in_place)["spec"]["strategy"] == {"type": "Recreate"}
    surge = workload(role)["spec"]["strategy"]
    assert surge["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": 0}


@pytest.mark.case("c08")
def test_the_router_needs_no_gpu_and_never_goes_first():
    strategy = workload("router", {"rollout": {"strategy": "Recreate"}})["spec"]["strategy"]
    assert strategy["type"] == "RollingUpdate"


@pytest.mark.case("c09")
@pytest.mark.parametrize("role", ENGINES)
def test_a_slow_load_is_no_failure_and_a_stall_no_death(role):
    made = container(role)

    def patience(probe):
        return made[probe]["periodSeconds"] * made[probe]["failureThreshold"]

    assert patience("startupProbe") >= 3600
    assert patience("livenessProbe") > 70 + made["livenessProbe"]["timeoutSeconds"]
    assert workload(role)["spec"]["progressDeadlineSeconds"] > patience("startupProbe")
    assert made["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_leaves_before_it_stops_and_drains_before_it_is_killed(role):
    change = {"router": {"requestTimeoutSeconds": 120}}
    made, args = pod(role, change), container(role, change)["args"]
    flag = "--drain-timeout" if role == "router" else "--shutdown-timeout"
    drain = int(args[args.index(flag) + 1])
    leave = container(role, change)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert drain == 120
    assert leave + drain < made["terminationGracePeriodSeconds"]


@pytest.mark.case("c12")
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_pods_address_is_known_before_the_variable_that_uses_it(role):
    names = [variable["name"] for variable in container(role)["env"]]
    assert names.index("POD_IP") < names.index("VLLM_NIXL_SIDE_CHANNEL_HOST")
    assert environment(role)["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "$(POD_IP)"
    source = next(v for v in container(role)["env"] if v["name"] == "POD_IP")["valueFrom"]
    assert source == {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}


@pytest.mark.parametrize("role", ROLES)
def test_the_stage_token_comes_from_its_secret(role):
    (variable,) = [v for v in container(role)["env"] if v["name"] == "MMDISAGG_STAGE_TOKEN"]
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "demo-stage-token", "key": "token"}}
    annotations = workload(role)["spec"]["template"]["metadata"]["annotations"]
    assert annotations["mmdisagg.io/stage-token"] == "uid-of-token"


@pytest.mark.parametrize("role", ROLES)
def test_the_hub_token_reaches_engines_only(role):
    names = [variable["name"] for variable in container(role, GOLDEN)["env"]]
    assert ("HF_TOKEN" in names) == (role in ENGINES)


@pytest.mark.case("c15")
@pytest.mark.parametrize(("change", "size"), [({}, "8Gi"), ({"decode": {"shmSize": "16Gi"}}, "16Gi")])
def test_shared_memory_is_memory_backed_and_large(change, size):
    volume, read_only = mounts("decode", change)["/dev/shm"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": size}
    assert not read_only


@pytest.mark.case("c23")
@pytest.mark.parametrize("role", ROLES)
def test_a_random_user_with_a_read_only_root_has_somewhere_to_write(role):
    made, security = pod(role)["securityContext"], container(role)["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert made["runAsNonRoot"] is True
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & made.keys()
    writable = {path for path, (_, read_only) in mounts(role).items() if not read_only}
    assert "/tmp" in writable
    if role in ENGINES:
        assert environment(role)["HOME"] in writable
        assert environment(role)["USER"]


@pytest.mark.parametrize("role", ROLES)
def test_services_do_not_become_environment_variables(role):
    assert pod(role)["enableServiceLinks"] is False


@pytest.mark.parametrize("role", ROLES)
def test_only_the_router_speaks_with_the_api_server(role):
    made = pod(role)
    assert made["automountServiceAccountToken"] is (role == "router")
    assert made.get("serviceAccountName") == ("demo-router" if role == "router" else None)


def test_the_router_may_only_read_endpoint_slices():
    (rule,) = named(manifests(), "Role", "demo-router")["rules"]
    assert rule == {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    }
    binding = named(manifests(), "RoleBinding", "demo-router")
    assert binding["roleRef"]["name"] == binding["subjects"][0]["name"] == "demo-router"


@pytest.mark.case("c14")
def test_a_role_without_replicas_leaves_the_number_to_others():
    assert "replicas" not in workload("decode")["spec"]
    assert workload("decode", {"decode": {"replicas": 0}})["spec"]["replicas"] == 0


@pytest.mark.parametrize(
    ("topology", "users"),
    [
        (Topology.E_P_D, {"encode": False, "prefill": True}),
        (Topology.E_PD, {"encode": False, "decode": True}),
        (Topology.EP_D, {}),
        (Topology.PD, {}),
    ],
)
def test_embeddings_travel_through_one_volume_that_only_encode_writes(topology, users):
    change = {"handoff": {"embedding": "SharedVolume"}} if users else {}
    found = manifests(topology, change)
    roles = [m["metadata"]["labels"]["mmdisagg.io/role"] for m in found if m["kind"] == "Deployment"]
    seen = {role: mounts(role, change, topology).get("/embeddings") for role in roles}
    assert {role: mount[1] for role, mount in seen.items() if mount} == users
    claims = [m for m in found if m["kind"] == "PersistentVolumeClaim"]
    assert len(claims) == bool(users)


def test_the_claim_is_the_users_or_made_as_wished():
    own = {"handoff": {"sharedVolume": {"persistentVolumeClaim": {"claimName": "files"}}}}
    assert [m for m in manifests(change=own) if m["kind"] == "PersistentVolumeClaim"] == []
    assert mounts("encode", own)["/embeddings"][0]["persistentVolumeClaim"] == {"claimName": "files"}
    wanted = {"handoff": {"sharedVolume": {"capacity": "5Gi", "storageClassName": "nfs"}}}
    claim = named(manifests(change=wanted), "PersistentVolumeClaim", "demo-embeddings")["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"]
    assert claim["resources"]["requests"]["storage"] == "5Gi"
    assert claim["storageClassName"] == "nfs"


def test_a_model_on_a_volume_is_read_only_and_nothing_is_downloaded():
    change = merged(ON_PATH, {"model": {"volume": {"persistentVolumeClaim": {"claimName": "weights"}}}})
    volume, read_only = mounts("decode", change)["/models/tiny"]
    assert (volume["persistentVolumeClaim"], read_only) == ({"claimName": "weights"}, True)
    assert environment("decode", change)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in environment("router", change)
    assert "HF_HUB_OFFLINE" not in environment("decode")
    assert "/models/tiny" not in mounts("router", change)


def test_users_may_bring_volumes_and_take_the_caches_place():
    change = {
        "decode": {
            "volumes": [{"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}}],
            "volumeMounts": [{"name": "weights", "mountPath": "/cache"}],
        },
        "engine": {"env": [{"name": "HF_HOME", "value": "/cache/hub"}]},
    }
    assert mounts("decode", change)["/cache"][0]["name"] == "weights"
    assert mounts("encode", change)["/cache"][0]["emptyDir"] == {}
    assert environment("decode", change)["HF_HOME"] == "/cache/hub"


def test_a_role_takes_its_closed_pod_fields():
    change = {
        "decode": {
            "labels": {"team": "vision", "app.kubernetes.io/component": "encode"},
            "annotations": {"note": "x"},
            "imagePullSecrets": [{"name": "registry"}],
            "podSecurityContext": {"fsGroup": 2000},
            "securityContext": {"readOnlyRootFilesystem": False},
            "resources": {"limits": {"nvidia.com/gpu": 2}, "requests": {"cpu": "500m"}},
            "scheduling": {
                "nodeSelector": {"pool": "gpu"},
                "tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 5}],
                "affinity": {"nodeAffinity": {}},
                "topologySpreadConstraints": [{"topologyKey": "zone"}],
                "priorityClassName": "high",
                "runtimeClassName": "nvidia",
            },
        }
    }
    template, made = workload("decode", change)["spec"]["template"], pod("decode", change)
    assert template["metadata"]["labels"]["team"] == "vision"
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] == "decode"
    assert template["metadata"]["annotations"]["note"] == "x"
    assert made["imagePullSecrets"] == [{"name": "registry"}]
    assert made["securityContext"]["fsGroup"] == 2000
    assert made["securityContext"]["runAsNonRoot"] is True
    assert container("decode", change)["securityContext"]["readOnlyRootFilesystem"] is False
    assert container("decode", change)["resources"] == {
        "limits": {"nvidia.com/gpu": "2"},
        "requests": {"cpu": "500m"},
    }
    assert made["tolerations"] == [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 5}]
    for field, value in change["decode"]["scheduling"].items():
        assert made[field] == value
    assert "nodeSelector" not in pod("encode", change)


def test_discovery_has_one_headless_service_per_role_and_revision():
    deployment = wish()
    current, old = revision(deployment.spec), "0123456789abcdef"
    found = [m for m in manifests(revisions=[old, current]) if m["kind"] == "Service"]
    marked = {
        m["metadata"]["name"]: m["metadata"]["labels"]["mmdisagg.io/revision"]
        for m in found
        if "mmdisagg.io/revision" in m["metadata"]["labels"]
    }
    assert marked == {f"demo-{role}-{found[:8]}": found for role in ENGINES for found in (current, old)}
    for service in found:
        if service["metadata"]["name"] in marked:
            chosen = service["spec"]["selector"]
            assert chosen["mmdisagg.io/revision"] == marked[service["metadata"]["name"]]
            assert service["spec"]["clusterIP"] == "None"
    assert "clusterIP" not in named(found, "Service", "demo-router")["spec"]


def test_pods_carry_what_services_and_deployments_select():
    found = manifests()
    for manifest in found:
        spec = manifest.get("spec", {})
        if manifest["kind"] == "Service":
            chosen = spec["selector"]
            pods = [m["spec"]["template"]["metadata"]["labels"] for m in found if m["kind"] == "Deployment"]
            assert sum(labels.items() >= chosen.items() for labels in pods) == 1
        if manifest["kind"] == "Deployment":
            labels = spec["template"]["metadata"]["labels"]
            assert labels.items() >= spec["selector"]["matchLabels"].items()
            assert "mmdisagg.io/revision" not in spec["selector"]["matchLabels"]


def ingress(role, topology=Topology.E_P_D):
    """Who may reach which ports: [(roles or None for everyone, [(first, last)])]."""
    policy = named(manifests(topology), "NetworkPolicy", f"demo-{role}")
    return [
        (
            [peer["podSelector"] for peer in rule.get("from", [])] or None,
            [(port["port"], port.get("endPort", port["port"])) for port in rule["ports"]],
        )
        for rule in policy["spec"]["ingress"]
    ]


@pytest.mark.parametrize("role", ENGINES)
def test_only_the_router_reaches_an_engines_http(role):
    peers = [
        selectors for selectors, ports in ingress(role) if any(first <= 8000 <= last for first, last in ports)
    ]
    assert peers == [[{"matchLabels": {"mmdisagg.io/deployment": "demo", "mmdisagg.io/role": "router"}}]]


@pytest.mark.parametrize(
    ("topology", "role", "open_to_peers"),
    [
        (Topology.E_P_D, "prefill", True),
        (Topology.E_P_D, "decode", True),
        (Topology.EP_D, "prefill", True),
        (Topology.E_P_D, "encode", False),
        (Topology.E_PD, "decode", False),
        (Topology.PD, "decode", False),
    ],
)
def test_only_peers_reach_the_ports_of_the_kv_handoff(topology, role, open_to_peers):
    reaching = [
        selectors
        for selectors, ports in ingress(role, topology)
        if any(first <= 5600 <= last for first, last in ports)
    ]
    expected = {"key": "mmdisagg.io/role", "operator": "In", "values": ["prefill", "decode"]}
    assert bool(reaching) is open_to_peers
    for (selector,) in reaching:
        assert selector["matchLabels"] == {"mmdisagg.io/deployment": "demo"}
        assert selector["matchExpressions"] == [expected]


def test_everyone_reaches_the_router():
    assert ingress("router") == [(None, [(8000, 8000)])]


@pytest.mark.parametrize("role", ROLES)
def test_a_lone_pod_can_be_moved_away(role):
    budget = named(manifests(), "PodDisruptionBudget", f"demo-{role}")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == workload(role)["spec"]["selector"]


def test_images_are_the_resources_own_or_the_operators_or_missing():
    change = {"image": "mine:1", "router": {"image": "mine:2"}}
    assert (container("decode", change)["image"], container("router", change)["image"]) == (
        "mine:1",
        "mine:2",
    )
    assert (container("decode")["image"], container("router")["image"]) == ("worker:1", "router:1")
    with pytest.raises(ResourceError) as error:
        with_images(load_deployment(document()), Images())
    assert [problem.path for problem in error.value.problems] == ["spec.image", "spec.router.image"]


def test_a_new_default_image_is_a_new_revision():
    bare = load_deployment(document())
    old, new = (with_images(bare, Images(worker, "r")) for worker in ("w:1", "w:2"))
    assert revision(old.spec) != revision(new.spec)


def test_the_stage_token_secret_is_immutable_and_recognised():
    secret = stage_token_secret(wish(), "t" * 32)
    assert secret["immutable"] is True
    assert base64.b64decode(secret["data"]["token"]) == b"t" * 32
    assert is_stage_token(secret)


@pytest.mark.parametrize("data", [None, {}, {"token": ""}, {"token": "c2hvcnQ="}, {"token": "%%%"}])
def test_anything_else_is_no_stage_token(data):
    assert not is_stage_token({"data": data})


def test_the_rendered_plan_is_there_to_read():
    data = named(manifests(), "ConfigMap", "demo-plan")["data"]
    assert set(data) == {f"{role}.yaml" for role in ROLES}
    args = yaml.safe_load(data["decode.yaml"])["args"]
    assert args == container("decode")["args"]


@pytest.mark.parametrize("topology", Topology)
def test_what_is_wanted_holds_no_empty_values_that_the_api_server_would_drop(topology):
    def values(node, path=""):
        yield path, node
        inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        yield from chain.from_iterable(values(child, f"{path}.{name}") for name, child in inside)

    for manifest in manifests(topology):
        for path, value in values(manifest):
            assert value not in (None, "", []), path
            assert value != {} or path.endswith("emptyDir"), path

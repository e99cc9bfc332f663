"""The operator's chart: what each value changes, and which values it refuses."""

import pytest
import yaml
from chart import ROOT, contains, nested, verbs

from mmdisagg_operator.api import load_deployment
from mmdisagg_operator.kinds import CHILDREN, LEASE, POD, RESOURCE, SECRET
from mmdisagg_operator.plan.objects import Images, Seen, objects, with_images
from mmdisagg_operator.settings import parse, settings_from

CRD = yaml.safe_load((ROOT / "crds/mmdisagg.io_multimodaldisaggdeployments.yaml").read_text())
NAME = "demo-mmdisagg-operator"
DIGEST = "sha256:" + "ab" * 32


def pod(rendered):
    return rendered.one("Deployment")["spec"]["template"]["spec"]


def container(rendered):
    (only,) = pod(rendered)["containers"]
    return only


def settings(rendered):
    """What the operator itself reads from the arguments that the chart gives it."""
    return settings_from(parse(container(rendered)["args"]), {})


def test_it_has_nothing_to_lint(operator_chart):
    assert "0 chart(s) failed" in operator_chart.helm.must("lint", "--strict", operator_chart.folder)


def test_by_default_it_serves_the_cluster(operator_chart):
    rendered = operator_chart.render()
    assert rendered.kinds() == {
        "CustomResourceDefinition",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "Service",
        "Deployment",
    }
    chosen = settings(rendered)
    assert chosen.namespaces == ()
    assert chosen.lease_name == NAME
    assert chosen.images == Images("mmdisagg-worker:0.1.0", "mmdisagg-router:0.1.0")
    assert chosen.port == container(rendered)["ports"][0]["containerPort"]


def test_every_namespaced_object_says_where_it_lives(operator_chart):
    clusterwide = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    for one in operator_chart.render({"metrics": {"serviceMonitor": {"enabled": True}}}):
        assert (one["metadata"].get("namespace") == "sys") == (one["kind"] not in clusterwide), one


def test_selectors_select_the_pods(operator_chart):
    rendered = operator_chart.render(
        {"podLabels": {"team": "vision"}, "metrics": {"serviceMonitor": {"enabled": True}}}
    )
    labels = rendered.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "vision"
    assert labels.items() >= rendered.one("Deployment")["spec"]["selector"]["matchLabels"].items()
    service = rendered.one("Service")
    assert labels.items() >= service["spec"]["selector"].items()
    monitored = rendered.one("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert service["metadata"]["labels"].items() >= monitored.items()


class TestCrd:
    def test_it_is_the_generated_one(self, operator_chart):
        rendered = operator_chart.render().one("CustomResourceDefinition")
        metadata = rendered.pop("metadata")
        assert metadata["name"] == CRD["metadata"]["name"]
        assert rendered == {key: value for key, value in CRD.items() if key != "metadata"}

    def test_it_is_kept_unless_told_otherwise(self, operator_chart):
        kept = operator_chart.render().one("CustomResourceDefinition")["metadata"]
        assert kept["annotations"] == {"helm.sh/resource-policy": "keep"}
        mortal = operator_chart.render({"crds": {"keep": False}}).one("CustomResourceDefinition")["metadata"]
        assert "annotations" not in mortal

    def test_it_may_be_left_out(self, operator_chart):
        assert "CustomResourceDefinition" not in operator_chart.render({"crds": {"enabled": False}}).kinds()

    def test_it_is_a_template_so_that_an_upgrade_changes_it(self, operator_chart):
        assert not (operator_chart.folder / "crds").exists()


class TestImages:
    @pytest.mark.parametrize(
        ("values", "operator", "worker"),
        [
            ({}, "mmdisagg-operator:0.1.0", "mmdisagg-worker:0.1.0"),
            (
                {"registry": "reg.test/a/"},
                "reg.test/a/mmdisagg-operator:0.1.0",
                "reg.test/a/mmdisagg-worker:0.1.0",
            ),
            ({"image": {"tag": "x"}}, "mmdisagg-operator:x", "mmdisagg-worker:0.1.0"),
            ({"workerImage": {"digest": DIGEST}}, "mmdisagg-operator:0.1.0", f"mmdisagg-worker@{DIGEST}"),
        ],
    )
    def test_names(self, operator_chart, values, operator, worker):
        rendered = operator_chart.render(values)
        assert container(rendered)["image"] == operator
        assert settings(rendered).images.worker == worker

    def test_without_repositories_the_operator_has_no_defaults(self, operator_chart):
        values = {"workerImage": {"repository": ""}, "routerImage": {"repository": ""}}
        assert settings(operator_chart.render(values)).images == Images()


class TestRights:
    def test_namespaces_get_a_role_each_and_the_cluster_none(self, operator_chart):
        rendered = operator_chart.render({"namespaces": ["red", "blue"]}, "--set=crds.enabled=false")
        assert not {kind for kind in rendered.kinds() if kind.startswith("Cluster")}
        granted = {o["metadata"]["namespace"] for o in rendered if o["kind"] == "Role"}
        assert granted == {"red", "blue", "sys"}
        bound = [o for o in rendered if o["kind"] == "RoleBinding"]
        account = rendered.one("ServiceAccount")["metadata"]
        for binding in bound:
            assert binding["subjects"] == [
                {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
            ]
        assert settings(rendered).namespaces == ("red", "blue")

    def test_both_ways_grant_the_same(self, operator_chart):
        everywhere = operator_chart.render().one("ClusterRole", NAME)
        (one,) = (
            o
            for o in operator_chart.render({"namespaces": ["red"]})
            if o["metadata"].get("namespace") == "red" and o["kind"] == "Role"
        )
        assert one["rules"] == everywhere["rules"]

    def test_they_are_what_the_code_needs_and_no_more(self, operator_chart):
        rules = operator_chart.render().one("ClusterRole", NAME)["rules"]
        needed = {
            (kind.group, kind.plural): {"get", "list", "watch", "create", "patch", "delete"}
            for kind in CHILDREN
        }
        needed |= {
            (RESOURCE.group, RESOURCE.plural): {"get", "list", "watch"},
            (RESOURCE.group, f"{RESOURCE.plural}/status"): {"patch"},
            (POD.group, POD.plural): {"list", "watch"},
            (SECRET.group, SECRET.plural): {"get", "create"},
            ("discovery.k8s.io", "endpointslices"): {"get", "list", "watch"},
        }
        granted = {(g, r) for rule in rules for g in rule["apiGroups"] for r in rule["resources"]}
        assert granted == needed.keys()
        for (group, resource), wanted in needed.items():
            assert verbs(rules, group, resource) == wanted, resource

    def test_what_the_router_is_granted_the_operator_has(self, operator_chart):
        preset = yaml.safe_load((ROOT / "examples/kubernetes/qwen2.5-vl-7b.yaml").read_text())
        preset["metadata"] |= {"namespace": "red", "uid": "1"}
        wish = with_images(load_deployment(preset), Images("worker", "router"))
        own = operator_chart.render().one("ClusterRole", NAME)["rules"]
        roles = [o for o in objects(wish, Seen("token")) if o["kind"] == "Role"]
        assert roles
        for rule in (rule for role in roles for rule in role["rules"]):
            for group, resource in ((g, r) for g in rule["apiGroups"] for r in rule["resources"]):
                assert verbs(own, group, resource) >= set(rule["verbs"])

    def test_the_lease_is_the_only_one_of_its_namespace(self, operator_chart):
        role = operator_chart.render().one("Role", "-lease")
        assert role["metadata"]["namespace"] == "sys"
        named = [rule for rule in role["rules"] if rule.get("resourceNames")]
        assert named == [
            {
                "apiGroups": [LEASE.group],
                "resources": [LEASE.plural],
                "resourceNames": [NAME],
                "verbs": ["get", "update"],
            }
        ]
        assert verbs(role["rules"], LEASE.group, LEASE.plural) == {"create"}

    def test_users_see_and_edit_resources_with_the_clusters_own_roles(self, operator_chart):
        rendered = operator_chart.render()
        edit, view = rendered.one("ClusterRole", ":edit"), rendered.one("ClusterRole", ":view")
        assert verbs(view["rules"], RESOURCE.group, RESOURCE.plural) == {"get", "list", "watch"}
        assert "rbac.authorization.k8s.io/aggregate-to-view" not in edit["metadata"]["labels"]
        off = operator_chart.render({"rbac": {"aggregate": False}})
        assert [o["metadata"]["name"] for o in off if o["kind"] == "ClusterRole"] == [f"sys:{NAME}"]

    def test_they_may_come_from_elsewhere(self, operator_chart):
        rendered = operator_chart.render(
            {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "mine"}}
        )
        assert rendered.kinds() == {"CustomResourceDefinition", "Service", "Deployment"}
        assert pod(rendered)["serviceAccountName"] == "mine"

    def test_a_service_account_has_the_given_name_and_annotations(self, operator_chart):
        rendered = operator_chart.render({"serviceAccount": {"name": "mine", "annotations": {"a": "b"}}})
        assert contains(
            rendered.one("ServiceAccount"), {"metadata": {"name": "mine", "annotations": {"a": "b"}}}
        )
        assert rendered.one("ClusterRoleBinding")["subjects"][0]["name"] == "mine"


class TestMonitoring:
    def test_metrics_can_be_reached_by_default(self, operator_chart):
        (port,) = operator_chart.render().one("Service")["spec"]["ports"]
        assert (port["port"], port["targetPort"]) == (8080, "http")

    def test_the_service_can_be_changed_and_left_out(self, operator_chart):
        service = {"service": {"port": 9090, "annotations": {"a": "b"}}}
        changed = operator_chart.render({"metrics": service}).one("Service")
        assert changed["spec"]["ports"][0]["port"] == 9090
        assert changed["metadata"]["annotations"] == {"a": "b"}
        assert "Service" not in operator_chart.render({"metrics": {"service": {"enabled": False}}}).kinds()

    def test_a_monitor_is_made_when_asked_for(self, operator_chart):
        wanted = {"enabled": True, "interval": "1m", "scrapeTimeout": "5s", "labels": {"release": "prom"}}
        monitor = operator_chart.render({"metrics": {"serviceMonitor": wanted}}).one("ServiceMonitor")
        assert monitor["metadata"]["labels"]["release"] == "prom"
        assert monitor["spec"]["endpoints"] == [
            {"port": "http", "path": "/metrics", "interval": "1m", "scrapeTimeout": "5s"}
        ]

    def test_a_monitor_without_a_service_is_refused(self, operator_chart):
        values = {"metrics": {"serviceMonitor": {"enabled": True}, "service": {"enabled": False}}}
        assert "no Service to monitor" in operator_chart.refusal(values)


class TestPods:
    @pytest.mark.parametrize(
        ("path", "value", "where"),
        [
            ("priorityClassName", "high", None),
            ("nodeSelector", {"a": "b"}, None),
            ("tolerations", [{"key": "a", "operator": "Exists"}], None),
            ("affinity", {"podAntiAffinity": {"x": 1}}, None),
            ("topologySpreadConstraints", [{"maxSkew": 1}], None),
            ("imagePullSecrets", [{"name": "pull"}], None),
            ("podSecurityContext", {"runAsUser": 1234}, "securityContext"),
        ],
    )
    def test_a_pod_field(self, operator_chart, path, value, where):
        assert contains(pod(operator_chart.render(nested(path, value))), {where or path: value})

    @pytest.mark.parametrize(
        ("path", "value", "where"),
        [
            ("resources.limits.cpu", "2", "resources.limits.cpu"),
            ("env", [{"name": "A", "value": "b"}], "env"),
            ("securityContext.runAsUser", 1234, "securityContext.runAsUser"),
            ("livenessProbe.periodSeconds", 77, "livenessProbe.periodSeconds"),
            ("readinessProbe.initialDelaySeconds", 7, "readinessProbe.initialDelaySeconds"),
            ("image.pullPolicy", "Never", "imagePullPolicy"),
        ],
    )
    def test_a_container_field(self, operator_chart, path, value, where):
        assert contains(container(operator_chart.render(nested(path, value))), nested(where, value))

    def test_the_operators_own_settings(self, operator_chart):
        rendered = operator_chart.render(
            {"workers": 9, "resyncSeconds": 12.5, "verbose": True, "replicas": 2}
        )
        assert (settings(rendered).workers, settings(rendered).resync) == (9, 12.5)
        assert parse(container(rendered)["args"]).verbose
        assert rendered.one("Deployment")["spec"]["replicas"] == 2

    def test_it_is_told_who_it_is(self, operator_chart):
        variables = {
            v["name"]: v["valueFrom"]["fieldRef"]["fieldPath"]
            for v in container(operator_chart.render())["env"]
        }
        assert variables == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}

    def test_probes_ask_for_health(self, operator_chart):
        for probe in ("livenessProbe", "readinessProbe"):
            asked = container(operator_chart.render())[probe]["httpGet"]
            assert asked == {"path": "/healthz", "port": "http"}

    def test_it_keeps_to_the_restricted_security_standard(self, operator_chart):
        rendered = operator_chart.render()
        assert pod(rendered)["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert container(rendered)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }

    def test_annotations(self, operator_chart):
        template = operator_chart.render({"podAnnotations": {"a": "b"}}).one("Deployment")["spec"]["template"]
        assert template["metadata"]["annotations"] == {"a": "b"}

    def test_names_can_be_chosen(self, operator_chart):
        assert operator_chart.render({"fullnameOverride": "op"}).one("Deployment")["metadata"]["name"] == "op"
        assert settings(operator_chart.render({"fullnameOverride": "op"})).lease_name == "op"
        renamed = operator_chart.render({"nameOverride": "ctl"}).one("Deployment")
        assert renamed["metadata"]["name"] == "demo-ctl"
        same = operator_chart.render(release="mmdisagg-operator").one("Deployment")
        assert same["metadata"]["name"] == "mmdisagg-operator"


@pytest.mark.parametrize(
    "path",
    [
        "replica",
        "image.name",
        "workerImage.pullPolicy",
        "crds.kept",
        "rbac.cluster",
        "serviceAccount.labels",
        "metrics.enabled",
        "metrics.service.type",
        "metrics.serviceMonitor.namespace",
        "livenessProbe.httpGet",
        "resources.limit",
    ],
)
def test_unknown_values_are_refused_by_name(operator_chart, path):
    assert f"'{path.rpartition('.')[2]}' not allowed" in operator_chart.refusal(nested(path, {}))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replicas", "1"),
        ("workers", 0),
        ("resyncSeconds", 0),
        ("namespaces", ["Red"]),
        ("namespaces", ["red", "red"]),
        ("image.pullPolicy", "Sometimes"),
        ("image.repository", ""),
        ("image.digest", "sha256:1"),
        ("metrics.service.port", 0),
        ("metrics.serviceMonitor.interval", "soon"),
        ("env", [{"value": "nameless"}]),
        ("podLabels", {"a": 1}),
        ("crds.keep", "yes"),
    ],
)
def test_wrong_values_are_refused_with_their_path(operator_chart, path, value):
    assert f"at '/{path.replace('.', '/')}" in operator_chart.refusal(nested(path, value))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "kubectl delete crd multimodaldisaggdeployments.mmdisagg.io"),
        ({"crds": {"keep": False}}, "deletes the CRD"),
        ({"crds": {"enabled": False}}, "waits until the CRD is there"),
        ({"namespaces": ["red", "blue"]}, "the namespaces red, blue"),
    ],
)
def test_notes_say_what_to_know(operator_chart, values, said):
    assert said in operator_chart.notes(values)

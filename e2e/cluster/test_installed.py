"""The operator's chart and image together: installed by Helm, it runs, leads, can be measured, and is upgraded."""

from installed import NAMESPACE, RELEASE
from kubectl import until
from restricted_pods import SOME_USER

NAME = f"{RELEASE}-mmdisagg-operator"


def leads(operator):
    path = f"/api/v1/namespaces/{NAMESPACE}/services/{NAME}-metrics:http/proxy/metrics"
    return "mmdisagg_operator_leader 1.0" in operator.kubectl("get", "--raw", path)


def test_it_runs_as_any_user_takes_the_lease_and_is_never_restarted(operator, demo):
    until("the metrics of a leader", lambda: leads(operator), seconds=30)
    held = operator.kubectl.get("lease", NAME)
    assert held["spec"]["holderIdentity"] == operator.pod()["metadata"]["name"]
    pod = operator.pod()
    assert pod["spec"]["securityContext"]["runAsUser"] == SOME_USER
    assert [(s["ready"], s["restartCount"]) for s in pod["status"]["containerStatuses"]] == [(True, 0)]


def test_an_upgrade_changes_the_operator_and_no_pod_of_a_deployment(operator, demo):
    before = {one["metadata"]["uid"] for role in demo.roles() for one in demo.pods(role)}
    old = operator.pod()["metadata"]["name"]
    operator.upgrade(resyncSeconds=120)
    until("another operator", lambda: operator.pod()["metadata"]["name"] != old)
    assert "--resync=120" in operator.pod()["spec"]["containers"][0]["args"]
    until("the metrics of a leader", lambda: leads(operator), seconds=60)
    demo.kubectl("delete", "configmap", "shapes-plan")
    until("the repair", lambda: demo.kubectl.names("configmap", "shapes-plan", "--ignore-not-found"))
    assert {one["metadata"]["uid"] for role in demo.roles() for one in demo.pods(role)} == before
    assert {c["status"] for c in demo.status()["conditions"]} == {"True"}

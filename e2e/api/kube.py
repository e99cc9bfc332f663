"""A user of the cluster: plain HTTP to the API server, and kubectl where its own behaviour matters."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
import yaml
from kubernetes.config import new_client_from_config
from prometheus_client.parser import text_string_to_metric_families

from mmdisagg_operator.kinds import CHILDREN, DEPLOYMENT, LEASE, POD, RESOURCE, SECRET, Kind
from testbed import deadline

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
SERVICE, CONFIG_MAP, ACCOUNT, CLAIM, ROLE, BINDING, BUDGET, POLICY = CHILDREN[1:]
OURS = (RESOURCE, SECRET, *CHILDREN)

MUTATING = ("POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION")

TEST = "mmdisagg.io/test"
"""Label of the tests' own namespaces."""

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


def until(what: str, condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Return what `condition` returns once that is true; errors of the moment are none."""
    return deadline.until(
        what, condition, seconds=seconds, pause=0.1, excused=(requests.RequestException, LookupError)
    )


class Kube:
    """One user's way into a cluster."""

    def __init__(self, kubeconfig: Path, kubectl: Path | str = "kubectl") -> None:
        self.kubeconfig, self.kubectl_path = kubeconfig, kubectl
        settings = new_client_from_config(str(kubeconfig)).configuration
        self.server, self.ca = settings.host.rstrip("/"), settings.ssl_ca_cert
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.verify = self.ca or settings.verify_ssl
        self.token = (settings.get_api_key_with_prefix("BearerToken") or "").partition(" ")[2]
        if self.token:
            self.session.headers["Authorization"] = f"Bearer {self.token}"
        if settings.cert_file:
            self.session.cert = (settings.cert_file, settings.key_file)

    def request(self, method: str, path: str, body: Any = None, **more: Any) -> requests.Response:
        """Send one request; the caller looks at the answer."""
        headers = {"Content-Type": more.pop("content_type", "application/json")}
        data = None if body is None else json.dumps(body)
        return self.session.request(
            method, self.server + path, data=data, headers=headers, timeout=60, **more
        )

    def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        answer = self.request("GET", kind.path(namespace, name))
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return answer.json()

    def list(self, kind: Kind, namespace: str) -> list[Json]:
        answer = self.request("GET", kind.path(namespace))
        answer.raise_for_status()
        return answer.json()["items"]

    def names(self, kind: Kind, namespace: str) -> set[str]:
        return {one["metadata"]["name"] for one in self.list(kind, namespace)}

    def create(self, kind: Kind, namespace: str, body: Json) -> Json:
        answer = self.request("POST", kind.path(namespace), body)
        assert answer.ok, answer.text
        return answer.json()

    def patch(self, kind: Kind, namespace: str, name: str, body: Json, subresource: str = "") -> Json:
        path = kind.path(namespace, name, subresource)
        answer = self.request("PATCH", path, body, content_type=MERGE, params={"fieldManager": "user"})
        assert answer.ok, answer.text
        return answer.json()

    def delete(self, kind: Kind, namespace: str, name: str, **options: Any) -> None:
        answer = self.request("DELETE", kind.path(namespace, name), options or None)
        assert answer.status_code in (200, 202, 404), answer.text

    def namespace(self, name: str) -> None:
        answer = self.request(
            "POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": {TEST: ""}}}
        )
        assert answer.ok, answer.text

    def delete_namespace(self, name: str) -> None:
        self.request("DELETE", f"/api/v1/namespaces/{name}")

    def has_namespace(self, name: str) -> bool:
        return self.request("GET", f"/api/v1/namespaces/{name}").status_code != 404

    def kubectl(self, *words: str, manifest: Json | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl as this user."""
        return subprocess.run(
            [str(self.kubectl_path), f"--kubeconfig={self.kubeconfig}", *words],
            input=None if manifest is None else yaml.safe_dump(manifest),
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )

    def as_account(self, namespace: str, account: str, folder: Path) -> Kube:
        """Return this cluster for a service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.request("POST", path, {"spec": {"expirationSeconds": 3600}})
        assert answer.ok, answer.text
        return Kube(
            self._kubeconfig(folder / account, self.server, answer.json()["status"]["token"]),
            self.kubectl_path,
        )

    def through(self, url: str, folder: Path) -> Path:
        """Return a kubeconfig of this user that takes another way to the server."""
        return self._kubeconfig(folder / "through", url, self.token)

    def _kubeconfig(self, path: Path, server: str, token: str) -> Path:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": server, "certificate-authority": str(self.ca)}}],
            "users": [{"name": "x", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def test_namespaces(self) -> set[str]:
        """Return the namespaces of tests, those that are being deleted included."""
        found = self.request("GET", "/api/v1/namespaces", params={"labelSelector": TEST}).json()["items"]
        return {one["metadata"]["name"] for one in found}

    def writes(self) -> dict[str, float]:
        """Return how often each kind of the operator's writes has been made so far by anyone.

        Dry runs, Leases, and what Kubernetes' own controllers write (status of children, tokens) are left out.
        """
        answer = self.request("GET", "/metrics")
        answer.raise_for_status()
        written = {*(kind.plural for kind in OURS), f"{RESOURCE.plural}/status"}
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples if family.name == "apiserver_request" else ():
                labels = sample.labels
                what = f"{labels['resource']}/{labels['subresource']}".rstrip("/")
                if labels["verb"] in MUTATING and what in written and not labels["dry_run"]:
                    key = f"{labels['verb']} {what}"
                    found[key] = found.get(key, 0) + sample.value
        return found


def with_crd(kube: Kube, changed: Callable[[Json], Json] = lambda crd: crd) -> Kube:
    """Install the CRD, or a changed one, and return when it can be used."""
    (file,) = (ROOT / "crds").glob("*.yaml")
    crd = changed(yaml.safe_load(file.read_text()))
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
    query = {"fieldManager": "tests", "force": "true"}
    answer = kube.request("PATCH", path, crd, content_type="application/apply-patch+yaml", params=query)
    assert answer.ok, answer.text

    def established():
        conditions = kube.request("GET", path).json()["status"]["conditions"] or ()
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    until("the CRD", established)
    return kube


class Deployed:
    """One resource in a namespace of its own, and what a user sees of it."""

    def __init__(self, kube: Kube, namespace: str, name: str = "demo") -> None:
        self.kube, self.namespace, self.name = kube, namespace, name

    def wish(self, document: Json) -> None:
        """Create the resource, or replace its spec."""
        present = self.kube.get(RESOURCE, self.namespace, self.name)
        if present is None:
            body = {**document, "metadata": {"name": self.name, "namespace": self.namespace}}
            self.kube.create(RESOURCE, self.namespace, body)
            return

        def replaced() -> bool:
            answer = self.kube.request(
                "PUT",
                RESOURCE.path(self.namespace, self.name),
                {**self.resource(), "spec": document["spec"]},
            )
            assert answer.ok or answer.status_code == 409, answer.text
            return answer.ok

        until("the change of the spec", replaced)

    def resource(self) -> Json:
        found = self.kube.get(RESOURCE, self.namespace, self.name)
        assert found is not None
        return found

    def apply(self, document: Json, *words: str) -> subprocess.CompletedProcess[str]:
        """Do what a user does who keeps the resource in a file: `kubectl apply --server-side`."""
        body = {**document, "metadata": {"name": self.name, "namespace": self.namespace}}
        return self.kube.kubectl("apply", "--server-side", "-f", "-", *words, manifest=body)

    def status(self) -> Json:
        return self.resource().get("status") or {}

    def condition(self, kind: str) -> Json:
        return next(
            (c for c in self.status().get("conditions", ()) if c["type"] == kind),
            {"status": "", "reason": ""},
        )

    def said(self, kind: str) -> tuple[str, str]:
        found = self.condition(kind)
        return found["status"], found["reason"]

    def says(self, kind: str, status: str, reason: str, seconds: float = 120.0) -> str:
        """Wait until a condition says so; returns its message."""
        until(f"{kind}={status} {reason}", lambda: self.said(kind) == (status, reason), seconds)
        return str(self.condition(kind)["message"])

    def names(self, kind: Kind) -> set[str]:
        return self.kube.names(kind, self.namespace)

    def workload(self, role: str) -> Json:
        found = self.kube.get(DEPLOYMENT, self.namespace, f"{self.name}-{role}")
        assert found is not None
        return found

    def is_made(self, roles: int = 4) -> None:
        """Wait until the Deployments are there, their pods too, and the status says so."""
        until("Deployments", lambda: len(self.names(DEPLOYMENT)) == roles)
        until("pods", lambda: len(self.kube.list(POD, self.namespace)) >= roles)
        until(
            "status",
            lambda: self.status().get("observedGeneration") == self.resource()["metadata"]["generation"],
        )

    def pods(self, role: str = "") -> list[Json]:
        found = self.kube.list(POD, self.namespace)
        return [p for p in found if role in ("", p["metadata"]["labels"]["mmdisagg.io/role"])]

    def set_pods(self, status: Json, role: str = "") -> None:
        """Do the kubelet's part: every pod of a role, or of all, is in `status`."""
        for pod in self.pods(role):
            self.kube.patch(POD, self.namespace, pod["metadata"]["name"], {"status": status}, "status")


__all__ = [
    "ACCOUNT",
    "APPLY",
    "BINDING",
    "BUDGET",
    "CHILDREN",
    "CLAIM",
    "CONFIG_MAP",
    "DEPLOYMENT",
    "LEASE",
    "MERGE",
    "OURS",
    "POD",
    "POLICY",
    "RESOURCE",
    "ROLE",
    "SECRET",
    "SERVICE",
    "Deployed",
    "Kube",
    "until",
    "with_crd",
]

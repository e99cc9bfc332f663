from testbed.dns import PORT, corefile, objects
from testbed.network import DNS_SERVICE, MACHINE


def test_the_service_has_the_address_that_pods_are_told_and_leads_to_the_machine():
    service, slice_ = (kind for kind in objects().values() if kind["kind"] in ("Service", "EndpointSlice"))
    assert service["spec"]["clusterIP"] == DNS_SERVICE
    assert slice_["endpoints"][0]["addresses"] == [MACHINE]
    assert {p["name"] for p in service["spec"]["ports"]} == {p["name"] for p in slice_["ports"]}
    assert {p["port"] for p in slice_["ports"]} == {PORT}
    assert slice_["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]


def test_paths_agree_with_the_objects_at_them():
    for path, manifest in objects().items():
        assert path.endswith("/" + manifest["metadata"]["name"])
        assert f"/{manifest['apiVersion']}/" in path


def test_only_the_clusters_names_are_answered():
    config = corefile("/live/kubeconfig")
    assert "kubeconfig /live/kubeconfig" in config
    assert "forward" not in config

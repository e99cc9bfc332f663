from base64 import b64decode

from testbed.identities import issue, kubeconfig, token_file


def test_every_component_and_node_has_a_token_of_its_own():
    identities = issue([1, 2])
    assert {"admin", "system:kube-scheduler", "system:node:node1", "system:node:node2"} <= identities.keys()
    assert len({identity.token for identity in identities.values()}) == len(identities)
    assert all(len(identity.token) == 64 for identity in identities.values())


def test_only_the_administrator_is_a_master_and_kubelets_are_nodes():
    groups = {user: identity.group for user, identity in issue([1]).items()}
    assert [user for user, group in groups.items() if group == "system:masters"] == ["admin"]
    assert groups["system:node:node1"] == "system:nodes"


def test_the_token_file_has_token_user_id_and_groups():
    lines = token_file([issue([], make_token=lambda: "secret")["admin"]])
    assert lines == 'secret,admin,admin,"system:masters"\n'


def test_a_kubeconfig_trusts_only_the_instances_authority():
    admin = issue([], make_token=lambda: "secret")["admin"]
    config = kubeconfig("https://192.0.2.1:6443", b"PEM", admin)
    cluster = config["clusters"][0]["cluster"]
    assert b64decode(cluster["certificate-authority-data"]) == b"PEM"
    assert "insecure-skip-tls-verify" not in cluster
    assert config["users"] == [{"name": "admin", "user": {"token": "secret"}}]

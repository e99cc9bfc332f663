"""What is printed holds the plan and no secret."""

import json
from itertools import count

import pytest
from documents import deployment

from mmdisagg_operator.api import Topology
from mmdisagg_operator.plan import ClusterSite, LocalSite, aggregated, environment, launches, render

TOKEN = "a-token-that-nobody-may-read-in-logs"


def laptop(wish):
    return LocalSite.allocate(wish, model="m", embedding_store="/s", stage_token=TOKEN, ports=count(8000))


@pytest.mark.parametrize("topology", Topology)
def test_the_shape_is_role_to_arguments_and_environment(topology):
    wish = deployment(topology)
    for site in (laptop(wish), ClusterSite.of(wish)):
        rendered = json.loads(json.dumps(render(wish, site)))
        assert list(rendered) == [*map(str, site.engines), "router"]
        for launch in rendered.values():
            assert set(launch) == {"args", "env"}
            assert all(isinstance(text, str) for text in (*launch["args"], *launch["env"].values()))


def test_the_stage_token_is_never_shown():
    wish = deployment()
    site = laptop(wish)
    assert render(wish, site)["decode"]["env"][environment.STAGE_TOKEN] == "(secret)"
    assert TOKEN not in json.dumps(render(wish, site))
    assert TOKEN not in repr(site)
    assert TOKEN not in repr(launches(wish, site))
    assert TOKEN not in repr(aggregated(wish, site, site.router))


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "PROXY_PASSWORD", "MY_TOKEN", "api_key"])
def test_what_users_call_a_secret_is_never_shown(name):
    wish = deployment(change={"engine": {"env": [{"name": name, "value": "hush"}]}})
    assert render(wish, laptop(wish))["prefill"]["env"][name] == "(secret)"


def test_other_variables_are_shown():
    wish = deployment(change={"engine": {"env": [{"name": "MAX_TOKENS", "value": "9"}]}})
    assert render(wish, laptop(wish))["prefill"]["env"]["MAX_TOKENS"] == "9"


def test_a_pods_variables_say_where_they_come_from():
    wish = deployment(change={"model": {"tokenSecretRef": {"name": "hub", "key": "token"}}})
    env = render(wish, ClusterSite.of(wish))["decode"]["env"]
    assert (env["POD_IP"], env["HF_TOKEN"]) == ("(status.podIP)", "(secret)")
    assert env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "$(POD_IP)"

"""The plan may not import the workers: these tests hold what both spell alike."""

import json
from dataclasses import asdict
from itertools import count

import pytest
from documents import deployment

from mmdisagg_operator.api import ENGINE_ROLES, Role, RouterRole, Topology
from mmdisagg_operator.api.spec import MediaLimits
from mmdisagg_operator.plan import ClusterSite, LocalSite, environment, launches
from mmdisagg_operator.plan.engine import AGGREGATED, QUIET_PATHS
from mmdisagg_operator.plan.objects import DEPLOYMENT_LABEL, REVISION_LABEL, ROLE_LABEL, Seen, objects
from mmdisagg_operator.plan.objects.images import Images, with_images
from mmdisagg_workers import contract
from mmdisagg_workers.router import settings, slices
from mmdisagg_workers.router.main import HEADER_NAME, engines_of, parser, settings_from

TOKEN = "t" * 32


def local(wish):
    return LocalSite.allocate(wish, model="m", embedding_store="/s", stage_token=TOKEN, ports=count(8000))


@pytest.mark.parametrize("name", ["STAGE_TOKEN", "TOPOLOGY", "FAMILY", "REVISION", "MEDIA"])
def test_variables_have_one_name(name):
    assert getattr(environment, name) == getattr(contract, name)


def test_roles_and_topologies_are_the_same():
    assert [str(role) for role in ENGINE_ROLES] == [str(role) for role in contract.STAGES]
    assert str(contract.Role.AGGREGATED) == AGGREGATED
    assert [str(topology) for topology in Topology] == [str(topology) for topology in contract.Topology]


def test_limits_of_media_have_the_same_defaults():
    assert MediaLimits().model_dump() == asdict(contract.MediaLimits())


def test_the_log_is_quiet_about_the_info():
    assert contract.INFO_PATH in QUIET_PATHS


def test_the_router_admits_as_many_requests_by_itself_as_by_the_resource():
    assert RouterRole().max_in_flight == settings.MAX_IN_FLIGHT
    assert RouterRole().max_bytes_in_flight == settings.MAX_BYTES_IN_FLIGHT


def test_a_header_that_the_resource_takes_is_one_that_the_router_takes():
    schema = RouterRole.model_json_schema()["properties"]["tenantHeader"]["anyOf"][0]
    assert schema["pattern"] == f"^{HEADER_NAME.pattern}$"


@pytest.mark.parametrize("site", [local, ClusterSite.of])
@pytest.mark.parametrize("topology", Topology)
def test_the_router_understands_what_the_plan_tells_it(topology, site):
    change = {
        "router": {
            "requestTimeoutSeconds": 30,
            "maxInFlight": 7,
            "maxBytesInFlight": "2Gi",
            "tenantHeader": "X-Tenant",
        },
        "media": {"limits": {"images": 3, "bytes": "1Mi"}},
    }
    wish = deployment(topology, change)
    launch = launches(wish, site(wish))[Role.ROUTER][0]

    made = settings_from(parser().parse_args(launch.args), {environment.STAGE_TOKEN: TOKEN, **launch.env})

    assert (made.model, made.token) == (wish.spec.model.served_name, TOKEN)
    assert (made.deadlines.request, made.max_in_flight, made.tenant_header) == (30, 7, "X-Tenant")
    assert made.max_bytes_in_flight == 2**31
    assert (made.limits.images, made.limits.bytes) == (3, 2**20)
    assert json.loads(launch.env[environment.MEDIA])["limits"] == asdict(made.limits)
    if site is local:
        given = [endpoint.role for endpoint in engines_of(made).endpoints]
        assert given == list(contract.Topology(topology).roles)
    else:
        assert made.discover == wish.metadata.name


def test_the_router_finds_the_slices_that_the_plans_services_lead_to():
    wish = with_images(deployment(Topology.E_P_D), Images("worker", "router"))
    services = [one for one in objects(wish, Seen("uid")) if one["kind"] == "Service"]
    marked = [one for one in services if REVISION_LABEL in one["metadata"]["labels"]]

    assert slices.selector("demo") == f"{DEPLOYMENT_LABEL}=demo,{REVISION_LABEL}"
    assert {one["metadata"]["labels"][slices.ROLE_LABEL] for one in marked} == {*contract.STAGES}
    assert slices.ROLE_LABEL == ROLE_LABEL
    assert {port["name"] for one in marked for port in one["spec"]["ports"]} == {slices.PORT_NAME}

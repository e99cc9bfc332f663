"""Every Kubernetes object of a deployment.

    wish = with_images(load_deployment(live), Images(worker=..., router=...))
    secret = stage_token_secret(wish, secrets.token_hex(32))       # only when there is none
    manifests = objects(wish, Seen(token=uid_of_the_secret, revisions=...))

Each manifest holds exactly the fields that the operator owns: it is what server-side apply is given.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mmdisagg_operator.api import MultimodalDisaggDeployment, Role
from mmdisagg_operator.plan.launches import launches
from mmdisagg_operator.plan.revision import revision
from mmdisagg_operator.plan.site import ClusterSite

from .access import access
from .identity import (
    DEPLOYMENT_LABEL,
    MANAGER,
    REVISION_LABEL,
    ROLE_LABEL,
    Manifest,
    child_name,
    labels,
    owner,
    revision_name,
    selector,
)
from .images import Images, with_images
from .policies import disruption_budget, network_policy
from .probes import LEAVE_SECONDS, STARTUP_SECONDS
from .rendered import rendered_plan
from .services import router_url, services
from .token import MIN_TOKEN_CHARS, is_stage_token, stage_token_secret
from .volumes import claim_name, embedding_claim
from .workload import CONTAINER, STAGE_TOKEN_ANNOTATION, workload

__all__ = [
    "CONTAINER",
    "DEPLOYMENT_LABEL",
    "LEAVE_SECONDS",
    "MANAGER",
    "MIN_TOKEN_CHARS",
    "REVISION_LABEL",
    "ROLE_LABEL",
    "STAGE_TOKEN_ANNOTATION",
    "STARTUP_SECONDS",
    "Images",
    "Manifest",
    "Seen",
    "child_name",
    "claim_name",
    "is_stage_token",
    "labels",
    "objects",
    "owner",
    "revision_name",
    "roles_of",
    "router_url",
    "selector",
    "stage_token_secret",
    "with_images",
]


@dataclass(frozen=True)
class Seen:
    """What the plan must know of the cluster.

    Attributes:
        token: identity of the Secret with the stage token.
        revisions: revisions that still have pods.
    """

    token: str
    revisions: Collection[str] = ()


def objects(deployment: MultimodalDisaggDeployment, seen: Seen) -> tuple[Manifest, ...]:
    """Return the objects of a deployment, in the order in which to make them.

    The Secret with the stage token is not among them; see `stage_token_secret`.

    Args:
        deployment: the wish, with its namespace and with images filled in.
        seen: what is there.
    """
    return tuple(_objects(deployment, seen))


def _objects(deployment: MultimodalDisaggDeployment, seen: Seen) -> Iterator[Manifest]:
    site = ClusterSite.of(deployment)
    planned = launches(deployment, site)
    yield from access(deployment)
    yield rendered_plan(deployment, site)
    claim = embedding_claim(deployment)
    if claim is not None:
        yield claim
    yield from services(deployment, {revision(deployment.spec), *seen.revisions})
    for role in planned:
        yield network_policy(deployment, role)
        yield disruption_budget(deployment, role)
    for role, (launch, *_) in planned.items():
        yield workload(deployment, role, launch, site, seen.token)


def roles_of(deployment: MultimodalDisaggDeployment) -> tuple[Role, ...]:
    """Return the roles that a deployment has, the router last."""
    return tuple(role for role in Role if deployment.spec.role(role) is not None)

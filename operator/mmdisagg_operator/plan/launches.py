"""Every process of a deployment."""

from mmdisagg_operator.api import MultimodalDisaggDeployment, Role

from .engine import engine
from .launch import Launch
from .router import router
from .site import Site


def launches(deployment: MultimodalDisaggDeployment, site: Site) -> dict[Role, tuple[Launch, ...]]:
    """Plan every process: one per place of an engine role in the site, and one router.

    Returns:
        Launches by role, in the order in which a request visits the roles, then the router.
    """
    planned = {
        role: tuple(engine(deployment, site, role, place) for place in places)
        for role, places in site.engines.items()
    }
    return {**planned, Role.ROUTER: (router(deployment, site),)}

"""Arguments and environment of the router."""

from mmdisagg_operator.api import MultimodalDisaggDeployment, Role

from . import environment
from .launch import ROUTER, Launch
from .site import Site
from .wire import media


def router(deployment: MultimodalDisaggDeployment, site: Site) -> Launch:
    """Plan the router: it learns the topology from the roles that it is given."""
    spec = deployment.spec
    args = (
        *("--host", site.router.host),
        *("--port", str(site.router.port)),
        *("--served-model", spec.model.served_name),
        *(word for role, urls in site.targets.items() for word in (f"--{role}", *urls) if urls),
        *("--decode-contract", str(spec.decode.contract)),
        *("--request-timeout", str(spec.router.request_timeout_seconds)),
        *(("--drain-timeout", str(site.drain_seconds)) if site.drain_seconds else ()),
    )
    env = {environment.MEDIA: media(spec), **site.secrets}
    return Launch(ROUTER, args, env, site.references(spec, Role.ROUTER))

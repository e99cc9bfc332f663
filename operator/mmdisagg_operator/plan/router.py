"""Arguments and environment of the router."""

from mmdisagg_operator.api import MultimodalDisaggDeployment, Role

from . import environment
from .launch import ROUTER, Launch
from .site import Site
from .wire import media


def router(deployment: MultimodalDisaggDeployment, site: Site) -> Launch:
    """Plan the router.

    On one machine it is given the engines, and the roles among them are its topology. In a cluster it is told
    neither: it discovers the engines, and those say what their topology and revision are. So it is not
    restarted when roles come or go, nor when a new revision replaces the old one.
    """
    spec = deployment.spec
    args = (
        *("--host", site.router.host),
        *("--port", str(site.router.port)),
        *("--served-model", spec.model.served_name),
        *(("--discover", site.discover) if site.discover else ()),
        *(word for role, urls in site.targets.items() for word in (f"--{role}", *urls) if urls),
        *("--decode-contract", str(spec.decode.contract)),
        *("--max-in-flight", str(spec.router.max_in_flight)),
        *("--max-bytes-in-flight", str(spec.router.max_bytes_in_flight)),
        *(("--tenant-header", spec.router.tenant_header) if spec.router.tenant_header else ()),
        *("--request-timeout", str(spec.router.request_timeout_seconds)),
        *(("--drain-timeout", str(site.drain_seconds)) if site.drain_seconds else ()),
    )
    env = {environment.MEDIA: media(spec), **site.secrets}
    return Launch(ROUTER, args, env, site.references(spec, Role.ROUTER))

"""From a deployment and a site to what each process is started with. Pure: no I/O, no clock, no chance.

    deployment = load_deployment(yaml.safe_load(text))        # mmdisagg_operator.api; raises ResourceError
    site = LocalSite.allocate(
        deployment,
        model=local_model(deployment, PurePath("examples/local")),  # absolute path, or the Hub name
        embedding_store="/tmp/run-1/embeddings",                     # a directory the caller has made
        stage_token=secrets.token_hex(32),
        ports=iter(free_ports),                                      # any Iterator[int]; count(8000) will do
    )
    for role, replicas in launches(deployment, site).items():       # encode, prefill, decode, router
        for launch in replicas:                                      # one per replica
            run([launch.program, *launch.args], env={**os.environ, **launch.env})
    reference = aggregated(deployment, site, Endpoint("127.0.0.1", port))   # the one-engine yardstick
    json.dumps(render(deployment, site))                             # {role: {"args": [...], "env": {...}}}

`site.engines[role][i].http.url` is where replica i of an engine role listens, `site.router.url` the router.
`ClusterSite.of(deployment)` is the same for pods: one launch per role, addresses from the downward API.
"""

from .endpoint import Endpoint
from .engine import aggregated
from .launch import FieldReference, Launch, SecretReference
from .launches import launches
from .render import render
from .revision import revision
from .site import ClusterSite, EnginePlace, LocalSite, Site, local_model

__all__ = [
    "ClusterSite",
    "Endpoint",
    "EnginePlace",
    "FieldReference",
    "Launch",
    "LocalSite",
    "SecretReference",
    "Site",
    "aggregated",
    "launches",
    "local_model",
    "render",
    "revision",
]

"""Where a deployment runs: addresses, paths and secrets that the resource does not say."""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Final

from mmdisagg_operator.api import ENGINE_ROLES, ModelSource, MultimodalDisaggDeployment, Role, Spec

from . import environment
from .endpoint import Endpoint
from .handoff import serves_embeddings
from .launch import FieldReference, Reference, SecretReference

LOOPBACK: Final = "127.0.0.1"

HTTP_PORT: Final = 8000
SIDE_CHANNEL_PORT: Final = 5600
EMBEDDING_PORT: Final = 5700
MODEL_MOUNT: Final = "/model"
EMBEDDING_MOUNT: Final = "/embeddings"
STAGE_TOKEN_KEY: Final = "token"  # noqa: S105 - a key's name


@dataclass(frozen=True)
class EnginePlace:
    """The addresses of one engine.

    Attributes:
        http: where its OpenAI server listens.
        side_channel: where NIXL peers shake hands; other engines connect to the host as it stands here.
        embeddings: where it serves embeddings; None where it does not.
    """

    http: Endpoint
    side_channel: Endpoint
    embeddings: Endpoint | None = None


@dataclass(frozen=True)
class Site:
    """What every site knows; made by `LocalSite.allocate` or `ClusterSite.of`.

    Attributes:
        model: directory or Hub name that engines load.
        embedding_store: directory that encode writes embeddings to and its consumer reads.
        engines: places of the engines, by role; one launch is planned for each.
        router: where the router listens.
        targets: URLs at which the router reaches the engines, by role; empty where it discovers them.
        secrets: secret variables of this site by name, never rendered; empty in a cluster.
        discover: the deployment whose engines the router discovers; None where it is told `targets`.
        drain_seconds: how long a process that is told to stop finishes requests in flight; 0 for at once.
    """

    model: str
    embedding_store: str
    engines: Mapping[Role, tuple[EnginePlace, ...]]
    router: Endpoint
    targets: Mapping[Role, tuple[str, ...]]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    discover: str | None = field(default=None, kw_only=True)
    drain_seconds: int = field(default=0, kw_only=True)

    def references(self, spec: Spec, role: Role) -> Mapping[str, Reference]:
        """Return the variables of a role that the site fills in when the process starts."""
        return {}


@dataclass(frozen=True)
class LocalSite(Site):
    """Processes on one machine, each with ports of its own."""

    @classmethod
    def allocate(
        cls,
        deployment: MultimodalDisaggDeployment,
        *,
        model: str,
        embedding_store: str,
        stage_token: str,
        ports: Iterator[int],
        host: str = LOOPBACK,
    ) -> "LocalSite":
        """Give each replica of each role its ports.

        Args:
            deployment: decides which roles run, and how many replicas of each engine (at least one: nothing
                scales local processes up from zero); there is always one router.
            model: absolute directory or Hub name; see `local_model`.
            embedding_store: absolute directory that exists.
            stage_token: secret of at least 32 characters.
            ports: free ports; two are taken per engine (HTTP, side channel), then one for the router, then
                one for each engine that serves embeddings.
            host: address to listen on.
        """

        def place() -> EnginePlace:
            return EnginePlace(Endpoint(host, next(ports)), Endpoint(host, next(ports)))

        engines = {
            role: tuple(place() for _ in range(fields.replicas or 1))
            for role in ENGINE_ROLES
            if (fields := deployment.spec.role(role)) is not None
        }
        router = Endpoint(host, next(ports))
        if serves_embeddings(deployment.spec, Role.ENCODE):
            engines[Role.ENCODE] = tuple(
                replace(place, embeddings=Endpoint(host, next(ports))) for place in engines[Role.ENCODE]
            )
        return cls(
            model=model,
            embedding_store=embedding_store,
            engines=engines,
            router=router,
            targets={role: tuple(place.http.url for place in places) for role, places in engines.items()},
            secrets={environment.STAGE_TOKEN: stage_token},
        )


@dataclass(frozen=True)
class ClusterSite(Site):
    """Pods, each with an address of its own: every role has one launch, its pod template's.

    Attributes:
        stage_token: the Secret that the operator made for the deployment.
    """

    stage_token: SecretReference = field(default=SecretReference("", STAGE_TOKEN_KEY), kw_only=True)

    @classmethod
    def of(cls, deployment: MultimodalDisaggDeployment) -> "ClusterSite":
        """Return the site of a deployment's pods."""
        name, spec = deployment.metadata.name, deployment.spec
        roles = [role for role in ENGINE_ROLES if spec.role(role) is not None]
        every_address = Endpoint("0.0.0.0", HTTP_PORT)  # noqa: S104 - a pod's only way to be reached
        own_address = f"$({environment.POD_IP})"
        place = EnginePlace(
            every_address, Endpoint(own_address, SIDE_CHANNEL_PORT), Endpoint(own_address, EMBEDDING_PORT)
        )
        return cls(
            model=_model_in_pod(spec),
            embedding_store=EMBEDDING_MOUNT,
            engines=dict.fromkeys(roles, (place,)),
            router=every_address,
            targets={},
            discover=name,
            stage_token=SecretReference(stage_token_name(name), STAGE_TOKEN_KEY),
            drain_seconds=spec.router.request_timeout_seconds,
        )

    def references(self, spec: Spec, role: Role) -> Mapping[str, Reference]:
        """Return the pod's address, the stage token and, for engines of a Hub model, its access token."""
        found: dict[str, Reference] = {environment.STAGE_TOKEN: self.stage_token}
        if role is Role.ROUTER:
            return found
        found[environment.POD_IP] = FieldReference("status.podIP")
        token = spec.model.token_secret_ref
        if token is not None:
            found[environment.HUB_TOKEN] = SecretReference(token.name, token.key)
        return found


def stage_token_name(deployment: str) -> str:
    """Return the name of the Secret that the operator makes for a deployment."""
    return f"{deployment}-stage-token"


def _model_in_pod(spec: Spec) -> str:
    """A relative path has a meaning beside its YAML file only; its volume gets a fixed mount in pods."""
    path = spec.model.path
    if path is None:
        return spec.model.name or ""
    return path if posixpath.isabs(path) else MODEL_MOUNT


def local_model(deployment: MultimodalDisaggDeployment, directory: PurePath) -> str:
    """Return what local engines load: the Hub name, or the model's directory.

    Args:
        deployment: says which.
        directory: absolute directory of the YAML file, which `spec.model.path` is relative to.
    """
    model = deployment.spec.model
    if model.source is ModelSource.HUB:
        return model.name or ""
    return posixpath.normpath((directory / (model.path or "")).as_posix())

"""The wish: which model, on how many engines of which role, with what limits."""

from typing import Annotated

from pydantic import Field, StringConstraints

from .enums import (
    DecodeContract,
    Device,
    EmbeddingHandoff,
    Family,
    KvHandoff,
    ModelSource,
    Role,
    RolloutStrategy,
    Topology,
)
from .names import ObjectName, SecretKey
from .pod import DecodeRole, EngineRole, Environment, PodFields, RouterRole, VolumeSource
from .quantity import Quantity, StorageSize
from .reserved import EngineArgument
from .structure import Structure, rule

_M_ROPE = (Family.QWEN2_VL, Family.QWEN2_5_VL, Family.QWEN3_VL)
_TOPOLOGIES = {
    (True, True): Topology.E_P_D,
    (True, False): Topology.E_PD,
    (False, True): Topology.EP_D,
    (False, False): Topology.PD,
}


class SecretKeyReference(Structure):
    """One key of a Secret in the deployment's namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: SecretKey
    """Key in the Secret."""


class Model(Structure):
    """The model that every engine loads."""

    source: ModelSource = ModelSource.HUB
    """Where the weights come from."""
    name: (
        Annotated[
            str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)?$", max_length=193)
        ]
        | None
    ) = None
    """Repository on the Hub, such as `Qwen/Qwen2.5-VL-7B-Instruct`; for source Hub."""
    path: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None
    """Directory with the weights; for source Path. Local mode takes it relative to the YAML file, in pods it
    is where the model's volume is mounted."""
    volume: VolumeSource | None = None
    """Kubernetes volume source that holds the directory, for pods; without it the image must hold it."""
    served_name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$", max_length=128)]
    """Name that clients ask for."""
    family: Family = Family.AUTO
    """The model's family; `Auto` reads it from the model's `config.json` when an engine starts."""
    token_secret_ref: SecretKeyReference | None = None
    """Access token for the Hub; for source Hub."""

    @rule("name", "required with source Hub", cel="self.source != 'Hub' || has(self.name)")
    def _hub_needs_name(self) -> bool:
        return self.source is not ModelSource.HUB or self.name is not None

    @rule("path", "only with source Path", cel="self.source != 'Hub' || !has(self.path)")
    def _hub_has_no_path(self) -> bool:
        return self.source is not ModelSource.HUB or self.path is None

    @rule("volume", "only with source Path", cel="self.source != 'Hub' || !has(self.volume)")
    def _hub_has_no_volume(self) -> bool:
        return self.source is not ModelSource.HUB or self.volume is None

    @rule("path", "required with source Path", cel="self.source != 'Path' || has(self.path)")
    def _path_needs_path(self) -> bool:
        return self.source is not ModelSource.PATH or self.path is not None

    @rule("name", "only with source Hub", cel="self.source != 'Path' || !has(self.name)")
    def _path_has_no_name(self) -> bool:
        return self.source is not ModelSource.PATH or self.name is None

    @rule("tokenSecretRef", "only with source Hub", cel="self.source != 'Path' || !has(self.tokenSecretRef)")
    def _path_has_no_token(self) -> bool:
        return self.source is not ModelSource.PATH or self.token_secret_ref is None


class Engine(Structure):
    """What all engines have in common."""

    device: Device = Device.CUDA
    """What the engines compute on."""
    max_model_len: Annotated[int, Field(ge=1, le=2**31 - 1)]
    """Longest prompt and answer together, in tokens."""
    extra_args: tuple[EngineArgument, ...] = Field(default=(), max_length=64)
    """More vLLM arguments for every engine; one item per word, flags of the plan are refused."""
    env: Environment = ()
    """More environment for every engine."""


class MediaLimits(Structure):
    """The most that one request may carry."""

    images: Annotated[int, Field(ge=0, le=10000)] = 8
    """Pictures per request; 0 refuses pictures."""
    videos: Annotated[int, Field(ge=0, le=10000)] = 1
    """Videos per request; 0 refuses videos."""
    bytes: Quantity = Field(default=20 * 2**20, json_schema_extra={"default": "20Mi"})
    """Bytes per picture or video."""
    pixels: Quantity = Field(default=40 * 10**6, json_schema_extra={"default": "40M"})
    """Pixels per picture or video frame."""


HostPattern = Annotated[str, StringConstraints(pattern=r"^(\*\.)?[a-z0-9.:-]*[a-z0-9]$", max_length=253)]
"""A host in lower case, or every host below a domain."""


class Media(Structure):
    """Which pictures and videos are taken, and from where."""

    limits: MediaLimits = Field(default_factory=MediaLimits)
    """The most that one request may carry; the same in every role."""
    allowed_hosts: tuple[HostPattern, ...] = Field(default=(), max_length=256)
    """If not empty, the only hosts to fetch from: names, addresses, or `*.example.com` for all below it."""
    allow_private_networks: bool = False
    """Whether an allowed host may have a private or loopback address (link-local ones stay denied)."""

    @rule(
        "allowPrivateNetworks",
        "only with allowedHosts: a host with a private address must be listed there",
        # The API server also checks the bare default `{}`, in which nothing is filled in yet.
        cel="!has(self.allowPrivateNetworks) || !self.allowPrivateNetworks || "
        "(has(self.allowedHosts) && self.allowedHosts.size() > 0)",
    )
    def _private_hosts_are_listed(self) -> bool:
        return not self.allow_private_networks or bool(self.allowed_hosts)


class ClaimReference(Structure):
    """A PersistentVolumeClaim in the deployment's namespace."""

    claim_name: ObjectName
    """Its name."""


class SharedVolume(Structure):
    """The volume that encode writes embeddings to: a claim that exists, or one made for the deployment."""

    persistent_volume_claim: ClaimReference | None = None
    """A claim that exists; every node that runs encode or its consumer must be able to mount it."""
    capacity: StorageSize | None = None
    """Size of the claim that is made; 20Gi where absent."""
    storage_class_name: ObjectName | None = None
    """Storage class of the claim that is made; it must offer ReadWriteMany across nodes."""

    @rule(
        "capacity",
        "only without persistentVolumeClaim: a claim that exists has its size",
        cel="!has(self.persistentVolumeClaim) || !has(self.capacity)",
    )
    def _claim_has_its_capacity(self) -> bool:
        return self.persistent_volume_claim is None or self.capacity is None

    @rule(
        "storageClassName",
        "only without persistentVolumeClaim: a claim that exists has its class",
        cel="!has(self.persistentVolumeClaim) || !has(self.storageClassName)",
    )
    def _claim_has_its_class(self) -> bool:
        return self.persistent_volume_claim is None or self.storage_class_name is None


class Tcp(Structure):
    """Embeddings straight from encode's memory, over the pod network."""

    capacity: Quantity = Field(default=4 * 2**30, json_schema_extra={"default": "4Gi"})
    """Bytes of host memory for embeddings, in each encode engine and in each engine that takes them: they
    are part of what the pods' memory limits must allow. It must hold the media of the requests in flight."""


class Handoff(Structure):
    """How the stages hand their work on."""

    embedding: EmbeddingHandoff | None = None
    """How embeddings leave encode; where absent: Tcp, or SharedVolume where `sharedVolume` is there. Only
    with an encode role."""
    tcp: Tcp | None = None
    """How much memory Tcp takes; only with Tcp."""
    shared_volume: SharedVolume | None = None
    """The volume of SharedVolume, only with it; local mode uses a directory of its own instead."""
    kv: KvHandoff | None = None
    """How KV blocks get from prefill to decode; Nixl where absent. Only with a prefill role."""

    @rule(
        "tcp",
        "only with embedding Tcp, and not beside sharedVolume",
        cel="!has(self.tcp) || "
        "(!has(self.sharedVolume) && (!has(self.embedding) || self.embedding == 'Tcp'))",
    )
    def _tcp_is_used(self) -> bool:
        unused = self.shared_volume is not None or self.embedding is EmbeddingHandoff.SHARED_VOLUME
        return self.tcp is None or not unused

    @rule(
        "sharedVolume",
        "only with embedding SharedVolume",
        cel="!has(self.sharedVolume) || !has(self.embedding) || self.embedding == 'SharedVolume'",
    )
    def _volume_is_used(self) -> bool:
        return self.shared_volume is None or self.embedding is not EmbeddingHandoff.TCP


class Rollout(Structure):
    """How a new revision replaces the old one."""

    strategy: RolloutStrategy = RolloutStrategy.SURGE
    """`Surge` adds before it removes; `Recreate` replaces in place and needs no spare GPU."""


class Spec(Structure):
    """One model, served by engines split into roles. Which roles are present decides the topology."""

    model: Model
    """The model that every engine loads."""
    image: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = None
    """Worker image; the operator's own default where absent."""
    engine: Engine
    """What all engines have in common."""
    media: Media = Field(default_factory=Media)
    """Which pictures and videos are taken, and from where."""
    encode: EngineRole | None = None
    """Engines that turn pixels into embeddings; absent: the engine that prefills does it."""
    prefill: EngineRole | None = None
    """Engines that turn prompts into KV blocks; absent: decode does it."""
    decode: DecodeRole
    """Engines that generate tokens; every deployment has them."""
    router: RouterRole = Field(default_factory=RouterRole)
    """The front that takes the clients' requests."""
    handoff: Handoff = Field(default_factory=Handoff)
    """How the stages hand their work on."""
    rollout: Rollout = Field(default_factory=Rollout)
    """How a new revision replaces the old one."""

    @property
    def topology(self) -> Topology:
        """The topology that the roles present make."""
        return _TOPOLOGIES[self.encode is not None, self.prefill is not None]

    @property
    def embedding_handoff(self) -> EmbeddingHandoff:
        """How embeddings leave encode, chosen or by default; without meaning where there is no encode."""
        if self.handoff.embedding is not None:
            return self.handoff.embedding
        return EmbeddingHandoff.SHARED_VOLUME if self.handoff.shared_volume else EmbeddingHandoff.TCP

    def role(self, role: Role) -> PodFields | None:
        """Return what the spec says about `role`, or None when the deployment does not have it."""
        fields: dict[Role, PodFields | None] = {
            Role.ENCODE: self.encode,
            Role.PREFILL: self.prefill,
            Role.DECODE: self.decode,
            Role.ROUTER: self.router,
        }
        return fields[role]

    def engine_role(self, role: Role) -> EngineRole | None:
        """Return what the spec says about an engine role, or None when the deployment does not have it."""
        fields = self.role(role)
        return fields if isinstance(fields, EngineRole) else None

    @rule(
        "decode.contract",
        "only with spec.prefill: a decode engine that prefills itself needs no contract; write Auto",
        cel="self.decode.contract == 'Auto' || has(self.prefill)",
    )
    def _contract_needs_prefill(self) -> bool:
        return self.decode.contract is DecodeContract.AUTO or self.prefill is not None

    @rule(
        "decode.contract",
        "MetadataOnly is impossible for LLaVA: its engine publishes no metadata; write Auto",
        cel="self.decode.contract != 'MetadataOnly' || self.model.family != 'LLaVA'",
    )
    def _metadata_needs_a_grid(self) -> bool:
        return self.decode.contract is not DecodeContract.METADATA_ONLY or self.model.family != Family.LLAVA

    @rule(
        "decode.contract",
        "ExpandedPrompt is wrong for Qwen families: token ids alone lose the M-RoPE positions; write Auto",
        cel="self.decode.contract != 'ExpandedPrompt' || "
        "!(self.model.family in ['Qwen2-VL', 'Qwen2.5-VL', 'Qwen3-VL'])",
    )
    def _expanded_prompt_has_no_m_rope(self) -> bool:
        return self.decode.contract is not DecodeContract.EXPANDED_PROMPT or self.model.family not in _M_ROPE

    @rule(
        "handoff.embedding",
        "only with spec.encode: nothing else hands embeddings on",
        cel="!has(self.handoff.embedding) || has(self.encode)",
    )
    def _embeddings_need_encode(self) -> bool:
        return self.handoff.embedding is None or self.encode is not None

    @rule(
        "handoff.sharedVolume",
        "only with spec.encode: nothing else hands embeddings on",
        cel="!has(self.handoff.sharedVolume) || has(self.encode)",
    )
    def _shared_volume_needs_encode(self) -> bool:
        return self.handoff.shared_volume is None or self.encode is not None

    @rule(
        "handoff.tcp",
        "only with spec.encode: nothing else hands embeddings on",
        cel="!has(self.handoff.tcp) || has(self.encode)",
    )
    def _tcp_needs_encode(self) -> bool:
        return self.handoff.tcp is None or self.encode is not None

    @rule(
        "handoff.kv",
        "only with spec.prefill: nothing else hands KV blocks on",
        cel="!has(self.handoff.kv) || has(self.prefill)",
    )
    def _kv_needs_prefill(self) -> bool:
        return self.handoff.kv is None or self.prefill is not None

    @rule(
        "encode",
        "encodes nothing: spec.media.limits allows neither pictures nor videos",
        cel="!has(self.encode) || self.media.limits.images + self.media.limits.videos > 0",
    )
    def _encode_needs_media(self) -> bool:
        limits = self.media.limits
        return self.encode is None or limits.images + limits.videos > 0

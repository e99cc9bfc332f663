"""The closed sets of the resource, spelt as YAML spells them."""

from enum import StrEnum


class Role(StrEnum):
    """A pod set: three kinds of engine and the router in front of them."""

    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"


ENGINE_ROLES = (Role.ENCODE, Role.PREFILL, Role.DECODE)
"""The roles that run an engine, in the order in which a request visits them."""


class Topology(StrEnum):
    """Which engine roles a deployment has; it follows from the roles present in the spec."""

    E_P_D = "E/P/D"
    E_PD = "E/PD"
    EP_D = "EP/D"
    PD = "PD"


class Family(StrEnum):
    """Model families with a decode contract; `Auto` leaves it to the worker, which reads `config.json`."""

    AUTO = "Auto"
    QWEN2_VL = "Qwen2-VL"
    QWEN2_5_VL = "Qwen2.5-VL"
    QWEN3_VL = "Qwen3-VL"
    LLAVA = "LLaVA"


class DecodeContract(StrEnum):
    """The form in which decode is told about media; `Auto` is the family's default."""

    AUTO = "Auto"
    ZERO_EMBEDDING = "ZeroEmbedding"
    METADATA_ONLY = "MetadataOnly"
    EXPANDED_PROMPT = "ExpandedPrompt"


class ModelSource(StrEnum):
    """Where weights come from: the Hugging Face Hub, or a directory."""

    HUB = "Hub"
    PATH = "Path"


class Device(StrEnum):
    """What the engines compute on."""

    CUDA = "Cuda"
    CPU = "Cpu"


class EmbeddingHandoff(StrEnum):
    """How embeddings get from encode to the engine that prefills."""

    SHARED_VOLUME = "SharedVolume"
    TCP = "Tcp"


class KvHandoff(StrEnum):
    """How KV blocks get from prefill to decode."""

    NIXL = "Nixl"


class RolloutStrategy(StrEnum):
    """Whether a rollout adds pods first (`Surge`) or replaces in place, without a spare GPU (`Recreate`)."""

    SURGE = "Surge"
    RECREATE = "Recreate"

"""Engine flags and environment that users cannot set: the plan sets them, or they would break a deployment.

vLLM takes `--max_model_len`, `--max-model` (an unambiguous beginning) and `--limit-mm-per-prompt.image 3` for
the flags they stand for (0.32.0, `FlexibleArgumentParser` over argparse), so all of these are recognised.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, StringConstraints

from .structure import refused

_PLAN: Final = "set by the plan"
_HTTP: Final = "not supported: the router speaks plain HTTP with the engines, guarded by the stage token"

RESERVED_FLAGS: Final[Mapping[str, str]] = {
    "--role": _PLAN,
    "--model": f"{_PLAN}; use spec.model",
    "--served-model-name": f"{_PLAN}; use spec.model.servedName",
    "--hf-token": f"{_PLAN}; use spec.model.tokenSecretRef",
    "--max-model-len": f"{_PLAN}; use spec.engine.maxModelLen",
    "--limit-mm-per-prompt": f"{_PLAN}; use spec.media.limits",
    "--language-model-only": f"{_PLAN}; use spec.media.limits",
    "--allowed-media-domains": f"{_PLAN}; use spec.media.allowedHosts",
    "--allowed-local-media-path": "not supported: engines never open files that a request names",
    "--trust-request-mm-kwargs": _PLAN,
    "--no-trust-request-mm-kwargs": _PLAN,
    "--enable-mm-embeds": _PLAN,
    "--no-enable-mm-embeds": _PLAN,
    "--mm-encoder-only": _PLAN,
    "--no-mm-encoder-only": _PLAN,
    "--ec-transfer-config": _PLAN,
    "--kv-transfer-config": _PLAN,
    "--middleware": _PLAN,
    "--host": _PLAN,
    "--port": _PLAN,
    "--enable-prompt-tokens-details": _PLAN,
    "--no-enable-prompt-tokens-details": _PLAN,
    "--disable-access-log-for-endpoints": _PLAN,
    "--shutdown-timeout": f"{_PLAN}; use spec.router.requestTimeoutSeconds",
    "--config": "not supported: a file could set flags that the plan sets",
    "--enable-prompt-embeds": "not supported: engines refuse prompt embeddings",
    "--exclude-tools-when-tool-choice-none": "not supported: prefill could not build decode's prompt",
    "--no-exclude-tools-when-tool-choice-none": _PLAN,
    "--enable-scale-out": "not supported: it opens endpoints that the worker guard does not know",
    "--tokens-only": "not supported: it closes the endpoints that the router uses",
    "--video-pruning-rate": "not supported: decode could not know which video tokens were pruned",
    "--worker-extension-cls": "not supported: its code would run beside the plan's inside every engine",
    "--headless": "not supported: the router needs the engine's HTTP server",
    "--grpc": _HTTP,
    "--uds": _HTTP,
    "--root-path": _HTTP,
    "--api-key": _HTTP,
    "--ssl-keyfile": _HTTP,
    "--ssl-certfile": _HTTP,
}
"""Every flag that `extraArgs` may not hold, with the reason that users read."""

RESERVED_ENVIRONMENT: Final = (
    "POD_IP",
    "HF_TOKEN",
    "VLLM_API_KEY",
    "VLLM_MAX_IMAGE_PIXELS",
    "VLLM_MEDIA_CONNECTOR",
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
    "VLLM_NO_USAGE_STATS",
    "VLLM_PLUGINS",
)
"""Variables that `env` may not name."""

RESERVED_PREFIX: Final = "MMDISAGG_"
"""Variables with this beginning are the plan's too."""


def flag_of(argument: str) -> str | None:
    """Return the flag that an argument names, in vLLM's normal spelling, or None for a flag's value."""
    if not argument.startswith("--"):
        return None
    return argument.partition("=")[0].partition(".")[0].replace("_", "-")


def reserved_flag(argument: str) -> str | None:
    """Return the reserved flag that an argument is or abbreviates, or None."""
    flag = flag_of(argument)
    if flag is None or flag in RESERVED_FLAGS:
        return flag
    return next((reserved for reserved in RESERVED_FLAGS if reserved.startswith(flag)), None)


def reserved_variable(name: str) -> bool:
    """Whether the plan sets the environment variable `name`."""
    return name in RESERVED_ENVIRONMENT or name.startswith(RESERVED_PREFIX)


def _check_argument(argument: str) -> str:
    flag = reserved_flag(argument)
    if flag is not None:
        raise refused(f"{flag} is {RESERVED_FLAGS[flag]}")
    return argument


def _check_variable(name: str) -> str:
    if reserved_variable(name):
        raise refused(f"{name} is {_PLAN}")
    return name


def _listed(names: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"


_NAMED_FLAG: Final = "self.split('=')[0].split('.')[0].replace('_', '-')"
_ARGUMENT_RULE: Final[dict[str, Any]] = {
    "rule": f"!self.startsWith('--') || [{_NAMED_FLAG}].all(flag, "
    f"!{_listed(tuple(RESERVED_FLAGS))}.exists(reserved, reserved.startsWith(flag)))",
    "message": "this flag is set by the plan or not supported; remove it",
}
_VARIABLE_RULE: Final[dict[str, Any]] = {
    "rule": f"!self.startsWith('{RESERVED_PREFIX}') && !(self in {_listed(RESERVED_ENVIRONMENT)})",
    "message": "this variable is set by the plan; remove it",
}

EngineArgument = Annotated[
    str,
    StringConstraints(min_length=1, max_length=2048),
    AfterValidator(_check_argument),
    Field(json_schema_extra={"x-kubernetes-validations": [_ARGUMENT_RULE]}),
]
"""One item of `extraArgs`: a flag that is not reserved, or a flag's value."""

VariableName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128),
    AfterValidator(_check_variable),
    Field(json_schema_extra={"x-kubernetes-validations": [_VARIABLE_RULE]}),
]
"""Name of an environment variable that users may set."""

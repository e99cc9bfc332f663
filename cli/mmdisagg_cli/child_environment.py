"""The environment that a local role gets: what programs need to work here, and what the plan says. Nothing
else.

A role must not depend on what the user's shell happens to hold; the same resource shall start the same
engines in a terminal, in CI and in a pod. Variables of the allow-list reach the role, the plan's own values
win over them.
"""

import os
from collections.abc import Mapping
from pathlib import Path

_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "VIRTUAL_ENV"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES"),
        *("VLLM_LOGGING_LEVEL", "VLLM_CACHE_ROOT"),
    }
)
_PREFIXES = ("LC_", "PYTHON", "HF_", "UCX_", "NIXL_", "NCCL_")


def child_environment(
    inherited: Mapping[str, str], planned: Mapping[str, str], scratch: Path
) -> dict[str, str]:
    """The whole environment of a role.

    Sockets and other temporary files go to `scratch` (TMPDIR), so that a killed engine's are removed with it;
    what is slow to make again (compiled kernels) stays in the user's cache directory.
    """
    kept = {name: value for name, value in inherited.items() if name in _NAMES or name.startswith(_PREFIXES)}
    cache = inherited.get("XDG_CACHE_HOME") or os.path.join(inherited.get("HOME", str(scratch)), ".cache")
    own = {
        "TMPDIR": str(scratch),
        "TORCHINDUCTOR_CACHE_DIR": inherited.get("TORCHINDUCTOR_CACHE_DIR")
        or os.path.join(cache, "mmdisagg", "inductor"),
        "PYTHONUNBUFFERED": "1",
    }
    return {**kept, **own, **planned}

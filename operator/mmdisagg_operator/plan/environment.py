"""Names of the environment variables that the plan sets, and of the worker's command-line seams.

The worker reads the same names; a test compares both sides.
"""

from typing import Final

STAGE_TOKEN: Final = "MMDISAGG_STAGE_TOKEN"  # noqa: S105 - a variable's name
"""Secret that every engine asks for and the router sends."""
TOPOLOGY: Final = "MMDISAGG_TOPOLOGY"
"""`E/P/D`, `E/PD`, `EP/D` or `PD`."""
FAMILY: Final = "MMDISAGG_FAMILY"
"""A family's name, or `Auto`."""
REVISION: Final = "MMDISAGG_REVISION"
"""Hash of what must agree between engines."""
MEDIA: Final = "MMDISAGG_MEDIA"
"""JSON: `allowedHosts`, `allowPrivateNetworks`, `limits` {`images`, `videos`, `bytes`, `pixels`}."""

PLUGINS: Final = "VLLM_PLUGINS"
MEDIA_CONNECTOR: Final = "VLLM_MEDIA_CONNECTOR"
NO_USAGE_STATS: Final = "VLLM_NO_USAGE_STATS"
MAX_IMAGE_PIXELS: Final = "VLLM_MAX_IMAGE_PIXELS"
SIDE_CHANNEL_HOST: Final = "VLLM_NIXL_SIDE_CHANNEL_HOST"
SIDE_CHANNEL_PORT: Final = "VLLM_NIXL_SIDE_CHANNEL_PORT"
POD_IP: Final = "POD_IP"
"""The pod's own address, from the downward API."""
HUB_TOKEN: Final = "HF_TOKEN"  # noqa: S105 - a variable's name
"""Access token for the Hugging Face Hub."""

CPU_KV_CACHE_GIB: Final = "VLLM_CPU_KVCACHE_SPACE"
CPU_THREAD_BINDING: Final = "VLLM_CPU_OMP_THREADS_BIND"
WORKER_START_METHOD: Final = "VLLM_WORKER_MULTIPROC_METHOD"
CPU_THREADS: Final = "OMP_NUM_THREADS"

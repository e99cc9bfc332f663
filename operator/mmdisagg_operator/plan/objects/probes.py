"""When the kubelet may call a container started, dead or ready, and how it ends.

A model may load for an hour, downloads included: the startup probe waits for it. Afterwards an engine that
does not answer for two minutes is restarted, so a stall of 70 s (a long compilation, a slow disk) is no
death. The end: the pod leaves its Services' endpoints, the hook waits until everyone has noticed, the process
then finishes what is in flight, and the grace period is longer than both.
"""

from typing import Any, Final

from mmdisagg_operator.api import Role

STARTUP_SECONDS: Final = 3600
"""How long an engine may load."""
_ROUTER_STARTUP_SECONDS: Final = 120
_PERIOD: Final = 5
_LIVENESS_PERIOD: Final = 10
_DEAD_AFTER: Final = 120
LEAVE_SECONDS: Final = 5
"""How long a pod that must end waits until routers and proxies have seen it leave."""
_KILL_MARGIN: Final = 15


def probes(role: Role) -> dict[str, Any]:
    """Return the probes of a role's container.

    The router is ready when it answers: while engines are missing, clients get its 503 with `Retry-After`,
    which they would not if it left its Service.
    """
    startup = _ROUTER_STARTUP_SECONDS if role is Role.ROUTER else STARTUP_SECONDS
    return {
        "startupProbe": _probe(_PERIOD, startup // _PERIOD),
        "livenessProbe": _probe(_LIVENESS_PERIOD, _DEAD_AFTER // _LIVENESS_PERIOD),
        "readinessProbe": _probe(_PERIOD, 3),
    }


def _probe(period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": "/health", "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def drain_hook() -> dict[str, Any]:
    """Return the container's lifecycle: stay while others notice that the pod leaves."""
    return {"preStop": {"sleep": {"seconds": LEAVE_SECONDS}}}


def grace_seconds(drain_seconds: int) -> int:
    """Return the pod's grace period for a process that finishes its requests for `drain_seconds`."""
    return LEAVE_SECONDS + drain_seconds + _KILL_MARGIN

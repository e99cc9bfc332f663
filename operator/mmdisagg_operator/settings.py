"""What the operator is told: command line first, then environment."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from .plan.objects import Images

_EPILOG: Final = """\
environment:
  POD_NAMESPACE           namespace of the operator itself; holds its Lease (default: default)
  POD_NAME                who holds the Lease (default: host name and process)
  MMDISAGG_WORKER_IMAGE   as --worker-image
  MMDISAGG_ROUTER_IMAGE   as --router-image
  KUBECONFIG              outside of a cluster: how to reach it

exit codes: 0 told to stop, 1 lost its Lease or failed
"""


@dataclass(frozen=True)
class Settings:
    """How the operator runs.

    Attributes:
        namespaces: namespaces to serve; all where empty.
        lease_namespace: namespace of the Lease.
        lease_name: name of the Lease; operators with one name stand in for each other.
        identity: who holds the Lease.
        images: default images.
        resync: seconds after which a deployment is looked at without an event.
        workers: deployments that are worked on at once.
        port: where health and metrics are served; 0 for a free port, None for not at all.
    """

    namespaces: tuple[str, ...] = ()
    lease_namespace: str = "default"
    lease_name: str = "mmdisagg-operator"
    identity: str = "mmdisagg-operator"
    images: Images = field(default_factory=Images)
    resync: float = 300.0
    workers: int = 4
    port: int | None = 8080


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    cli = argparse.ArgumentParser(
        prog="mmdisagg-operator",
        description="Turns MultimodalDisaggDeployments into running engines and a router.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cli.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="namespace to serve, may be repeated; the whole cluster where absent",
    )
    cli.add_argument("--lease-name", default=Settings.lease_name, metavar="NAME", help="default: %(default)s")
    cli.add_argument("--worker-image", metavar="IMAGE", help="for resources without spec.image")
    cli.add_argument("--router-image", metavar="IMAGE", help="for resources without spec.router.image")
    cli.add_argument(
        "--resync", type=_positive, default=Settings.resync, metavar="SECONDS", help="default: %(default)g"
    )
    cli.add_argument(
        "--workers", type=_count, default=Settings.workers, metavar="N", help="default: %(default)s"
    )
    cli.add_argument(
        "--port", type=int, default=Settings.port, help="health and metrics (default: %(default)s)"
    )
    cli.add_argument("--verbose", action="store_true", help="log what kopf does, too")
    return cli


def _positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text}: must be more than 0")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return number


def settings_from(options: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Return the settings of a command line in an environment."""
    return Settings(
        namespaces=tuple(options.namespace),
        lease_namespace=environment.get("POD_NAMESPACE", Settings.lease_namespace),
        lease_name=options.lease_name,
        identity=environment.get("POD_NAME") or f"{os.uname().nodename}_{os.getpid()}",
        images=Images(
            worker=options.worker_image or environment.get("MMDISAGG_WORKER_IMAGE") or None,
            router=options.router_image or environment.get("MMDISAGG_ROUTER_IMAGE") or None,
        ),
        resync=options.resync,
        workers=options.workers,
        port=options.port,
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line; exits with a message when it is wrong."""
    return parser().parse_args(arguments)

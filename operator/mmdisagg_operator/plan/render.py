"""The plan for people and scripts: plain data without secrets."""

from collections.abc import Mapping
from typing import Final, TypedDict

from mmdisagg_operator.api import MultimodalDisaggDeployment

from .launch import FieldReference, Launch
from .launches import launches
from .site import Site

SECRET: Final = "(secret)"  # noqa: S105 - what stands in a secret's place
_SECRET_WORDS: Final = frozenset({"TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIALS"})


class RenderedLaunch(TypedDict):
    """One role as `mmdisagg render` prints it."""

    args: list[str]
    env: dict[str, str]


def render(deployment: MultimodalDisaggDeployment, site: Site) -> dict[str, RenderedLaunch]:
    """Return the arguments and environment of each role, secrets masked.

    Replicas of a role differ only in their addresses; the first one is shown. A role with no replicas is
    left out.
    """
    planned = launches(deployment, site)
    return {str(role): rendered(replicas[0]) for role, replicas in planned.items() if replicas}


def rendered(launch: Launch) -> RenderedLaunch:
    """Return one launch as plain data, secrets masked."""
    filled = {
        name: f"({reference.path})" if isinstance(reference, FieldReference) else SECRET
        for name, reference in launch.references.items()
    }
    return {"args": list(launch.args), "env": {**filled, **_masked(launch.env)}}


def _masked(env: Mapping[str, str]) -> dict[str, str]:
    return {name: SECRET if _SECRET_WORDS & set(name.upper().split("_")) else env[name] for name in env}

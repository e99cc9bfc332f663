"""`mmdisagg render`: each role's engine arguments and environment, as the plan makes them."""

import itertools
import json
import shlex
from collections.abc import Mapping
from enum import StrEnum

import yaml
from rich.table import Table

from mmdisagg_cli.deployment_file import DeploymentFile
from mmdisagg_operator.api import MultimodalDisaggDeployment
from mmdisagg_operator.plan import ClusterSite, LocalSite, Site, local_model, render

_FIRST_PORT = 20000
_EMBEDDINGS = "(made at start)"
_NO_TOKEN = "-" * 64


class Target(StrEnum):
    """Where the roles would run."""

    LOCAL = "local"
    CLUSTER = "cluster"


class Form(StrEnum):
    """How the answer is printed."""

    JSON = "json"
    YAML = "yaml"
    TABLE = "table"


def rendered_roles(file: DeploymentFile, target: Target) -> Mapping[str, Mapping[str, object]]:
    """`{role: {"args": [...], "env": {...}}}`, secrets masked; local ports are examples, chosen free at
    start.
    """
    roles = render(file.deployment, _site(file.deployment, file, target))
    return {role: {"args": launch["args"], "env": launch["env"]} for role, launch in roles.items()}


def as_text(roles: Mapping[str, Mapping[str, object]], form: Form) -> str | Table:
    """The rendered roles as JSON, as YAML or as a table."""
    if form is Form.JSON:
        return json.dumps(roles, indent=2)
    if form is Form.YAML:
        return yaml.safe_dump(roles, sort_keys=False, width=1000).rstrip()
    return _table(roles)


def _site(deployment: MultimodalDisaggDeployment, file: DeploymentFile, target: Target) -> Site:
    if target is Target.CLUSTER:
        return ClusterSite.of(deployment)
    return LocalSite.allocate(
        deployment,
        model=local_model(deployment, file.base),
        embedding_store=_EMBEDDINGS,
        stage_token=_NO_TOKEN,
        ports=itertools.count(_FIRST_PORT),
    )


def _table(roles: Mapping[str, Mapping[str, object]]) -> Table:
    table = Table(show_lines=True)
    for heading in ("role", "arguments", "environment"):
        table.add_column(heading, overflow="fold")
    for role, launch in roles.items():
        args, env = launch["args"], launch["env"]
        assert isinstance(args, list)  # noqa: S101
        assert isinstance(env, dict)  # noqa: S101
        table.add_row(
            role, _argument_lines(args), "\n".join(f"{name}={value}" for name, value in env.items())
        )
    return table


def _argument_lines(args: list[str]) -> str:
    """One flag and its values per line."""
    words = (("\n" if word.startswith("--") else " ") + shlex.quote(word) for word in args)
    return "".join(words).lstrip()

"""What one process is started with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

WORKER: Final = "mmdisagg-worker"
ROUTER: Final = "mmdisagg-router"


@dataclass(frozen=True)
class SecretReference:
    """A variable that a pod takes from a Secret.

    Attributes:
        name: name of the Secret, in the deployment's namespace.
        key: key in the Secret.
    """

    name: str
    key: str


@dataclass(frozen=True)
class FieldReference:
    """A variable that a pod takes from its own object (downward API).

    Attributes:
        path: such as `status.podIP`.
    """

    path: str


Reference: TypeAlias = SecretReference | FieldReference


@dataclass(frozen=True)
class Launch:
    """One process: a program, its arguments and its environment.

    Attributes:
        program: console script, `mmdisagg-worker` or `mmdisagg-router`.
        args: arguments after the program's name.
        env: variables by name; holds the stage token in local mode, so it never enters the repr.
        references: variables that Kubernetes fills in; empty in local mode. A pod must define them before
            `env`, whose values may refer to them as `$(NAME)`.
    """

    program: str
    args: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    references: Mapping[str, Reference] = field(default_factory=dict)

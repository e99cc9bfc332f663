"""What is wrong with a resource, one problem per field.

ResourceError (ValueError)   the document is no valid MultimodalDisaggDeployment; the user must change it
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that the user must change.

    Attributes:
        path: dotted path of the field as YAML spells it, such as `spec.engine.extraArgs[0]`.
        message: what is wrong and, where it is known, what to write instead.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ResourceError(ValueError):
    """A document is no valid resource.

    Attributes:
        problems: every problem found, in the order of the fields.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems: tuple[Problem, ...] = tuple(problems)

"""Reads a `MultimodalDisaggDeployment` from a YAML file, with every mistake told as the file's."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from mmdisagg_cli.errors import CommandError
from mmdisagg_operator.api import MultimodalDisaggDeployment, ResourceError, load_deployment


class DeploymentFileError(CommandError):
    """The file cannot be read, is no YAML, or holds no valid deployment; the message says where and what to
    do.
    """

    exit_code = 2


@dataclass(frozen=True, slots=True)
class DeploymentFile:
    """A deployment and the directory that its relative paths start from."""

    path: Path
    deployment: MultimodalDisaggDeployment

    @property
    def base(self) -> Path:
        """The directory of the file."""
        return self.path.resolve().parent


class _Loader(yaml.SafeLoader):
    """YAML without aliases and without keys that come twice.

    A few lines of aliases can stand for more than the memory holds; of two equal keys one would be lost.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", mark)
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.MappingNode):
            _refuse_repeated(node)
        return node


def _refuse_repeated(mapping: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in mapping.value:
        if isinstance(key, yaml.ScalarNode) and key.value in seen:
            raise yaml.composer.ComposerError(None, None, f"{key.value!r} comes twice", key.start_mark)
        seen.add(str(key.value))


def read_deployment(path: Path) -> DeploymentFile:
    """Read and check a deployment file.

    Raises:
        DeploymentFileError: for whatever is wrong with it.
    """
    try:
        document = yaml.load(path.read_text(), _Loader)  # noqa: S506  (a safe loader)
        return DeploymentFile(path, load_deployment(document))
    except OSError as error:
        raise DeploymentFileError(f"{path}: {error.strerror}") from error
    except ResourceError as error:
        raise DeploymentFileError(f"{path}: {error}") from error
    except RecursionError as error:
        raise DeploymentFileError(f"{path} is nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: no UTF-8, a date like 2024-99-99, a number of thousands of digits, a NUL in the path.
        raise DeploymentFileError(f"{path} is no YAML: {error}") from error

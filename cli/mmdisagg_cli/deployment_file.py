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


def read_deployment(path: Path) -> DeploymentFile:
    """Read and check a deployment file.

    Raises:
        DeploymentFileError: for whatever is wrong with it.
    """
    try:
        document = yaml.safe_load(path.read_text())
        return DeploymentFile(path, load_deployment(document))
    except OSError as error:
        raise DeploymentFileError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DeploymentFileError(f"{path} is no YAML: {error}") from error
    except ResourceError as error:
        raise DeploymentFileError(f"{path}: {error}") from error

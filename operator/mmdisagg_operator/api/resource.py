"""The resource itself."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints

from .spec import Spec
from .status import Status
from .structure import Structure

GROUP: Final = "mmdisagg.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "mmdisagg.io/v1alpha1"
KIND: Final = "MultimodalDisaggDeployment"
PLURAL: Final = "multimodaldisaggdeployments"
SHORT_NAME: Final = "mmdd"

NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_LENGTH: Final = 40
"""Children's names add a role and a revision, and Services end at 63 characters."""


class Metadata(Structure):
    """The part of Kubernetes' object metadata that matters here; the rest is the API server's."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=NAME_LENGTH)]
    """Name of the deployment; the names of its Services begin with it."""
    namespace: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None
    """Namespace, in a cluster."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Labels of the resource."""
    annotations: Mapping[str, str] = Field(default_factory=dict)
    """Annotations of the resource."""
    generation: int = 0
    """Counts changes of the spec; set by the API server."""
    uid: str = ""
    """Identity of the object; set by the API server."""


class MultimodalDisaggDeployment(Structure):
    """One vision-language model, served with encode, prefill and decode on pods of their own."""

    api_version: Literal["mmdisagg.io/v1alpha1"]
    """Group and version."""
    kind: Literal["MultimodalDisaggDeployment"]
    """Kind."""
    metadata: Metadata
    """Name, labels and annotations."""
    spec: Spec
    """What is to be served, and on what."""
    status: Status | None = None
    """What the operator last saw; written by the operator."""

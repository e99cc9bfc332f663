"""Why a condition is what it is: the words that scripts may rely on, and what people should do next."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """The reasons of all conditions; a release may add some, and changes none."""

    AVAILABLE = "Available"
    """Every role serves."""
    DEGRADED = "Degraded"
    """Requests are served, though not everything is as it should be."""
    COMPLETE = "Complete"
    """The last change has reached every pod."""
    READY = "Ready"
    """All pods of the role serve."""
    ROLLING_OUT = "RollingOut"
    """Pods are being added or replaced."""
    INVALID_SPEC = "InvalidSpec"
    """The resource breaks a rule that the API server could not check."""
    REJECTED = "Rejected"
    """The API server refuses an object that follows from the spec."""
    NAME_CONFLICT = "NameConflict"
    """An object with the name of a child belongs to somebody else."""
    APPLY_FAILED = "ApplyFailed"
    """Objects could not be written for now."""
    FORBIDDEN = "Forbidden"
    """The operator may not see what there is."""
    UNKNOWN_FAMILY = "UnknownFamily"
    """The model has no decode contract."""
    WRONG_ENGINE_VERSION = "WrongEngineVersion"
    """The worker image holds another vLLM than the supported one."""
    BAD_SETTINGS = "BadSettings"
    """The process refuses its arguments or environment."""
    MISSING_SECRET = "MissingSecret"  # noqa: S105 - a word, no secret
    """A Secret that the pods need is not there."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """A node cannot get the image."""
    CANNOT_START = "CannotStart"
    """The container cannot be started from its image."""
    OUT_OF_MEMORY = "OutOfMemory"
    """The process needed more memory than its limit."""
    CRASH_LOOP = "CrashLoop"
    """The process ends again and again."""
    PODS_REFUSED = "PodsRefused"
    """The cluster refuses to make the pods: a quota or a policy."""
    INSUFFICIENT_GPU = "InsufficientGPU"
    """No node has enough free accelerators."""
    UNSCHEDULABLE = "Unschedulable"
    """No node fits the pods."""
    VOLUME_PENDING = "VolumePending"
    """A volume is not there yet."""
    EVICTED = "Evicted"
    """A node has thrown pods out."""
    NOT_READY = "NotReady"
    """The process runs, and does not answer."""
    LOADING = "Loading"
    """The model is being loaded."""
    STARTING = "Starting"
    """Pods are being made."""
    TERMINATING = "Terminating"
    """Old pods must end before new ones start."""
    SCALED_TO_ZERO = "ScaledToZero"
    """Nobody wants pods of this role."""


STUCK: Final = (
    Reason.UNKNOWN_FAMILY,
    Reason.WRONG_ENGINE_VERSION,
    Reason.BAD_SETTINGS,
    Reason.MISSING_SECRET,
    Reason.IMAGE_PULL_FAILED,
    Reason.CANNOT_START,
    Reason.OUT_OF_MEMORY,
    Reason.CRASH_LOOP,
    Reason.PODS_REFUSED,
    Reason.INSUFFICIENT_GPU,
    Reason.UNSCHEDULABLE,
    Reason.VOLUME_PENDING,
    Reason.EVICTED,
)
"""What does not pass by waiting, the most telling first."""

PASSING: Final = (Reason.NOT_READY, Reason.LOADING, Reason.STARTING, Reason.TERMINATING)
"""What may pass by waiting, the most telling first."""

REMEDIES: Final[Mapping[Reason, str]] = {
    Reason.UNKNOWN_FAMILY: "Serve a model of a known family, or correct spec.model.family.",
    Reason.WRONG_ENGINE_VERSION: "Set spec.image to a worker image with the supported vLLM.",
    Reason.BAD_SETTINGS: "Correct the field that the message names in the spec.",
    Reason.MISSING_SECRET: "Create the Secret; pods that wait for it then start by themselves.",
    Reason.IMAGE_PULL_FAILED: "Check the image's name and tag, and spec.{role}.imagePullSecrets for a "
    "private registry.",
    Reason.CANNOT_START: "Use an image made from this project's Dockerfiles.",
    Reason.OUT_OF_MEMORY: "Raise the memory limit in spec.{role}.resources; /dev/shm counts towards it.",
    Reason.CRASH_LOOP: "Read the log: kubectl logs -n {namespace} {pod} --previous",
    Reason.PODS_REFUSED: "Raise the quota, or relax the policy that refuses the pods.",
    Reason.INSUFFICIENT_GPU: "Free or add GPUs, or lower spec.{role}.replicas.",
    Reason.UNSCHEDULABLE: "Check spec.{role}.scheduling and spec.{role}.resources against the nodes.",
    Reason.VOLUME_PENDING: "Look at the claim: kubectl describe pvc -n {namespace}",
    Reason.EVICTED: "Look at the node's pressure: kubectl describe pod -n {namespace} {pod}",
    Reason.NOT_READY: "Read the log: kubectl logs -n {namespace} {pod}",
    Reason.LOADING: "Follow it: kubectl logs -f -n {namespace} {pod}",
    Reason.STARTING: "If it lasts: kubectl describe pod -n {namespace} {pod}",
}
"""What a reader of a role's condition does next."""

SURGE_HINT: Final = (
    " A new pod starts before an old one ends; without a spare GPU set spec.rollout.strategy: Recreate."
)
"""Added where a rollout waits for accelerators that the old pods hold."""

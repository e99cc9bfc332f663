"""How far an engine has come while it loads, read from the lines that vLLM 0.32 logs."""

import re
from dataclasses import dataclass
from enum import IntEnum


class Step(IntEnum):
    """The steps of a role's start, in their order."""

    STARTING = 0
    LOADING_WEIGHTS = 1
    WARMING_UP = 2
    ANSWERING = 3
    READY = 4

    @property
    def words(self) -> str:
        """The step as it is shown."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Progress:
    """The step that was reached and, while weights load, the per cent that are loaded."""

    step: Step = Step.STARTING
    percent: int | None = None

    @property
    def words(self) -> str:
        """The progress as it is shown."""
        return self.step.words if self.percent is None else f"{self.step.words} {self.percent} %"


_STEPS = (
    (re.compile(r"Starting to load model|Loading \w+ checkpoint shards"), Step.LOADING_WEIGHTS),
    (re.compile(r"Loading weights took|Model loading took|KV cache size"), Step.WARMING_UP),
    (re.compile(r"Starting vLLM server|Application startup complete"), Step.ANSWERING),
)
_SHARDS = re.compile(r"checkpoint shards:\s+(\d+)% Completed")


def advance(progress: Progress, line: str) -> Progress:
    """The progress after this log line; a role never goes back to an earlier step."""
    reached = max((step for pattern, step in _STEPS if pattern.search(line)), default=Step.STARTING)
    if reached < progress.step or reached is Step.STARTING:
        return progress
    shards = _SHARDS.search(line)
    return Progress(reached, int(shards.group(1)) if shards and reached is Step.LOADING_WEIGHTS else None)

"""When two greedy answers of one model count as the same, although bfloat16 rounds differently in each engine.

Token identity is what is hoped for. Where answers part, the reference itself must have been undecided: the
token that the other engine chose has nearly the reference's own probability. Up to there, probabilities agree.
After it, the two answers continue different texts, and nothing can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

UNDECIDED = 0.15
"""Largest difference between the two log-probabilities, in nats, at which a choice counts as undecided."""
ROUNDING = 0.15
"""Largest difference of a common token's log-probability between the engines, in nats."""
IDENTICAL_SHARE = 0.8
"""Share of answers that must be token-identical all the same: undecided choices are rare."""


@dataclass(frozen=True)
class Step:
    """One token of an answer.

    Attributes:
        token: its text.
        logprob: its log-probability.
        alternatives: log-probabilities of the most probable tokens, its own among them.
    """

    token: str
    logprob: float
    alternatives: Mapping[str, float]


def steps(choice: Mapping) -> list[Step]:
    """Read the steps of a choice of a chat completion that was asked for `top_logprobs`."""
    return [
        Step(one["token"], one["logprob"], {top["token"]: top["logprob"] for top in one["top_logprobs"]})
        for one in choice["logprobs"]["content"]
    ]


def difference(answer: Sequence[Step], reference: Sequence[Step]) -> str | None:
    """Say what is wrong with an answer, or None if it is as good as the reference."""
    for number, (ours, theirs) in enumerate(zip(answer, reference, strict=False), start=1):
        if ours.token != theirs.token:
            return _parting(number, ours, theirs)
        if abs(ours.logprob - theirs.logprob) > ROUNDING:
            return f"token {number} {ours.token!r}: {ours.logprob:.3f} is not {theirs.logprob:.3f}"
    if len(answer) != len(reference):
        return f"{len(answer)} tokens are not {len(reference)}"
    return None


def _parting(number: int, ours: Step, theirs: Step) -> str | None:
    seen = theirs.alternatives.get(ours.token)
    if seen is not None and theirs.logprob - seen <= UNDECIDED:
        return None
    return f"token {number}: {ours.token!r} ({seen}) is not {theirs.token!r} ({theirs.logprob:.3f})"


def identical(answer: Sequence[Step], reference: Sequence[Step]) -> bool:
    """Whether the texts are the same, token for token."""
    return [step.token for step in answer] == [step.token for step in reference]

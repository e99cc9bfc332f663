"""Media that a prompt spells as bare placeholder tokens (decode's expanded prompts)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class TokenPrompts:
    """Watches prompts that spell media as bare placeholder tokens (decode's expanded prompts).

    vLLM knows no media in them, so no other hook is called for them. While their KV blocks are loaded they
    are right; computed here, placeholders would be embedded as text.
    """

    def __init__(self, placeholder_ids: frozenset[int]) -> None:
        self._placeholder_ids = placeholder_ids
        self._media_end: dict[str, int] = {}

    def uncovered(self, scheduler_output: Any) -> set[str]:
        """Requests that this step begins, or resumes after preemption, before the end of their media."""
        for new in scheduler_output.scheduled_new_reqs:
            if not new.mm_features and new.prompt_token_ids:
                self._note(new.req_id, new.prompt_token_ids)
        return {
            name for name, computed in _started(scheduler_output) if computed < self._media_end.get(name, 0)
        }

    def forget(self, request_id: str) -> None:
        """The request is finished."""
        self._media_end.pop(request_id, None)

    def _note(self, request_id: str, tokens: list[int]) -> None:
        for index in range(len(tokens) - 1, -1, -1):
            if tokens[index] in self._placeholder_ids:
                self._media_end[request_id] = index + 1
                return


def _started(scheduler_output: Any) -> Iterator[tuple[str, int]]:
    """Requests that begin or resume in this step, with the tokens that are computed before it."""
    for new in scheduler_output.scheduled_new_reqs:
        yield new.req_id, new.num_computed_tokens
    cached = scheduler_output.scheduled_cached_reqs
    for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        if name in cached.resumed_req_ids:
            yield name, computed

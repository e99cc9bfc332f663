"""Compares the answers of a disaggregated deployment with those of one aggregated engine, token for token."""

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Protocol

from mmdisagg_cli.chat import Answer, ChatError, Content
from mmdisagg_cli.workload import PictureRequest


class Asks(Protocol):
    """Something that answers a message: a `ChatClient`, or a test's stand-in."""

    def ask(self, content: Content, max_tokens: int) -> Answer:
        """Answer one user message; raises ChatError."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the two servers said to one request: an answer each, or the error in words."""

    number: int
    request: PictureRequest
    routed: Answer | str
    reference: Answer | str

    @property
    def failed(self) -> bool:
        """True when either server gave no answer."""
        return isinstance(self.routed, str) or isinstance(self.reference, str)

    @property
    def identical(self) -> bool:
        """True when both answered with the same token ids."""
        return not (isinstance(self.routed, str) or isinstance(self.reference, str)) and (
            self.routed.token_ids == self.reference.token_ids
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """The verdict over all requests; every request is in exactly one of the three counts."""

    requests: int
    identical: int
    different: int
    errors: int

    @property
    def passed(self) -> bool:
        """True when every answer was identical."""
        return self.identical == self.requests

    def to_json(self) -> str:
        """The counts as a JSON object."""
        return json.dumps(asdict(self))

    def in_words(self) -> str:
        """The counts as a line of text."""
        told = {"identical": self.identical, "different": self.different, "errors": self.errors}
        return f"{self.requests} requests: " + ", ".join(f"{count} {word}" for word, count in told.items())


def compare(
    routed: Asks, reference: Asks, requests: Sequence[PictureRequest], max_tokens: int, parallel: int
) -> Iterable[Outcome]:
    """Send every request to both servers, `parallel` requests at a time; outcomes come in the requests'
    order.
    """
    with ThreadPoolExecutor(parallel) as pool:

        def outcome(number: int, request: PictureRequest) -> Outcome:
            answers = (_ask(server, request, max_tokens) for server in (routed, reference))
            return Outcome(number, request, *answers)

        yield from pool.map(outcome, range(1, len(requests) + 1), requests)


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    """Count the outcomes."""
    errors = sum(outcome.failed for outcome in outcomes)
    identical = sum(outcome.identical for outcome in outcomes)
    return Summary(len(outcomes), identical, len(outcomes) - identical - errors, errors)


def tells_pictures_apart(outcomes: Sequence[Outcome]) -> bool:
    """False when the reference gave one answer to everything: then identity proves nothing about pictures."""
    answers = {outcome.reference.token_ids for outcome in outcomes if isinstance(outcome.reference, Answer)}
    return len(answers) > 1 or len(outcomes) < 2


def _ask(server: Asks, request: PictureRequest, max_tokens: int) -> Answer | str:
    try:
        return server.ask(request.content, max_tokens)
    except ChatError as error:
        return str(error)

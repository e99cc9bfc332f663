"""`mmdisagg verify`: is every answer of the disaggregated deployment the aggregated engine's, token for
token?
"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from mmdisagg_cli.chat import Answer
from mmdisagg_cli.comparison import Outcome, Summary, compare, summarise, tells_pictures_apart
from mmdisagg_cli.deployment_file import DeploymentFile
from mmdisagg_cli.side_by_side import side_by_side
from mmdisagg_cli.stop_signals import StopSignals
from mmdisagg_cli.workload import picture_requests

_MAX_TOKENS = 32
_PARALLEL = 4


def verify(
    file: DeploymentFile, count: int, seed: int, timeout_s: float, signals: StopSignals, console: Console
) -> list[Outcome]:
    """Send `count` picture requests to both and return what came back; progress goes to `console`."""
    spec = file.deployment.spec
    requests = list(picture_requests(seed, count, spec.media.limits.images, spec.engine.max_model_len))
    outcomes = []
    with side_by_side(file, signals, console, timeout_s) as pair:
        for outcome in compare(pair.routed, pair.reference, requests, _MAX_TOKENS, _PARALLEL):
            signals.raise_if_received()
            pair.local.check()
            outcomes.append(outcome)
            console.print(
                f"{outcome.number}/{count} {_word(outcome)}: {outcome.request.kind}", highlight=False
            )
    if not tells_pictures_apart(outcomes):
        console.print("warning: the aggregated engine gave one answer to all pictures; this proves little")
    return outcomes


def report(outcomes: Sequence[Outcome]) -> tuple[Summary, Table | None]:
    """The counts, and a table of the requests that were not identical."""
    summary = summarise(outcomes)
    if summary.passed:
        return summary, None
    table = Table(title="not identical", title_justify="left")
    for heading in ("#", "request", "true answer", "through the router", "aggregated engine"):
        table.add_column(heading, overflow="fold")
    for outcome in outcomes:
        if not outcome.identical:
            told = (
                outcome.request.kind,
                outcome.request.truth,
                _said(outcome.routed),
                _said(outcome.reference),
            )
            table.add_row(str(outcome.number), *told)
    return summary, table


def _word(outcome: Outcome) -> str:
    if outcome.failed:
        return "error"
    return "identical" if outcome.identical else "different"


def _said(answer: Answer | str) -> str:
    return f"error: {answer}" if isinstance(answer, str) else f"{answer.text} {list(answer.token_ids)}"

"""`mmdisagg demo`: a picture through encode, prefill and decode, its answer beside an aggregated engine's."""

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.table import Table

from mmdisagg_cli import scenes
from mmdisagg_cli.chat import Answer
from mmdisagg_cli.deployment_file import DeploymentFile
from mmdisagg_cli.errors import CommandError
from mmdisagg_cli.side_by_side import SideBySide, side_by_side
from mmdisagg_cli.stop_signals import StopSignals
from mmdisagg_cli.terminal_picture import half_blocks
from mmdisagg_cli.workload import same_question_other_picture
from mmdisagg_operator.api import Topology

DECODE_BYTES_LIMIT = 2048
"""The most bytes that may travel to decode for one picture."""

_MAX_TOKENS = 48
_DECODE_BYTES_HEADER = "x-mmdisagg-decode-bytes"
_TIMING_HEADER = "server-timing"


class BadPicture(CommandError):
    """The file is no picture, or cannot be read."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Shown:
    """One picture of the demo, the question about it and, for a drawn one, the true answer."""

    picture: Image.Image
    question: str
    truth: str | None

    def content(self) -> list[scenes.TextItem | scenes.ImageItem]:
        """The message's content: the picture, then the question."""
        url = scenes.data_url(self.picture)
        return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": self.question}]


@dataclass(frozen=True, slots=True)
class Told:
    """What came back for one picture."""

    shown: Shown
    routed: Answer
    reference: Answer

    @property
    def identical(self) -> bool:
        """True when both answers have the same token ids."""
        return self.routed.token_ids == self.reference.token_ids

    @property
    def stage_ms(self) -> Mapping[str, float]:
        """How long each stage took, in milliseconds, as the router measured it."""
        return server_timing(self.routed.headers.get(_TIMING_HEADER, ""))

    @property
    def decode_bytes(self) -> int | None:
        """The size of the request that went to decode; None when the router did not say."""
        text = self.routed.headers.get(_DECODE_BYTES_HEADER, "")
        return int(text) if text.isdigit() else None

    @property
    def small(self) -> bool:
        """True when the router said how much went to decode, and it was too little for a picture."""
        return self.decode_bytes is not None and self.decode_bytes < DECODE_BYTES_LIMIT


def shown_pictures(picture: Path | None, question: str | None, seed: int | None) -> list[Shown]:
    """The given picture; without one two drawn pictures of one size, asked the same question."""
    if picture is not None:
        return [Shown(_opened(picture), question or "What is in the image?", None)]
    rng = random.Random(seed)  # noqa: S311
    first = scenes.question(rng)
    drawn = (first, same_question_other_picture(rng, first))
    return [Shown(one.pictures[0], question or first.text, None if question else one.answer) for one in drawn]


def demo(
    file: DeploymentFile,
    pictures: Sequence[Shown],
    timeout_s: float,
    signals: StopSignals,
    output: Console,
    console: Console,
) -> bool:
    """Ask about the pictures on both sides and show everything; True when every answer passed."""
    with side_by_side(file, signals, console, timeout_s) as pair:
        # Not earlier: a demo that ends before it shows anything leaves nothing behind.
        saved = Path(tempfile.mkdtemp(prefix="mmdisagg-demo-"))
        told = []
        for number, shown in enumerate(pictures, 1):
            signals.raise_if_received()
            _show_picture(shown, saved / f"picture-{number}.png", output)
            told.append(_ask(pair, shown))
            output.print(_answers(told[-1]))
    # Where one engine does everything, the picture goes there.
    bound = file.deployment.spec.topology is not Topology.PD
    passed = all(one.identical and (one.small or not bound) for one in told)
    output.print(_verdict(told, bound), style="bold green" if passed else "bold red", highlight=False)
    return passed


def server_timing(header: str) -> dict[str, float]:
    """The durations of a `Server-Timing` header (`encode;dur=12.5, prefill;dur=8`), in milliseconds."""
    durations = {}
    for metric in header.split(","):
        name, *parameters = (word.strip() for word in metric.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key == "dur":
                durations[name] = float(value)
    return durations


def _opened(path: Path) -> Image.Image:
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except OSError as error:
        raise BadPicture(f"{path} cannot be shown: {error}") from error


def _ask(pair: SideBySide, shown: Shown) -> Told:
    content = shown.content()
    return Told(shown, pair.routed.ask(content, _MAX_TOKENS), pair.reference.ask(content, _MAX_TOKENS))


def _show_picture(shown: Shown, path: Path, output: Console) -> None:
    path.write_bytes(scenes.png(shown.picture))
    width, height = shown.picture.size
    output.print(f"\npicture: {width} x {height} pixels, saved as {path}", highlight=False, soft_wrap=True)
    if output.is_terminal:
        output.print(half_blocks(shown.picture))


def _answers(told: Told) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("question", told.shown.question)
    if told.shown.truth is not None:
        table.add_row("true answer", told.shown.truth)
    table.add_row("encode, prefill, decode", told.routed.text)
    table.add_row("one aggregated engine", told.reference.text)
    table.add_row("token ids", "equal" if told.identical else "DIFFERENT")
    for stage, duration in told.stage_ms.items():
        table.add_row(f"time of {stage}", f"{duration:.0f} ms")
    sent = "not reported" if told.decode_bytes is None else str(told.decode_bytes)
    table.add_row("bytes sent to decode", f"{sent} (the picture: {len(scenes.png(told.shown.picture))})")
    return table


def _verdict(told: Sequence[Told], bound: bool) -> str:
    identical = sum(one.identical for one in told)
    verdict = f"{identical} of {len(told)} answers equal to the aggregated engine's, token for token"
    if bound and not all(one.small for one in told):
        verdict += (
            f"; but more than {DECODE_BYTES_LIMIT} bytes went to decode, or the router did not say how many"
        )
    return verdict

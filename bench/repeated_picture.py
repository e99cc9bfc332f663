"""Time to the first token when a picture is asked about again, against the first time.

    python bench/repeated_picture.py [--pictures 20] [--side 448] [-o json]

Each new picture is asked about four times, one request after another, each time with other words *before* it,
so that no key or value of it can come from the prefix cache: what is saved is the encode stage and the
transfer of the embedding. Every request asks for one token. Starts examples/local/shapes.yaml (three engines,
one minute) and ends it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from PIL import Image

from mmdisagg_cli import scenes
from mmdisagg_cli.chat import ChatClient, Content
from mmdisagg_cli.demo import server_timing
from mmdisagg_cli.deployment_file import read_deployment
from mmdisagg_cli.local import LocalDeployment

FILE = Path(__file__).parents[1] / "examples/local/shapes.yaml"
START_SECONDS = 420
REPEATS = 3
WORDS = 20


@dataclass(frozen=True)
class Times:
    """Medians over the requests of one kind, milliseconds.

    Attributes:
        first_token: at the client, from sending the request to its one token.
        encode: of that, the encode stage as the router measured it; 0 where it was left out.
        prefill: the prefill stage, with the fetch of the embedding where there was one.
    """

    first_token: float
    encode: float
    prefill: float


def question(rng: random.Random, picture: Image.Image) -> Content:
    """Return a question about the picture that no other shares a prefix with."""
    url: scenes.ImageUrl = {"url": scenes.data_url(picture)}
    return [
        {"type": "text", "text": scenes.filler(rng, WORDS)},
        {"type": "image_url", "image_url": url},
        {"type": "text", "text": scenes.ask(rng, 1, 0)},
    ]


def noise(rng: random.Random, side: int) -> Image.Image:
    """Return a square picture that was never seen before."""
    return Image.frombytes("RGB", (side, side), rng.randbytes(3 * side * side))


def timed(client: ChatClient, content: Content) -> Times:
    """Ask for one token."""
    started = time.perf_counter()
    answer = client.ask(content, max_tokens=1)
    elapsed = (time.perf_counter() - started) * 1000
    stages = server_timing(answer.headers["server-timing"])
    return Times(elapsed, stages.get("encode", 0.0), stages["prefill"])


def medians(samples: Sequence[Times]) -> dict[str, float]:
    """Return the median of each time."""
    columns = zip(*(asdict(sample).items() for sample in samples), strict=True)
    return {column[0][0]: statistics.median(value for _, value in column) for column in columns}


def compare(pictures: int, side: int) -> dict[str, dict[str, float]]:
    """Return the medians of first requests, of repeated ones, and the ratio of the second to the first."""
    file, rng = read_deployment(FILE), random.Random(1)
    first, repeated = [], []
    with LocalDeployment(file.deployment, file.base) as local:
        local.start(print)
        local.wait_ready(START_SECONDS)
        client = ChatClient(local.url, file.deployment.spec.model.served_name)
        timed(client, question(rng, noise(rng, side)))
        for _ in range(pictures):
            picture = noise(rng, side)
            first.append(timed(client, question(rng, picture)))
            repeated += [timed(client, question(rng, picture)) for _ in range(REPEATS)]
    report = {"first": medians(first), "repeated": medians(repeated)}
    ratio = report["repeated"]["first_token"] / report["first"]["first_token"]
    return report | {"repeated_to_first": {"first_token": ratio}}


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=int, default=20)
    parser.add_argument("--side", type=int, default=448, help="pixels of each side (default: %(default)d)")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options = parser.parse_args()
    report = compare(options.pictures, options.side)
    if options.output == "json":
        print(json.dumps(report, indent=1))
        return
    for name, values in report.items():
        print(f"{name:>18}", "  ".join(f"{key} {value:.2f}" for key, value in values.items()))


if __name__ == "__main__":
    main()

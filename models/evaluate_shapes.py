"""Score the tiny model on its fixed evaluation set: 100 questions, greedy, float32, through transformers.

    python models/evaluate_shapes.py [--model models/shapes]

Prints every wrong answer and the score; exits with 1 under 97 of 100. `--write` draws the set anew from its
own seed (only needed when `mmdisagg_cli.scenes` changes).
"""

import argparse
import base64
import io
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedModel, ProcessorMixin

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "cli"))

from mmdisagg_cli import scenes  # noqa: E402

SHAPES = ROOT / "models" / "shapes"
QUESTIONS = SHAPES / "evaluation" / "questions.jsonl"
NEEDED = 97
ONE_PICTURE, TWO_PICTURES = 60, 40


class Line(TypedDict):
    """One line of the set: all text of the message, the message's OpenAI content, and the right answer."""

    question: str
    content: list[scenes.TextItem | scenes.ImageItem]
    answer: str


def draw() -> Iterator[Line]:
    """The evaluation set: sixty questions on one picture, forty on two.

    Six in ten stand amid 8 to 26 words of filler, 40 to 150 tokens.
    """
    for index in range(ONE_PICTURE + TWO_PICTURES):
        rng = random.Random(f"evaluation {index}")
        filler_words = rng.randint(8, 26) if index % 10 < 6 else 0
        question = scenes.question(rng, 1 if index < ONE_PICTURE else 2, filler_words)
        yield {"question": question.text, "content": question.content(), "answer": question.answer}


def answer(
    model: PreTrainedModel, processor: ProcessorMixin, content: list[scenes.TextItem | scenes.ImageItem]
) -> str:
    """The model's greedy answer to one user message."""
    messages = [{"role": "user", "content": content}]
    prompt = processor.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    pictures = [_picture(item["image_url"]["url"]) for item in content if item["type"] == "image_url"]
    inputs = processor(text=[prompt], images=pictures, return_tensors="pt")
    with torch.no_grad():
        generated = model.generate(**inputs, max_new_tokens=32, do_sample=False)
    text: str = processor.tokenizer.decode(
        generated[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return text


def _picture(data_url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(data_url.partition(",")[2]))).convert("RGB")


def main() -> int:
    """Parse the command line; write the set or score the model."""
    parser = argparse.ArgumentParser(description="Score the tiny model of coloured shapes.")
    parser.add_argument("--model", type=Path, default=SHAPES, help="model folder")
    parser.add_argument("--write", action="store_true", help="draw the evaluation set anew instead")
    arguments = parser.parse_args()
    if arguments.write:
        QUESTIONS.parent.mkdir(parents=True, exist_ok=True)
        QUESTIONS.write_text("".join(json.dumps(line) + "\n" for line in draw()))
        return 0
    return 0 if _score(arguments.model) >= NEEDED else 1


def _score(folder: Path) -> int:
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)
    lines: list[Line] = [json.loads(line) for line in QUESTIONS.read_text().splitlines()]
    right = 0
    for number, line in enumerate(lines, 1):
        given = answer(model, processor, line["content"])
        right += given == line["answer"]
        if given != line["answer"]:
            print(f"question {number}: expected {line['answer']!r}, got {given!r}")
    print(f"{right}/{len(lines)}")
    return right


if __name__ == "__main__":
    raise SystemExit(main())

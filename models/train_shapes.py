"""Train the tiny Qwen2.5-VL that says which coloured shapes a picture shows; write it as a servable folder.

    python models/train_shapes.py --out models/shapes --steps 3600

1.5 million parameters, float32, two CPU cores. What makes it learn in minutes:

- The vision encoder is told directly what each merged patch shows (an auxiliary loss on two linear heads that
  are dropped afterwards); the language model then only has to read it out.
- The curriculum starts with one shape and ends with three pictures amid filler text, follow-up questions and
  system prompts.
- Batches hold samples of like length; logits are computed for answer tokens only.
- The weights that are written are an exponential moving average.

A killed run goes on with `--resume`.
"""

import argparse
import json
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))

from learner import Learner, configuration, new_tokenizer, train_fast
from samples import MAX_PIXELS, MEAN, MIN_PIXELS, PATCH, STD, Sample, batches, check, conversation, encode
from tokenizer import save_qwen_tokenizer

SHAPES = Path(__file__).resolve().parent / "shapes"
PEAK_RATE, WARM_UP, FLOOR = 8e-4, 200, 0.01
AVERAGE = 0.998
CHECK_EVERY = 250


@dataclass(slots=True)
class Run:
    """Everything that a checkpoint keeps."""

    learner: Learner
    optimizer: torch.optim.AdamW
    average: dict[str, torch.Tensor]
    step: int = 0

    def save(self, path: Path) -> None:
        """Write the checkpoint; the old one stays until the new one is whole."""
        state = {
            "learner": self.learner.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average,
            "step": self.step,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        """Continue from a checkpoint."""
        state = torch.load(path, weights_only=True)
        self.learner.load_state_dict(state["learner"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.average, self.step = state["average"], state["step"]


def train(run: Run, tokenizer: PreTrainedTokenizerFast, steps: int, seed: int, checkpoint: Path) -> None:
    """Train up to step `steps`, with a progress line every 50 and a checkpoint every `CHECK_EVERY` steps."""
    started, first = time.monotonic(), run.step
    rng = random.Random(f"{seed} {first}")
    held_out = [encode(tokenizer, *conversation(random.Random(f"held out {i}"), 1.0)) for i in range(128)]
    while run.step < steps:
        for samples in batches(tokenizer, rng, run.step / steps):
            loss, patch_loss = _step(run, samples, _rate(run.step, first, steps))
            if run.step % 50 == 0:
                per_step = (time.monotonic() - started) / (run.step - first)
                left = per_step * (steps - run.step) / 60
                losses = f"loss {loss:.4f} patches {patch_loss:.4f}"
                print(
                    f"step {run.step}/{steps} {losses} {per_step:.3f} s/step ETA {left:.1f} min", flush=True
                )
            if run.step % CHECK_EVERY == 0 or run.step == steps:
                print(f"step {run.step} held-out answers right: {_right(run, held_out):.1%}", flush=True)
                run.save(checkpoint)
            if run.step == steps:
                break


def _rate(step: int, first: int, steps: int) -> float:
    warm = min(1.0, (step - first + 1) / WARM_UP)
    return PEAK_RATE * warm * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * step / steps)))


def _step(run: Run, samples: list[Sample], rate: float) -> tuple[float, float]:
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    logits, tokens, patch_loss = run.learner(samples)
    loss = functional.cross_entropy(logits, tokens)
    run.optimizer.zero_grad()
    (loss + 0.5 * patch_loss).backward()
    nn.utils.clip_grad_norm_(run.learner.parameters(), 1.0)
    run.optimizer.step()
    run.step += 1
    decay = min(AVERAGE, (1 + run.step) / (10 + run.step))
    with torch.no_grad():
        for name, parameter in run.learner.named_parameters():
            run.average[name].lerp_(parameter, 1 - decay)
    return loss.item(), patch_loss.item()


def _right(run: Run, samples: list[Sample]) -> float:
    # Greedy decoding gives the answer exactly when each of its tokens is the likeliest after those before.
    current = {name: parameter.clone() for name, parameter in run.learner.named_parameters()}
    run.learner.load_state_dict(run.average, strict=False)
    right = 0
    with torch.no_grad():
        for sample in samples:
            logits, tokens, _ = run.learner([sample])
            right += bool((logits.argmax(-1) == tokens).all())
    run.learner.load_state_dict(current, strict=False)
    return right / len(samples)


def write(run: Run, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the averaged weights and all that transformers and vLLM need to serve pictures and videos."""
    out.mkdir(parents=True, exist_ok=True)
    run.learner.load_state_dict(run.average, strict=False)
    run.learner.vlm.generation_config.eos_token_id = run.learner.vlm.config.text_config.eos_token_id
    run.learner.vlm.generation_config.pad_token_id = run.learner.vlm.config.text_config.pad_token_id
    run.learner.vlm.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # safetensors writes 0600; pods read as another user
    save_qwen_tokenizer(tokenizer, out)
    shared = {
        "processor_class": "Qwen2_5_VLProcessor",
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": MEAN,
        "image_std": STD,
    }
    _write_json(out / "preprocessor_config.json", {"image_processor_type": "Qwen2VLImageProcessor", **shared})
    _write_json(
        out / "video_preprocessor_config.json", {"video_processor_type": "Qwen2VLVideoProcessor", **shared}
    )


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def main() -> None:
    """Parse the command line, train, write."""
    parser = argparse.ArgumentParser(description="Train the tiny model of coloured shapes.")
    parser.add_argument("--out", type=Path, default=SHAPES, help="folder to write")
    parser.add_argument("--steps", type=int, default=3600, help="optimizer steps in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="default: OUT.checkpoint.pt")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    arguments = parser.parse_args()
    checkpoint = arguments.checkpoint or arguments.out.with_name(arguments.out.name + ".checkpoint.pt")

    torch.manual_seed(arguments.seed)
    tokenizer = new_tokenizer()
    config = configuration(tokenizer)
    check(tokenizer, config)
    train_fast()
    learner = Learner(config)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=PEAK_RATE, weight_decay=0.01, betas=(0.9, 0.98))
    run = Run(
        learner, optimizer, {name: value.detach().clone() for name, value in learner.named_parameters()}
    )
    print(f"{sum(value.numel() for value in learner.vlm.parameters()) / 1e6:.2f} M parameters", flush=True)
    if arguments.resume:
        run.load(checkpoint)
    train(run, tokenizer, arguments.steps, arguments.seed, checkpoint)
    write(run, tokenizer, arguments.out)


if __name__ == "__main__":
    main()

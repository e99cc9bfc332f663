"""Which weights a worker holds: the proof that encode holds no language model.

Part of the worker extension, called by `collective_rpc`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any


class WeightReport:
    """Adds the report to vLLM's worker."""

    model_runner: Any

    def loaded_weight_bytes(self) -> dict[str, int]:
        """Return the bytes of the loaded parameters per top-level module of the model, on this rank."""
        return weight_bytes(self.model_runner.get_model())


def weight_bytes(model: Any) -> dict[str, int]:
    """Sum the bytes of a module's parameters by the first part of their names.

    Args:
        model: a `torch.nn.Module`.
    """
    sums: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        sums[name.partition(".")[0]] += parameter.numel() * parameter.element_size()
    return dict(sums)

"""The report of loaded weights."""

import torch

from mmdisagg_workers.engine.weights import WeightReport, weight_bytes


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = torch.nn.Linear(3, 2)
        self.language_model = torch.nn.Linear(2, 2, bias=False, dtype=torch.float16)


def test_bytes_are_summed_per_top_level_module():
    assert weight_bytes(Model()) == {"visual": (3 * 2 + 2) * 4, "language_model": 2 * 2 * 2}


def test_the_extension_asks_the_workers_own_model():
    worker = WeightReport()
    worker.model_runner = type("Runner", (), {"get_model": staticmethod(Model)})
    assert set(worker.loaded_weight_bytes()) == {"visual", "language_model"}

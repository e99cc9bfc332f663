"""What an engine tells about the media of a request that it finished (`ec_transfer_params`)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

import torch

from mmdisagg_workers.contract import Family, media_fields

REMEMBERED: Final = 4096
"""Items whose metadata are remembered."""


class MediaReport:
    """Collects identity and placeholder metadata of a finished request's media.

    The fields are those that the family's contract names, timing included. Metadata are remembered per
    identity, because an item that vLLM has cached may come without its processed data.
    """

    def __init__(self, contract: Family) -> None:
        self._contract = contract
        self._known: OrderedDict[str, dict[str, list[Any]]] = OrderedDict()

    def of(self, mm_features: list[Any]) -> dict[str, dict[str, Any]] | None:
        """Return `{identity: {"item_indices": [...], "metadata": {...}}}`, or None without media."""
        items: dict[str, dict[str, Any]] = {}
        for index, feature in enumerate(mm_features):
            item = items.setdefault(feature.identifier, {"item_indices": [], "metadata": {}})
            item["item_indices"].append(index)
            item["metadata"] = self._metadata(feature)
        return items or None

    def _metadata(self, feature: Any) -> dict[str, list[Any]]:
        if feature.data is not None:
            self._known[feature.identifier] = self._read(feature.modality, feature.data.get_data())
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return self._known.get(feature.identifier, {})

    def _read(self, modality: Any, data: dict[str, Any]) -> dict[str, list[Any]]:
        fields = media_fields(self._contract, modality)
        names = [fields.grid, fields.timing.name if fields.timing else None]
        return {name: _as_list(data[name]) for name in names if name is not None and name in data}


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return list(torch.atleast_1d(value).tolist())
    return list(value) if isinstance(value, list | tuple) else [value]

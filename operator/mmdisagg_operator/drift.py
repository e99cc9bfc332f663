"""Whether an object in the cluster still has exactly the fields that the operator owns. Pure.

The API server keeps, for each field manager, the set of fields that it applied (`metadata.managedFields`). A
field that somebody else has changed leaves our set, one that we no longer want is still in it: so the set and
the values beneath it together tell whether applying would change anything, without asking the server.

Values may come back in another spelling: a zero value is left out, a quantity is normalised, and a list that
belongs to one owner as a whole gets defaults inside its items. None of these is drift.
"""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from .plan.objects import Manifest

Fields = Mapping[str, Any]
"""A set of fields as `FieldsV1` writes it: `f:name`, `k:{key of a list's item}`, `v:value`, `.`."""

_IDENTITY: Final = ("apiVersion", "kind")
_NAMES: Final = ("name", "namespace")
_QUANTITIES: Final = frozenset({"limits", "requests", "sizeLimit"})
_QUANTITY: Final = re.compile(r"([+-]?[0-9.]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_POWERS: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix.upper()}i": Decimal(1024) ** power for power, suffix in enumerate("kMGTPE", start=1)},
}


def drifted(wanted: Manifest, live: Manifest, manager: str, subresource: str = "") -> bool:
    """Whether applying `wanted` would change `live`.

    Args:
        wanted: what the manager applies.
        live: the object as the API server returns it.
        manager: field manager.
        subresource: the one that `wanted` is applied to.
    """
    owned = owned_fields(live, manager, subresource)
    return owned is None or not _same(_without_identity(wanted), live, owned, quantity=False)


def owned_fields(live: Manifest, manager: str, subresource: str = "") -> Fields | None:
    """Return the fields that a manager has applied, or None when it has never applied any."""
    for entry in live["metadata"].get("managedFields", ()):
        applied = entry.get("operation") == "Apply" and entry.get("manager") == manager
        if applied and entry.get("subresource", "") == subresource:
            fields: Fields = entry.get("fieldsV1", {})
            return fields
    return None


def owns(live: Manifest, manager: str, *path: str) -> bool:
    """Whether a manager has applied the field at `path`."""
    fields: Fields | None = owned_fields(live, manager)
    for name in path:
        if fields is None:
            return False
        fields = fields.get(f"f:{name}")
    return fields is not None


def _without_identity(wanted: Manifest) -> Manifest:
    rest = {name: value for name, value in wanted.items() if name not in _IDENTITY}
    metadata = {name: value for name, value in wanted["metadata"].items() if name not in _NAMES}
    return {**rest, "metadata": metadata}


def _same(wanted: Any, live: Any, fields: Fields, *, quantity: bool) -> bool:
    parts = [key for key in fields if key != "."]
    if not parts:
        return _equal(wanted, live, quantity=quantity)
    if parts[0].startswith("f:"):
        return _same_fields(wanted, live, fields, quantity=quantity)
    if parts[0].startswith("k:"):
        return _same_items(wanted, live, fields)
    return _same_set(wanted, live, fields)


def _same_fields(wanted: Any, live: Any, fields: Fields, *, quantity: bool) -> bool:
    if not isinstance(wanted, Mapping) or not isinstance(live, Mapping):
        return False
    owned = {key[2:] for key in fields if key.startswith("f:")}
    unowned = wanted.keys() - owned
    return (
        owned <= wanted.keys()
        and all(_is_zero(wanted[name]) for name in unowned)
        and all(
            _same(
                wanted[name],
                live.get(name),
                fields[f"f:{name}"],
                quantity=quantity or name in _QUANTITIES,
            )
            for name in owned
        )
    )


def _same_items(wanted: Any, live: Any, fields: Fields) -> bool:
    owned = [(json.loads(key[2:]), inside) for key, inside in fields.items() if key.startswith("k:")]
    if not isinstance(wanted, list) or not isinstance(live, list) or len(owned) != len(wanted):
        return False
    pairs = [(_item(wanted, key), _item(live, key), inside) for key, inside in owned]
    same = all(
        mine is not None and theirs is not None and _same(mine, theirs, inside, quantity=False)
        for mine, theirs, inside in pairs
    )
    return same and _same_order([(wanted.index(mine), live.index(theirs)) for mine, theirs, _ in pairs])


def _same_order(places: list[tuple[int, int]]) -> bool:
    """A variable may refer to those before it; items of others may stand anywhere between."""
    theirs = [place for _, place in sorted(places)]
    return theirs == sorted(theirs)


def _same_set(wanted: Any, live: Any, fields: Fields) -> bool:
    values = {key[2:] for key in fields if key.startswith("v:")}
    mine, theirs = ({_compact(item) for item in items or ()} for items in (wanted, live))
    return mine == values and values <= theirs


def _item(items: list[Any], key: Mapping[str, Any]) -> Any:
    mappings = (item for item in items if isinstance(item, Mapping))
    return next((item for item in mappings if key.items() <= item.items()), None)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _equal(wanted: Any, live: Any, *, quantity: bool) -> bool:
    if live is None and _is_zero(wanted):
        return True
    if isinstance(wanted, Mapping):
        # Whoever adds a key to a value that has one owner takes the ownership too: what is more is a default.
        return isinstance(live, Mapping) and all(
            _equal(value, live.get(name), quantity=quantity or name in _QUANTITIES)
            for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return _equal_lists(wanted, live, quantity=quantity)
    amount = _amount(wanted) if quantity else None
    return bool(wanted == live) or (amount is not None and amount == _amount(live))


def _equal_lists(wanted: list[Any], live: Any, *, quantity: bool) -> bool:
    if not isinstance(live, list) or len(wanted) != len(live):
        return False
    return all(_equal(mine, theirs, quantity=quantity) for mine, theirs in zip(wanted, live, strict=True))


def _is_zero(value: Any) -> bool:
    return value is None or value in ("", 0, False, [], {})


def _amount(value: Any) -> Decimal | None:
    written = _QUANTITY.fullmatch(str(value))
    return Decimal(written[1]) * _POWERS.get(written[2], Decimal(1)) if written else None

"""Family and shape facts of the model, read from its `config.json` before vLLM starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmdisagg_workers.contract import (
    ContractError,
    Family,
    Geometry,
    UnknownFamilyError,
    family,
    geometry_from_config,
    resolve_family,
)

from .settings import AUTO
from .start_errors import BadSettings, UnknownFamily


@dataclass(frozen=True)
class ModelFacts:
    """What the contract says about one model.

    Attributes:
        family: its decode contract.
        geometry: its shape facts.
    """

    family: Family
    geometry: Geometry


def read_config(model: str, revision: str | None = None) -> Mapping[str, Any]:
    """Read the `config.json` of a local directory or of a hub model (from the cache when offline).

    The file may leave out what equals the default of its class (LLaVA's text width, a re-saved model's merge
    size): those are filled in, as vLLM does.

    Raises:
        BadSettings: there is none.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

    try:
        config: Mapping[str, Any] = PretrainedConfig.get_config_dict(model, revision=revision)[0]
    except (OSError, ValueError) as error:
        raise BadSettings(f"--model: no config.json found for {model!r}: {error}") from None
    if not config:
        raise BadSettings(f"--model: no config.json found for {model!r}")
    if config.get("model_type") not in CONFIG_MAPPING:
        return config
    try:
        complete: Mapping[str, Any] = AutoConfig.for_model(**config).to_dict()
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise BadSettings(f"--model: the config.json of {model!r} is malformed: {error}") from None
    return complete


def model_facts(config: Mapping[str, Any], named_family: str = AUTO) -> ModelFacts:
    """Resolve the family, and check the one that was named against what the config says.

    Raises:
        UnknownFamily: the config belongs to no known family, or to another one than named.
        BadSettings: a shape fact is missing in the config.
    """
    try:
        found = resolve_family(config)
        named = found if named_family == AUTO else family(named_family)
    except UnknownFamilyError as error:
        raise UnknownFamily(str(error)) from None
    if named is not found:
        remedy = f"set the family to {found.name} or Auto, or serve another model"
        raise UnknownFamily(f"family: got {named.name!r}, but config.json says {found.name}; {remedy}")
    try:
        return ModelFacts(found, geometry_from_config(found, config))
    except ContractError as error:
        raise BadSettings(f"--model: {error}") from None

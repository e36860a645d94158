"""Values that configurations of layers with a state have in common. Torch-free.

Owns: the accepted forms of these values. Never does: know a family. Called by: the other modules here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from core.api.errors import UserError
from core_runtime.models.configuration import positive

LINEAR = ("linear_attention", "mamba")
"""Kinds of layers with a state. `hybrid` layers have one as well."""


def kind(hf_config: Mapping[str, Any], index: int, default: str) -> str:
    """Return a layer's kind from `layer_types` or, in older configurations, `layers_block_type`; default: kind without
    either key.
    """
    kinds = hf_config.get("layer_types") or hf_config.get("layers_block_type")
    if kinds is None:
        return default
    if not isinstance(kinds, Sequence) or index >= len(kinds):
        raise UserError(f"layer_types is {kinds!r:.120} in the model's configuration; expected a word for each layer.")
    return str(kinds[index])


def number(hf_config: Mapping[str, Any], name: str, default: float) -> float:
    """Return a real number. Raises UserError for any other value."""
    value = hf_config.get(name)
    return real(name, default if value is None else value)


def real(name: str, value: object) -> float:
    """Return a real number, also from the form in which transformers writes infinity to JSON."""
    if isinstance(value, Mapping) and value.get("__float__") == "Infinity":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise UserError(f"{name} has {value!r} in the model's configuration; expected a number.")
    return float(value)


def numbers(hf_config: Mapping[str, Any], name: str, default: Sequence[float]) -> list[float]:
    """Return as many real numbers as the default has. A null stands for the default's number (data about defaults has
    no infinity).
    """
    value = hf_config.get(name)
    if value is None:
        return list(default)
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != len(default):
        raise UserError(f"{name} is {value!r:.120} in the model's configuration; expected {len(default)} numbers.")
    given = [usual if item is None else item for item, usual in zip(value, default, strict=True)]
    return [real(name, item) for item in given]


def flag(hf_config: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return the truth of a key's value, or the default where the key is absent."""
    value = hf_config.get(name)
    return default if value is None else bool(value)


def automatic(hf_config: Mapping[str, Any], name: str, computed: int) -> int:
    """Return an integer of at least 1, or the computed one where the key is absent or `auto`."""
    if hf_config.get(name) in (None, "auto"):
        return computed
    return positive(hf_config, name)


def demand(hf_config: Mapping[str, Any], name: str, expected: str) -> None:
    """Raise UserError unless a key is absent or has the only value that the op supports."""
    value = hf_config.get(name)
    if value not in (None, expected):
        raise UserError(f"{name} is {value!r} in the model's configuration; expected {expected!r} for this family.")

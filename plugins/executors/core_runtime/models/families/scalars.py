"""Biases and scalars of a family, from a configuration. Torch-free.

Owns: how a row names them. Never does: know a family by name. Called by: `build` and `attention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.errors import UserError
from core_runtime.models.families.row import Family


def has_bias(family: Family, hf_config: Mapping[str, Any], part: str, usual: bool) -> bool:
    """Whether a part has a bias, by the row's `biases`. usual: answer for a part that `biases` does not list."""
    said = family.biases.get(part, usual)
    if isinstance(said, bool):
        return said
    return bool(hf_config.get(said, False))


def scalar(family: Family, hf_config: Mapping[str, Any], name: str) -> float:
    """Return a scalar of the row's `scalars`; 1 without one."""
    key = family.scalars.get(name)
    if key is None:
        return 1.0
    own = key.removeprefix("1/")
    value = hf_config.get(own)
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or value == 0:
        raise UserError(f"{own} is {value!r} in the model's configuration; expected a number that is not 0.")
    return 1.0 / value if key.startswith("1/") else float(value)

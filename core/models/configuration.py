"""Values of a Hugging Face style configuration. Torch-free.

Owns: the checks that every family needs. Never does: know a family. Called by: `core.models.families` and its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.errors import UserError


def positive(hf_config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """An integer from 1. Raises UserError."""
    value = hf_config.get(name)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{name} is {value!r} in the model's configuration; expected a positive integer.")
    return value

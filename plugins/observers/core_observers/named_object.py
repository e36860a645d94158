"""Classes and functions of the user's own, which arguments name as `module:Name`.

Owns: importing them, and the sentences about what cannot be imported. Never does: call or make what it found. Called by:
observers and executors with such an argument.
"""

from __future__ import annotations

import importlib
from typing import Any

from core.api.errors import UserError


def named_object(path: str, said: str) -> Any:
    """Import the object at a path, `module:Name` or `module.Name`. said: the argument with its value. Raises UserError."""
    module, colon, attribute = path.partition(":")
    if not colon:
        module, _, attribute = path.rpartition(".")
    if not module or not attribute:
        raise UserError(f"{said}: expected module:Class.")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # raised by the user's module
        raise UserError(f"{said}: {module} cannot be imported: {type(error).__name__}: {error}.") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UserError(f"{said}: {found.__name__} has no '{part}'.")
        found = getattr(found, part)
    return found

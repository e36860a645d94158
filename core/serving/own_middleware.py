"""The user's own ASGI middleware.

Owns: finding it by its import path. Never does: know what it does. Called by: the launcher (checks), the application.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from core.api.errors import UserError


def load_middleware(paths: Sequence[str]) -> list[Any]:
    """Factories, each of an ASGI application around another. Raises UserError."""
    return [_load(path) for path in paths]


def _load(path: str) -> Any:
    module, separator, name = path.partition(":")
    if not separator:
        module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"--middleware {path}: cannot be imported ({error}); expected MODULE.NAME or MODULE:NAME of something installed, "
            "or in a folder named in PYTHONPATH."
        ) from None
    if inspect.isclass(found):
        return found
    if inspect.iscoroutinefunction(found):
        from starlette.middleware.base import BaseHTTPMiddleware

        return functools.partial(BaseHTTPMiddleware, dispatch=found)
    raise UserError(f"--middleware {path}: is a {type(found).__name__}; expected a class or a coroutine function.")

"""The user's own ASGI middleware.

Owns: loading it by its import path. Never does: know what it does. Called by: the launcher (checks), the application.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp

from core.api.errors import UserError


def load_middleware(paths: Sequence[str]) -> list[Any]:
    """Return factories, each of an ASGI application around another. Both this and the factories raise UserError."""
    return [functools.partial(_made, path, _load(path)) for path in paths]


def _made(path: str, factory: Any, app: ASGIApp) -> ASGIApp:
    """Return the middleware around an application."""
    try:
        made = factory(app)
    except Exception as error:
        raise UserError(
            f"--middleware {path}: cannot be made ({type(error).__name__}: {error}); expected a class whose only argument "
            "that must be given is the application."
        ) from error
    if not callable(made):
        raise UserError(f"--middleware {path}: has no __call__(scope, receive, send); expected ASGI middleware.")
    application: ASGIApp = made
    return application


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

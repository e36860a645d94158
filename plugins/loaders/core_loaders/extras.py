"""Libraries that some loaders need and that are installed only when asked for.

Owns: the sentence about one that is missing. Never does: import it (some import torch). Called by: the loaders' `resolve`.
"""

from __future__ import annotations

from importlib.util import find_spec

from core.api.errors import UserError


def require(library: str, extra: str, subject: str) -> None:
    """Raises UserError when `library` is not installed. subject: who needs it."""
    try:
        found = find_spec(library)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise UserError(
            f"{subject}: needs {library}, which is not installed here: pip install 'core-loaders[{extra}]'."
        )

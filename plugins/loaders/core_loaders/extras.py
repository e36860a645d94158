"""Optional libraries of some loaders.

Owns: the error for a missing one. Never does: import it (some import torch). Called by: the loaders' `resolve`.
"""

from __future__ import annotations

from importlib.util import find_spec

from core.api.errors import UserError


def require(library: str, extra: str, subject: str) -> None:
    """Raise UserError when `library` is not installed. subject: the feature that needs it, for the message."""
    try:
        found = find_spec(library)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise UserError(
            f"{subject}: needs {library}, which is not installed here: pip install 'core-engine-loaders[{extra}]'."
        )

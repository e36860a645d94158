"""Checks of resolvers: names come from clients, and answers are places of adapters.

Owns: the checks. Never does: read an adapter. Called by: `core_kit.suite`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from core_kit.case import Failure, Subject

HOSTILE: Final = (
    "",
    ".",
    "..",
    "../etc",
    "/etc",
    "a/../../b",
    "a\0b",
    "\ud800",
    "x" * 10_000,
    "https://host/x",
    "~root",
)
"""Names that clients may send."""


def finds_nothing_hostile(subject: Subject) -> None:
    """A name that is no name of an adapter is not found, and nothing is raised."""
    for name in HOSTILE:
        try:
            found = subject.loaded.find(name)
        except Exception as error:
            raise Failure(f"find({name[:20]!r}) raised {type(error).__name__}: {error}; expected None") from error
        if found is not None:
            raise Failure(f"find({name[:20]!r}) gave {found!r}; expected None")


def gives_absolute_paths(subject: Subject) -> None:
    """What is found is an absolute path."""
    for name in ("adapter", "owner/adapter"):
        found = subject.loaded.find(name)
        if found is not None and not (isinstance(found, str) and os.path.isabs(found)):
            raise Failure(f"find({name!r}) gave {found!r}; expected an absolute path, or None")


CHECKS: tuple[Callable[[Subject], None], ...] = (finds_nothing_hostile, gives_absolute_paths)

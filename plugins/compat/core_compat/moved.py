"""Modules under the names that they had before they moved, for plugins written against them.

Owns: the table of moved modules, and the finder that gives the module itself, never a second copy of it. Never does: keep a
name after `core.plugin.moved.UNTIL`. Called by: the loading of plugins, through the entry point `core.moved_names`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, cast

from core.plugin.moved import UNTIL

MOVED: Final[tuple[tuple[str, str], ...]] = ()
"""Rows of old and new module. A row stands for the modules inside of it, too; a longer row is preferred to a shorter one.
The package of an old module must still exist, or have a row of its own."""


class MovedFinder:
    """Finds a module by its old name; asked first, as the import of `OLD.INNER` would else search the new package's folder
    and run INNER a second time.

    rows: as of MOVED.
    """

    def __init__(self, rows: Sequence[tuple[str, str]]) -> None:
        self._new = {old: new for old, new in rows if old != new}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that has moved; None for any other name."""
        return ModuleSpec(fullname, cast("Any", self)) if self._moved_to(fullname) else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Python's own empty module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the module from where it is, and put it in the place of the empty one."""
        old = module.__name__
        new = self._moved_to(old)
        warnings.warn(f"{old} is {new}; the old name is kept until {UNTIL}", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(new)

    def _moved_to(self, old: str) -> str:
        """The new name, empty for a module that has not moved."""
        parts = old.split(".")
        for end in range(len(parts), 1, -1):
            new = self._new.get(".".join(parts[:end]))
            if new is not None:
                return ".".join([new, *parts[end:]])
        return ""


def install() -> None:
    """Put the finder before all others; not when no module has moved."""
    if MOVED:
        sys.meta_path.insert(0, MovedFinder(MOVED))

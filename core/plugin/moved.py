"""Modules that plugins import from where they were in an earlier version.

Owns: asking the distribution that keeps the old names, and the sentence for who lacks it. Never does: know which modules
have moved. Called by: the loading of manifests, for plugins of other packages alone.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from core.entry_points import load, target_of
from core.version import __version__

GROUP: Final = "core.moved_names"
NAME: Final = "compat"
COMPAT: Final = "core-compat"
"""Distribution that keeps the old names."""
UNTIL: Final = "2027-06-30"
"""Last day on which a release has to keep them."""


@cache
def keep_moved_names() -> None:
    """Have modules found under their old names from now on in this process, where the distribution for that is installed."""
    install = load(GROUP, NAME, COMPAT)
    if install is not None:
        install()


def way_out(module: str) -> str:
    """A remedy for a plugin that imports a module which `core` does not have."""
    if target_of(GROUP, NAME, COMPAT):
        return f"core {__version__} has no {module}, and none that has moved from there; upgrade the plugin"
    keeps = f"`pip install {COMPAT}` keeps the names of modules that have moved, until {UNTIL}"
    return f"core {__version__} has no {module}; {keeps}"

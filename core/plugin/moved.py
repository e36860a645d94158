"""Support for plugins that import modules under their names of an earlier version.

Owns: the call into the distribution that keeps the old names, and the message when it is not installed. Never does: know which
modules have moved. Called by: the loading of manifests, only for plugins of other packages.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from core.entry_points import load, target_of
from core.version import __version__

GROUP: Final = "core.moved_names"
NAME: Final = "compat"
COMPAT: Final = "core-engine-compat"
"""The distribution that keeps the old names."""
UNTIL: Final = "2027-06-30"
"""Last day on which a release has to keep them."""


@cache
def keep_moved_names() -> None:
    """Make modules importable under their old names in this process, when the distribution for that is installed."""
    install = load(GROUP, NAME, COMPAT)
    if install is not None:
        install()


def way_out(module: str) -> str:
    """Return a remedy for a plugin that imports a module which `core` does not have."""
    if target_of(GROUP, NAME, COMPAT):
        return f"core {__version__} has no {module}, and none that has moved from there; upgrade the plugin"
    keeps = f"`pip install {COMPAT}` keeps the names of modules that have moved, until {UNTIL}"
    return f"core {__version__} has no {module}; {keeps}"

"""The check whether an installed package of plugins was made for this version of the engine.

Owns: the comparison of its requirement with the engine's version; our own distributions must have exactly that version.
Never does: look at other requirements, or install. Called by: the listing, `core_kit`.
"""

from __future__ import annotations

import importlib.metadata

from core.plugin.discovery import ENGINE
from core.plugin.distributions import is_own, mismatch
from core.plugin.kinds import normalize
from core.version import __version__


def unmet(distribution: str) -> str:
    """Return a sentence when the package does not fit this version of the engine, else an empty string."""
    if not distribution or distribution == ENGINE:
        return ""
    try:
        if is_own(distribution):
            return mismatch(distribution, importlib.metadata.version(distribution))
        asked = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    for text in asked:
        versions = _versions(text)
        if versions:
            return (
                f"{distribution} asks for {ENGINE}{versions}, this is {__version__}; install a version of either that "
                "fits the other"
            )
    return ""


def _versions(text: str) -> str:
    """Return the versions that a requirement on the engine demands when this one is not among them, else empty."""
    from packaging.requirements import InvalidRequirement, Requirement  # Slow; only third-party packages need it.

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return ""  # pip refuses to install such a package, so it was unpacked by hand.
    if normalize(requirement.name) != normalize(ENGINE):
        return ""
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return ""
    if requirement.specifier.contains(__version__, prereleases=True):
        return ""
    return str(requirement.specifier)

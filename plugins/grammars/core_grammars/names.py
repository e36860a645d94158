"""The backend names that requests and arguments may use.

Owns: the mapping of other engines' names to plugins. Never does: know which plugins are installed.
Called by: config, `core_grammars.spec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

AUTO = "auto"

OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "guidance": "llguidance",
        "outlines": AUTO,
        "outlines_core": AUTO,
        "lm_format_enforcer": AUTO,
    }
)
"""The backend used here for each name in other engines."""


def served_backend(name: str) -> str | None:
    """Return the plugin that a name selects; None for `auto`, an empty name, and names that mean any backend."""
    plain = name.strip().lower().replace("-", "_")
    plain, _, _ = plain.partition(":")  # older engines had options after the name
    meant = OTHER_NAMES.get(plain, plain)
    return None if meant in ("", AUTO) else meant


def note(name: str) -> str:
    """Return a sentence about a name that selects another backend, or an empty string."""
    plain = name.strip().lower().replace("-", "_")
    meant = OTHER_NAMES.get(plain)
    if meant is None:
        return ""
    served = "the first backend that honours the grammar" if meant == AUTO else meant
    return f"structured outputs: '{name}' is not a backend of its own here; {served} serves it."

"""The names of grammar backends that requests and arguments may use.

Owns: which names of other engines mean which plugin here. Never does: know which plugins are installed.
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
"""By the name that other engines have: the backend that serves it here."""


def served_backend(name: str) -> str | None:
    """The plugin that a name means; None for `auto`, an empty name, and names that mean any backend."""
    plain = name.strip().lower().replace("-", "_")
    plain, _, _ = plain.partition(":")  # older engines had options behind the name
    meant = OTHER_NAMES.get(plain, plain)
    return None if meant in ("", AUTO) else meant


def note(name: str) -> str:
    """A sentence about a name that means another backend, or an empty string."""
    plain = name.strip().lower().replace("-", "_")
    meant = OTHER_NAMES.get(plain)
    if meant is None:
        return ""
    served = "the first backend that honours the grammar" if meant == AUTO else meant
    return f"structured outputs: '{name}' is not a backend of its own here; {served} serves it."

"""Chat templates by name, for checkpoints that have none.

Owns: reading `known_templates.toml`. Never does: choose one: a person names it. Called by: the server, `LLM.chat`, and the
error for a model without a template.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

FILE = Path(__file__).with_suffix(".toml")


def known_templates() -> dict[str, str]:
    """Return the Jinja sources by name."""
    rows = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {name: str(source).removeprefix("\n").removesuffix("\n") for name, source in rows.items()}

"""Chat templates of values of `--tokenizer-mode`: models whose messages are written by code beside their weights.

Owns: reading them. Never does: render. Called by: `core_tokens.tokenizer`.
"""

from __future__ import annotations

from pathlib import Path

MODES = ("deepseek_v32",)
"""Values of `--tokenizer-mode` that choose a template; the files are those of `auto`."""


def mode_template(mode: str) -> str | None:
    """Return the Jinja source for a mode; None where the checkpoint's own is used."""
    if mode not in MODES:
        return None
    return (Path(__file__).parent / f"{mode}.jinja").read_text(encoding="utf-8")

"""File names of GGUF models: which files are parts of one model.

Owns: the pattern of names. Never does: open a file. Called by: the loader's manifest and `split`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

PART: Final = re.compile(r"(?P<base>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
PROJECTOR: Final = "mmproj"
"""Prefix of the vision or audio projector files stored next to a model's text weights."""


def models_among(names: Iterable[str]) -> dict[str, list[str]]:
    """Group file names by model: a whole model by its own name, a split one by that of its parts; projectors are left
    out.
    """
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        if not name.lower().endswith(".gguf") or name.lower().startswith(PROJECTOR):
            continue
        part = PART.fullmatch(name)
        model = name if part is None else f"{part['base']}-*-of-{part['count']}.gguf"
        found.setdefault(model, []).append(name)
    return found

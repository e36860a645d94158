"""Matching of the names in a declaration: modules that stay plain, or have a scheme.

Owns: the three notations of names in declarations. Never does: know a method. Called by: methods.

Names are those of the checkpoint. A declaration may also name a module that is a part of another one in the
checkpoint's files (`q_proj` of `qkv_proj`). Then all its parts must match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

FUSED: Final = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Fused modules of some checkpoints → names of their parts in others."""
REGEX: Final = "re:"


def is_meant(module: str, pattern: str) -> bool:
    """Whether a pattern matches a module: a regular expression after `re:`, a glob, a whole name, or the end of one.

    A plain name without dots matches every module of that name; one with dots also everything below it.
    """
    if pattern.startswith(REGEX):
        return re.match(pattern[len(REGEX) :], module) is not None
    if any(sign in pattern for sign in "*?["):
        return fnmatchcase(module, pattern)
    wanted = pattern.strip(".")
    return f".{module}.".find(f".{wanted}.") >= 0


def any_means(module: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns matches the module, or together they match all of its parts."""
    listed = list(patterns)
    if any(is_meant(module, pattern) for pattern in listed):
        return True
    prefix, _, last = module.rpartition(".")
    parts = FUSED.get(last)
    if parts is None:
        return False
    names = [f"{prefix}.{part}".strip(".") for part in parts]
    return all(any(is_meant(name, pattern) for pattern in listed) for name in names)

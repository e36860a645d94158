"""Names of modules that a declaration leaves plain, or gives a scheme.

Owns: the three ways in which declarations write names. Never does: know a method. Called by: methods.

Names are those of the checkpoint. A declaration may also name a module that the checkpoint's files hold as a part of
another one (`q_proj` of `qkv_proj`); then all its parts must be meant.
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
"""Modules of some checkpoints, and the names under which others have their parts."""
REGEX: Final = "re:"


def is_meant(module: str, pattern: str) -> bool:
    """Whether a pattern means a module: a regular expression behind `re:`, a glob, a whole name, or the end of one.

    A plain name without dots means every module that is called so; one with dots also everything below it.
    """
    if pattern.startswith(REGEX):
        return re.match(pattern[len(REGEX) :], module) is not None
    if any(sign in pattern for sign in "*?["):
        return fnmatchcase(module, pattern)
    wanted = pattern.strip(".")
    return f".{module}.".find(f".{wanted}.") >= 0


def any_means(module: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns means the module, or together they mean all of its parts."""
    listed = list(patterns)
    if any(is_meant(module, pattern) for pattern in listed):
        return True
    prefix, _, last = module.rpartition(".")
    parts = FUSED.get(last)
    if parts is None:
        return False
    names = [f"{prefix}.{part}".strip(".") for part in parts]
    return all(any(is_meant(name, pattern) for pattern in listed) for name in names)

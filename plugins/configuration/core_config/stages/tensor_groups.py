"""Counts of a checkpoint's tensors by their purpose.

Owns: the groups and their sums. Never does: decide which tensors are read. Called by: the report about a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from core_runtime.specs.checkpoint import TensorInfo

GROUPS: Final = (
    ("norms", r"norm[^.]*\.(weight|bias)$"),
    ("embedding", r"^model\.(embed_|token_type)"),
    ("output head", r"^lm_head\."),
    ("attention", r"\.self_attn\."),
    ("states", r"\.mixer\."),
    ("experts", r"\.experts\.\d"),
    ("shared experts", r"\.shared_expert"),
    ("router", r"\.gate\."),
    ("MLP", r"\.mlp\."),
)
"""Name of a group, and a pattern of its tensors' canonical names; the first match counts."""
OTHER: Final = "other"


class TensorGroup(msgspec.Struct, frozen=True):
    """A group of a checkpoint's tensors, as stored. examples: up to three names."""

    name: str
    count: int
    nbytes: int
    examples: list[str]


def grouped(tensors: Iterable[tuple[str, TensorInfo]]) -> list[TensorGroup]:
    """Return groups in order of first occurrence. Parts of one stored tensor count once in a group."""
    groups: dict[str, dict[tuple[int, str], TensorInfo]] = {}
    for group, info in tensors:
        groups.setdefault(group, {}).setdefault((info.file, info.source), info)
    found: list[TensorGroup] = []
    for name, members in groups.items():
        nbytes = sum(info.nbytes for info in members.values())
        examples = [info.source for info in members.values()]
        found.append(TensorGroup(name, len(members), nbytes, examples[:3]))
    return found


def group_of(name: str) -> str:
    """Return the group of a canonical name."""
    for group, pattern in GROUPS:
        if re.search(pattern, name):
            return group
    return OTHER

"""Check that the tensors of a module are those that its layout needs.

Owns: the comparison of types and shapes, and the sentences about it. Never does: read a tensor. Torch-free.
Called by: layouts, before they plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from core_quantization.declared.part import StoredPart

FLOATS: Final = ("F32", "F16", "BF16")
"""Types of float scales."""


class Wanted(NamedTuple):
    """A tensor that a layout needs.

    suffix: suffix after the module's name.
    dtypes: accepted types.
    shapes: accepted shapes.
    """

    suffix: str
    dtypes: Sequence[str]
    shapes: Sequence[tuple[int, ...]]


def one_number() -> list[tuple[int, ...]]:
    """Return the shapes of a tensor with one number."""
    return [(), (1,), (1, 1)]


def a_row(rows: int) -> list[tuple[int, ...]]:
    """Return the shapes of a tensor with one number for each row."""
    return [(rows, 1), (rows,)]


def problem(part: StoredPart, wanted: Sequence[Wanted]) -> str | None:
    """Return the end of a sentence about the first tensor that is missing, or of another type or shape; None without a
    problem.
    """
    for suffix, dtypes, shapes in wanted:
        info = part.tensors.get(suffix)
        if info is None:
            return f"module '{part.own_name}' has no tensor '{suffix}'; the checkpoint is incomplete, download it again"
        subject = f"tensor '{info.source}'"
        if info.dtype not in dtypes:
            return f"{subject} has type {info.dtype}, but its declared scheme needs {' or '.join(dtypes)}"
        if tuple(info.shape) not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            n, k = part.shape
            return (
                f"{subject} has shape {list(info.shape)}, but its declared scheme needs {expected} for {n} outputs and {k} "
                "inputs"
            )
    return None

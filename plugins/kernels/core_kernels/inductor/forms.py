"""Forms of calls: calls of one form differ only in their number of rows and share one compiled operation.

Owns: the operations that are compiled, the form of a call, and calls of a form on random numbers. Never does: compile.
Called by: the kernels, for every call; the compiler, for trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from core_kernels.inductor.limits import OPERATIONS

BY_ROWS: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        "rms_norm": (0, 3),
        "gated": (0, 2),
        "rotary": (0, 1, 4),
    }
)
"""For each operation, the arguments that have a row for each row of the step."""
assert set(BY_ROWS) == set(OPERATIONS)


class Shape(NamedTuple):
    """The shape of a tensor argument. size: without the row dimension, where there is one."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    by_rows: bool


class Form(NamedTuple):
    """The properties shared by calls of one operation. arguments: tensors as `Shape`, all others unchanged."""

    operation: str
    arguments: tuple[Any, ...]


def form_of(operation: str, arguments: Sequence[Any]) -> Form:
    """Return the form of a call."""
    by_rows = BY_ROWS[operation]
    found = [_described(argument, index in by_rows) for index, argument in enumerate(arguments)]
    return Form(operation, tuple(found))


def trial(form: Form, rows: int, device: torch.device, random: torch.Generator) -> list[Any]:
    """Return arguments for a call of this form: random numbers around 0, and positions within its tables."""
    tables = [shape for shape in form.arguments if isinstance(shape, Shape) and not shape.by_rows]
    num_positions = min((shape.size[0] for shape in tables), default=1)
    found: list[Any] = []
    for argument in form.arguments:
        if not isinstance(argument, Shape):
            found.append(argument)
        elif argument.dtype.is_floating_point:
            found.append(_numbers(argument, rows, device, random))
        else:
            found.append(torch.randint(num_positions, (rows,), generator=random).to(device, argument.dtype))
    return found


def _described(argument: Any, by_rows: bool) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    size = argument.shape[1:] if by_rows else argument.shape
    return Shape(tuple(size), argument.stride(), argument.dtype, by_rows)


def _numbers(shape: Shape, rows: int, device: torch.device, random: torch.Generator) -> Tensor:
    """Return random numbers with the strides of the form."""
    size = (rows, *shape.size) if shape.by_rows else shape.size
    found = torch.empty_strided(size, shape.stride, dtype=shape.dtype, device=device)
    return found.copy_(torch.randn(size, generator=random))

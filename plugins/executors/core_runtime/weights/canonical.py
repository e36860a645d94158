"""What every canonical weight format has in common.

Owns: rows, devices, sizes and equality of layout, worked out from a format's fields. Never does: know a format.
Called by: the formats (they derive from it), and everything that handles weights without knowing their format.

A format is a frozen dataclass. Every tensor among its fields has one entry for each row of W along its first axis, so
that rows can be taken, concatenated and sharded; all other fields are attributes, equal for the whole weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from core_runtime.weights.input_order import InputOrder

NARROW_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)

CACHE_LINE = 64

INPUT_GROUP: Final = 32
"""Inputs, at most, that share a scale where they are rounded to 8-bit integers by groups; larger groups are cut into these."""


def as_bytes(tensor: Tensor) -> Tensor:
    """The same memory as uint8 where torch can neither index nor concatenate the type."""
    return tensor.view(torch.uint8) if tensor.dtype in NARROW_FLOATS else tensor


Weight = TypeVar("Weight", bound="CanonicalWeight")


@dataclass(frozen=True, slots=True)
class CanonicalWeight(ABC):
    """One logical matrix W of shape [N, K] (output features, input features; y = x @ W.T)."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The format name that kernels are asked about, such as `int4_groups`."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(N, K)."""

    @abstractmethod
    def dequantize(self) -> Tensor:
        """W as float32 [N, K]."""

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are tensors, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def attributes(self) -> dict[str, Any]:
        """The fields that are not tensors, equal for all rows. Includes None for an absent tensor."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if not isinstance(value, Tensor)}

    @property
    def nbytes(self) -> int:
        """Bytes held in memory, those of an order of inputs included."""
        values = [getattr(self, field.name) for field in fields(self)]
        return sum(int(value.nbytes) for value in values if isinstance(value, Tensor | InputOrder))

    def rows(self, index: Tensor | slice) -> Self:
        """The rows `index` (int64 [n], or a slice: a view) as a weight of their own."""
        parts = {}
        for name, tensor in self.tensors().items():
            taken = as_bytes(tensor)[index].contiguous()
            parts[name] = taken.view(tensor.dtype)
        return replace(self, **parts)

    def columns(self, index: Tensor | slice) -> Self:
        """The columns `index` (int64 [n], or a slice of step 1) as a weight of their own: a part of a row-parallel layer.

        Raises ValueError where the format cannot cut there, NotImplementedError where it cannot at all.
        """
        raise NotImplementedError(
            f"a weight of format '{self.name}' cannot be cut along its inputs; give its class a `columns`, or do not "
            "divide the layer"
        )

    def to(self, device: torch.device) -> Self:
        """A copy on another device."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        return replace(self, **moved)

    def problem(self) -> str | None:
        """A sentence when a stored scale or minimum is not a finite number."""
        for name, tensor in self.tensors().items():
            if name in ("values", "weight"):  # the matrix itself may hold anything
                continue
            wide = tensor.float() if tensor.dtype in NARROW_FLOATS else tensor
            if wide.is_floating_point() and not bool(wide.isfinite().all()):
                return f"the {name} of a {self.name} weight of shape {self.shape} holds values that are not finite"
        return None


@runtime_checkable
class HasGroups(Protocol):
    """A weight whose scales belong to groups of inputs."""

    @property
    def group_size(self) -> int:
        """Inputs that share a scale."""
        ...


def memory_of(weight: CanonicalWeight) -> int:
    """Bytes that `moved_into` needs: all tensors, each rounded up to whole cache lines."""
    return sum(_lines(tensor) for tensor in weight.tensors().values())


def moved_into(weight: Weight, memory: Tensor) -> Weight:
    """A copy whose tensors lie in memory, uint8 [memory_of(weight)]."""
    parts = {}
    start = 0
    for name, tensor in weight.tensors().items():
        room = memory[start : start + tensor.nbytes]
        copied = room.view(tensor.dtype).view(tensor.shape)
        copied.copy_(tensor)
        parts[name] = copied
        start += _lines(tensor)
    return replace(weight, **parts)


def _lines(tensor: Tensor) -> int:
    lines = -(-int(tensor.nbytes) // CACHE_LINE)
    return lines * CACHE_LINE


def take_columns(tensor: Tensor, index: Tensor | slice) -> Tensor:
    """Columns of a matrix, contiguous and in memory of their own unless they are all of it."""
    taken = as_bytes(tensor)[:, index].contiguous()
    return taken.view(tensor.dtype)


def whole_groups(index: Tensor | slice, inputs: int, group_size: int, name: str) -> tuple[Tensor, Tensor]:
    """(columns, groups), int64, that an index of columns names. The last group of all may be smaller.

    Raises ValueError unless it names whole groups, each in its order, a smaller one behind all others.
    """
    columns = torch.arange(inputs)[index]
    count = len(columns)
    groups = columns[::group_size] // group_size
    first_columns = groups.unsqueeze(1) * group_size
    expected = (first_columns + torch.arange(group_size)).flatten()
    cut_short = count % group_size != 0 and columns[-1:] != inputs - 1
    if not count or cut_short or not torch.equal(columns, expected[:count]):
        raise ValueError(
            f"a {name} weight of {inputs} inputs shares scales in groups of {group_size}: {count} columns from "
            f"{columns[:1].tolist()} on are not whole groups; divide it into fewer parts"
        )
    return columns, groups


def can_fuse(parts: Sequence[CanonicalWeight]) -> bool:
    """Whether `parts` can be concatenated along N without changing a stored value."""

    def layout(part: CanonicalWeight) -> tuple[Any, ...]:
        dtypes = {name: tensor.dtype for name, tensor in part.tensors().items()}
        return type(part), part.shape[1], part.attributes(), dtypes

    first, *others = parts
    # A part alone is never looked at: a plugin's own format may lack `tensors`.
    return all(layout(part) == layout(first) for part in others)


def fuse(parts: Sequence[CanonicalWeight]) -> CanonicalWeight:
    """Concatenate weights of equal format along N.

    Raises ValueError when their formats differ (`can_fuse` tells beforehand).
    """
    if not can_fuse(parts):
        raise ValueError(f"weights of different formats cannot be fused: {', '.join(p.name for p in parts)}")
    if len(parts) == 1:
        return parts[0]
    joined = {}
    for name, first in parts[0].tensors().items():
        pieces = [as_bytes(part.tensors()[name]) for part in parts]
        joined[name] = torch.cat(pieces).view(first.dtype)
    return replace(parts[0], **joined)

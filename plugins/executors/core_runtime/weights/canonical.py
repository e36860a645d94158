"""The common part of all canonical weight formats.

Owns: row selection, devices, sizes and equality of layout, derived from a format's fields. Never does: know a format.
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
"""Maximum inputs per scale when activations are rounded to 8-bit integers by groups; larger groups are divided."""


def as_bytes(tensor: Tensor) -> Tensor:
    """View a tensor as uint8 if torch can neither index nor concatenate its type."""
    return tensor.view(torch.uint8) if tensor.dtype in NARROW_FLOATS else tensor


Weight = TypeVar("Weight", bound="CanonicalWeight")


@dataclass(frozen=True, slots=True)
class CanonicalWeight(ABC):
    """One logical matrix W of shape [N, K] (output features, input features; y = x @ W.T)."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The format name for kernel queries, such as `int4_groups`."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Logical shape (N, K)."""

    @abstractmethod
    def dequantize(self) -> Tensor:
        """Return W as float32 [N, K]."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that are tensors, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def attributes(self) -> dict[str, Any]:
        """Return the fields that are not tensors, equal for all rows. Includes None for an absent tensor."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if not isinstance(value, Tensor)}

    @property
    def nbytes(self) -> int:
        """Bytes in memory, including an order of inputs."""
        values = [getattr(self, field.name) for field in fields(self)]
        return sum(int(value.nbytes) for value in values if isinstance(value, Tensor | InputOrder))

    def rows(self, index: Tensor | slice) -> Self:
        """Return the rows `index` (int64 [n], or a slice: a view) as a weight."""
        parts = {}
        for name, tensor in self.tensors().items():
            taken = as_bytes(tensor)[index].contiguous()
            parts[name] = taken.view(tensor.dtype)
        return replace(self, **parts)

    def columns(self, index: Tensor | slice) -> Self:
        """Return the columns `index` (int64 [n], or a slice of step 1) as a weight: the part of a row-parallel layer.

        Raises ValueError if the format cannot be cut there, NotImplementedError if it cannot be cut at all.
        """
        raise NotImplementedError(
            f"a weight of format '{self.name}' cannot be cut along its inputs; give its class a `columns`, or do not "
            "divide the layer"
        )

    def to(self, device: torch.device) -> Self:
        """Return a copy on another device."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        return replace(self, **moved)

    def joined(self, others: Sequence[Self]) -> Self:
        """Return one weight of the rows of several, which must be of equal layout; see `can_fuse`."""
        joined = {}
        for name, tensor in self.tensors().items():
            pieces = [as_bytes(tensor), *[as_bytes(other.tensors()[name]) for other in others]]
            joined[name] = torch.cat(pieces).view(tensor.dtype)
        return replace(self, **joined)

    def problem(self) -> str | None:
        """Return an error message if a stored scale or minimum is not finite, else None."""
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
        """Number of inputs that share a scale."""
        ...


def memory_of(weight: CanonicalWeight) -> int:
    """Return the bytes that `moved_into` needs: all tensors, each rounded up to whole cache lines."""
    return sum(_lines(tensor) for tensor in weight.tensors().values())


def moved_into(weight: Weight, memory: Tensor) -> Weight:
    """Return a copy whose tensors lie in `memory`, uint8 [memory_of(weight)]."""
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
    """Return columns of a matrix, contiguous; a copy unless they are the whole matrix."""
    taken = as_bytes(tensor)[:, index].contiguous()
    return taken.view(tensor.dtype)


def whole_groups(index: Tensor | slice, inputs: int, group_size: int, name: str) -> tuple[Tensor, Tensor]:
    """Return (columns, groups), int64, for an index of columns. The last group of all may be smaller.

    Raises ValueError unless the index names whole groups, each in order, with a smaller one at the end.
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
    # A single part is not inspected: a plugin's own format may lack `tensors`.
    return all(layout(part) == layout(first) for part in others)


def fuse(parts: Sequence[CanonicalWeight]) -> CanonicalWeight:
    """Concatenate weights of equal format along N.

    Raises ValueError when their formats differ; see `can_fuse`.
    """
    if not can_fuse(parts):
        raise ValueError(f"weights of different formats cannot be fused: {', '.join(p.name for p in parts)}")
    if len(parts) == 1:
        return parts[0]
    first, *others = parts
    return first.joined(others)

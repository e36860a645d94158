"""Packed linear layers as they are saved, and taken into use again without packing.

Owns: the facts beside the packed bytes, and their checks. Never does: read or write a file.
Called by: `NativeKernels.save` and `restore`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from core.api.specs import Activation
from core_platforms.cpu.native_linear import (
    ACTIVATIONS,
    FORMATS,
    NUM_TABLES,
    ORDER,
    SCALE_TYPES,
    SUPER_FORMATS,
    NativeLinear,
    PackSource,
    pack_source,
)
from core_runtime.contracts import SavedKernel
from core_runtime.weights.formats import CanonicalWeight

LAYOUT = "cpu_native 3"
"""Of the packed bytes, the same for all instruction sets; another number for each change in `native/pack.cpp`."""
NUMBERS = ("format", "group", "super_size", "zero", "scale_type", "input_group")
"""Fields of PackSource that are saved."""
VALUES = 0
"""The first table. It is what tells the extension to pack."""
CODES = 5
ROW_SCALE = 6
BIAS = "bias"
MAX_COUNT = 1 << 31
MAX_ELEMENTS = 1 << 48
MAX_GROUP = 1 << 20
"""Of facts that are believed: no number of bytes that follows from them is too large for the extension."""
PLANES = tuple(FORMATS[name] for name in SUPER_FORMATS)
UNIT = 32
"""Inputs whose planes of bits lie together."""
PLAIN_FORMATS = (FORMATS["float32"], FORMATS["float16"], FORMATS["bfloat16"])


def saved_linear(
    kernel: NativeLinear, weight: CanonicalWeight, activation: Activation, bias: Tensor | None, segments: int
) -> SavedKernel | None:
    """A kernel as it is saved; None when it was not packed into memory of its caller. weight: as it was packed."""
    if kernel.memory is None:
        return None
    source = pack_source(weight, activation)
    numbers = {name: int(getattr(source, name)) for name in NUMBERS}
    present = [number for number, table in enumerate(source.tables) if table is not None]
    facts: dict[str, Any] = {
        "shape": list(source.shape),
        "activation": activation,
        "segments": segments,
        "tables": present,
        **numbers,
    }
    tables: dict[str, Tensor] = {}
    for number, table in enumerate(source.tables):
        if table is not None and number in _kept(source.shape):
            kept = table if number == ORDER else table.float()
            tables[str(number)] = kept.flatten()
    if bias is not None:
        tables[BIAS] = bias.detach().float()
    return SavedKernel(facts, tables, kernel.memory)


def restored_linear(native: ModuleType, saved: SavedKernel) -> NativeLinear:
    """The kernel of a saved one, in its memory. Raises ValueError when the facts do not fit each other or the memory."""
    facts = saved.facts
    shape = tuple(facts.get("shape") or ())
    numbers: dict[str, Any] = {name: facts.get(name) for name in NUMBERS}
    activation = facts.get("activation")
    segments = facts.get("segments")
    present = facts.get("tables")
    counts = [*shape, *numbers.values(), segments]
    whole = all(type(count) is int and 0 <= count < MAX_COUNT for count in counts)
    if len(shape) != 2 or not whole or activation not in ACTIVATIONS or not isinstance(present, list):
        raise ValueError(f"{facts} describes no packed weight")
    if not segments or not _is_sensible((shape[0], shape[1]), numbers):
        raise ValueError(f"{facts} describes no packed weight")
    source = PackSource(shape=shape, tables=_tables(saved, shape, present), **numbers)
    bias = saved.tables.get(BIAS)
    return NativeLinear.held(native, source, activation, bias, saved.memory, segments)


def _is_sensible(shape: tuple[int, int], numbers: dict[str, int]) -> bool:
    """Whether the extension can be given these numbers: none of them makes it divide by zero or count beyond its range."""
    form = numbers["format"]
    group = numbers["group"]
    if form not in FORMATS.values() or numbers["scale_type"] not in SCALE_TYPES.values():
        return False
    if not 0 < shape[0] * shape[1] < MAX_ELEMENTS or group >= MAX_GROUP:
        return False
    if form in PLANES:
        return _has_whole_supers(shape[1], numbers["super_size"], group)
    return form in PLAIN_FORMATS or group > 0


def _tables(saved: SavedKernel, shape: tuple[int, int], present: list[Any]) -> list[Tensor | None]:
    """The tables that were kept; the memory stands for those that are packed in it, whose presence is a fact."""
    kept = _kept(shape)
    tables: list[Tensor | None] = [None] * NUM_TABLES
    for number in present:
        if number == VALUES:
            continue
        if number not in range(len(tables)):
            raise ValueError(f"table {number} is not known")
        table = saved.memory
        if number in kept:
            table = saved.tables[str(number)]
            dtype = torch.int32 if number == ORDER else torch.float32
            if table.dtype is not dtype or tuple(table.shape) != (kept[number],):
                raise ValueError(
                    f"table {number} is {table.dtype} {tuple(table.shape)}, expected {dtype} ({kept[number]},)"
                )
            if number == ORDER and not torch.equal(table.sort().values, torch.arange(shape[1], dtype=torch.int32)):
                raise ValueError(f"table {number} is no order of {shape[1]} inputs")
        tables[number] = table
    return tables


def _kept(shape: tuple[int, int]) -> dict[int, int]:
    """Tables that are not packed, and their lengths."""
    return {ORDER: shape[1], CODES: 16, ROW_SCALE: shape[0]}


def _has_whole_supers(inputs: int, super_size: int, group: int) -> bool:
    """Whether super-groups divide the inputs, and groups and units the super-groups."""
    if not super_size or not group or inputs % super_size:
        return False
    return super_size % UNIT == 0 and UNIT % group == 0

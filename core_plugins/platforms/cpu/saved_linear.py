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
from core.plugin.contracts import SavedKernel
from core.weights.formats import CanonicalWeight
from core_plugins.platforms.cpu.native_linear import (
    ACTIVATIONS,
    FORMATS,
    SCALE_TYPES,
    NativeLinear,
    PackSource,
    pack_source,
)

LAYOUT = "cpu_native 1"
"""Of the packed bytes, the same for all instruction sets; another number for each change in `native/pack.cpp`."""
NUMBERS = ("format", "group", "zero", "scale_type")
"""Fields of PackSource that are saved."""
VALUES = 0
"""The first table. It is what tells the extension to pack."""
CODES = 3
ROW_SCALE = 4
BIAS = "bias"
MAX_COUNT = 1 << 31
MAX_ELEMENTS = 1 << 48
MAX_GROUP = 1 << 20
"""Of facts that are believed: no number of bytes that follows from them is too large for the extension."""
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
            tables[str(number)] = table.float().flatten()
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
    is_plain = numbers["format"] in PLAIN_FORMATS
    known = numbers["format"] in FORMATS.values() and numbers["scale_type"] in SCALE_TYPES.values()
    sensible = 0 < shape[0] * shape[1] < MAX_ELEMENTS and numbers["group"] < MAX_GROUP
    if not known or not sensible or not segments or not (is_plain or numbers["group"]):
        raise ValueError(f"{facts} describes no packed weight")
    source = PackSource(shape=shape, tables=_tables(saved, shape, present), **numbers)
    bias = saved.tables.get(BIAS)
    return NativeLinear.held(native, source, activation, bias, saved.memory, segments)


def _tables(saved: SavedKernel, shape: tuple[int, int], present: list[Any]) -> list[Tensor | None]:
    """The tables that were kept; the memory stands for those that are packed in it, whose presence is a fact."""
    kept = _kept(shape)
    tables: list[Tensor | None] = [None] * (ROW_SCALE + 1)
    for number in present:
        if number == VALUES:
            continue
        if number not in range(len(tables)):
            raise ValueError(f"table {number} is not known")
        table = saved.memory
        if number in kept:
            table = saved.tables[str(number)]
            if table.dtype is not torch.float32 or tuple(table.shape) != (kept[number],):
                raise ValueError(
                    f"table {number} is {table.dtype} {tuple(table.shape)}, expected float32 ({kept[number]},)"
                )
        tables[number] = table
    return tables


def _kept(shape: tuple[int, int]) -> dict[int, int]:
    """Tables that are not packed, and their lengths."""
    return {CODES: 16, ROW_SCALE: shape[0]}

"""Saved packed linear layers, and their reuse without packing.

Owns: the metadata stored with the packed bytes, and its checks. Never does: read or write a file.
Called by: `NativeKernels.save` and `restore`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType, ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from core.api.specs import Activation
from core_platforms.cpu.input_rounding import RULES
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
from core_runtime.weights.input_rounding import NUMBERS as KINDS
from core_runtime.weights.input_rounding import InputRounding

LAYOUT = "cpu_native 3"
"""Version of the packed layout, the same for all instruction sets; raise it with each change in `native/pack.cpp`."""
NUMBERS = ("format", "group", "super_size", "zero", "scale_type", "input_group")
"""Fields of PackSource stored in the metadata."""
VALUES = 0
"""Index of the values table. Its presence makes the extension pack."""
CODES = 5
ROW_SCALE = 6
BIAS = "bias"
INPUTS = "inputs"
"""Key of the rounding of inputs in the metadata."""
MAX_COUNT = 1 << 31
MAX_ELEMENTS = 1 << 48
MAX_GROUP = 1 << 20
"""Upper limit on saved sizes, so that no byte count computed from them overflows in the extension."""
PLANES = tuple(FORMATS[name] for name in SUPER_FORMATS)
ROUNDING: Final[Mapping[str, Callable[[Any], bool]]] = MappingProxyType(
    {
        "numbers": lambda value: isinstance(value, str) and value in KINDS,
        "rule": lambda value: isinstance(value, str) and value in RULES,
        "group_size": lambda value: type(value) is int and 0 <= value < MAX_GROUP,
        "scale": lambda value: type(value) in (int, float) and 0 < value < math.inf,
        "zero": lambda value: type(value) is int and abs(value) < MAX_GROUP,
        "bound": lambda value: type(value) in (int, float) and value > 0,
    }
)
"""Whether each value of a rounding can be that."""
UNIT = 32
"""Inputs whose bit planes are stored together."""
PLAIN_FORMATS = (FORMATS["float32"], FORMATS["float16"], FORMATS["bfloat16"])


def saved_linear(
    kernel: NativeLinear, weight: CanonicalWeight, activation: Activation, bias: Tensor | None, segments: int
) -> SavedKernel | None:
    """Describe a packed kernel for saving; None when it was not packed into its caller's memory. weight: as it was
    packed.
    """
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
    if kernel.rounding is not None:
        facts[INPUTS] = _described(kernel.rounding)
    tables: dict[str, Tensor] = {}
    for number, table in enumerate(source.tables):
        if table is not None and number in _kept(source.shape):
            kept = table if number == ORDER else table.float()
            tables[str(number)] = kept.flatten()
    if bias is not None:
        tables[BIAS] = bias.detach().float()
    return SavedKernel(facts, tables, kernel.memory)


def restored_linear(native: ModuleType, saved: SavedKernel) -> NativeLinear:
    """Rebuild a saved kernel in its own memory. Raises ValueError when the metadata is inconsistent or does not fit the
    memory.
    """
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
    kernel = NativeLinear.held(native, source, activation, bias, saved.memory, segments)
    if INPUTS in facts and not kernel.round_inputs(_rounding(facts[INPUTS])):
        raise ValueError(f"{facts} describes inputs in groups that do not divide them")
    return kernel


def _described(step: InputRounding) -> dict[str, Any]:
    """Return a rounding as JSON values; a bound of infinity is null."""
    values = asdict(step)
    return values if math.isfinite(step.bound) else {**values, "bound": None}


def _rounding(values: object) -> InputRounding:
    """Return a described rounding. Raises ValueError for one that cannot be."""
    if isinstance(values, dict) and values.keys() == ROUNDING.keys():
        described: dict[str, Any] = {**values, "bound": math.inf if values["bound"] is None else values["bound"]}
        if all(can_be(described[name]) for name, can_be in ROUNDING.items()):
            described |= {name: float(described[name]) for name in ("scale", "bound")}
            return InputRounding(**described)
    raise ValueError(f"{values!r} describes no rounding of inputs")


def _is_sensible(shape: tuple[int, int], numbers: dict[str, int]) -> bool:
    """Whether the extension can take these numbers: none of them makes it divide by zero or overflow."""
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
    """Return the saved tables. The packed memory stands in for tables packed into it; the metadata records which exist."""
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
    """Return the lengths of the tables that are stored unpacked."""
    return {ORDER: shape[1], CODES: 16, ROW_SCALE: shape[0]}


def _has_whole_supers(inputs: int, super_size: int, group: int) -> bool:
    """Whether super-groups divide the inputs evenly, and groups and units divide the super-groups."""
    if not super_size or not group or inputs % super_size:
        return False
    return super_size % UNIT == 0 and UNIT % group == 0

"""A launched product, analysed and rebuilt with random weights.

Owns: the analysis and the random weights. Never does: measure. Called by: tuning.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from core_kernels.triton.compiling.launches import Call, Pointer
from core_kernels.triton.products.forms import TENSORS
from core_kernels.triton.products.kernel import SIZES
from core_kernels.triton.products.packed import Form, Packed
from core_kernels.triton.products.product import Routed, counted
from core_kernels.triton.products.tile_rows import Key
from core_kernels.triton.products.tiles import weight_word

EXPERTS: Final = 8
"""Experts of a measured layer: as many matrices are read one after another."""
MANY_ROWS: Final = 512
"""Row count that represents "any number"."""
TABLE: Final = 256
WIDTHS: Final = {
    "values": "value_stride",
    "high": "high_stride",
    "scale": "scale_stride",
    "minimum": "scale_stride",
    "zeros": "scale_stride",
    "sub_scale": "sub_stride",
    "sub_minimum": "sub_stride",
}
"""Stride argument of each tensor."""


class Work(NamedTuple):
    """A product of a model.

    key: of its table lines. form: of the weight. compute: Triton's name of its type.
    tensors: torch dtypes of the weight's tensors by name.
    sizes: the weight's sizes in kernel order, see `Packed.sizes`.
    routed: whether its rows are routed to experts.
    """

    key: Key
    form: Form
    compute: str
    tensors: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, int], ...]
    routed: bool


def work_of(call: Call, chip: str) -> Work:
    """Return the product that a launch computes a part of."""
    constants = dict(call.launch.constants)
    arguments = dict(call.launch.arguments)
    numbers = dict(call.numbers)
    form: Form = constants["FORM"]
    compute = str(constants["COMPUTE"])
    narrow = torch.float8_e4m3fn if compute == "fp8e4nv" else torch.bfloat16
    word = weight_word(form, torch.float32 if compute == "fp32" else narrow)
    if word == "dense" and "pairs" in arguments:
        word = "experts"
    elif word == "dense" and constants["SEGMENTS"] > 1:
        word = "segments"
    tensors = []
    for name in TENSORS:
        kind = arguments.get(name)
        if isinstance(kind, Pointer):
            tensors.append((name, str(kind.dtype).removeprefix("torch.")))
    key = Key(chip, word, numbers["num_outputs"], numbers["num_inputs"])
    sizes = tuple((name, numbers[name]) for name in SIZES)
    return Work(key, form, compute, tuple(tensors), sizes, "pairs" in arguments)


def noise_weight(work: Work, device: torch.device) -> Packed:
    """Build a random weight of that form and size; for experts, all of them, with the shape of one."""
    sizes = dict(work.sizes)
    rows = work.key.outputs * (EXPERTS if work.routed else 1)
    tensors: dict[str, Tensor] = {}
    for name, dtype in work.tensors:
        shape: tuple[int, ...] = (TABLE,) if name == "table" else (rows,)
        if name in WIDTHS:
            shape = rows, sizes[WIDTHS[name]]
        tensors[name] = _noise(shape, getattr(torch, dtype), device)
    shape = work.key.outputs, work.key.inputs
    values = tensors.pop("values")
    made = Packed(shape, work.form, values, sizes["super_size"], sizes["group_size"], sizes["zero"], **tensors)
    return made if work.routed else counted(made)


def routed_rows(level: int, device: torch.device) -> Routed:
    """Return blocks of `level` rows, one per expert."""
    size = level or 128
    pairs = torch.arange(EXPERTS * size, dtype=torch.int32, device=device)
    experts = torch.arange(EXPERTS, dtype=torch.int32, device=device)
    return Routed(pairs, experts, 1, EXPERTS, size)


def num_rows(work: Work, level: int) -> int:
    """Return the number of rows of x that represents a level."""
    if work.routed:
        return EXPERTS * (level or 128)
    return level or MANY_ROWS


def _noise(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, device=device).to(dtype)
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return torch.randint(least, most, shape, dtype=dtype, device=device)

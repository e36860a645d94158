"""Trial calls of the small operations of a kernel provider.

Owns: the inputs of one call each. Never does: compare. Called by: the kernel checks, with the provider and the reference.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from core.plugin.contracts import HasSoftCap, HasTakeRows, Kernels
from core.testing.numbers import generator


def _rows(rows: int, width: int, random: torch.Generator) -> Tensor:
    """Normal values [rows, width] whose rows lie apart."""
    return torch.randn(rows, width + 8, generator=random)[:, :width]


def _room(rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Memory [rows, width + 8] of zeros, and its first columns as `out`: what lies behind them must stay as it is."""
    memory = torch.zeros(rows, width + 8)
    return memory, memory[:, :width]


def _rms_norm(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("norm")
    x = _rows(rows, 96, random)
    weight = torch.randn(96, generator=random)
    memory, out = _room(rows, 96)
    kernels.rms_norm(x, weight, 1e-6, out)
    return [memory]


def _rms_norm_heads(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("heads")
    x = torch.randn(rows, 6, 32, generator=random)
    weight = torch.randn(32, generator=random)
    some_heads = x[:, :4]
    kernels.rms_norm_heads(some_heads, weight, 1e-6)
    return [x]


def _rotary(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("rotary")
    x = torch.randn(rows, 6, 32, generator=random)
    q = x[:, :4]
    k = x[:, 4:]
    angles = torch.rand(64, 16, generator=random) * 6
    positions = torch.randint(0, 64, (rows,), generator=random)
    kernels.rotary(q, k, angles.cos(), angles.sin(), positions)
    return [x]


def _gated(kernels: Kernels, rows: int) -> list[Tensor]:
    x = _rows(rows, 160, generator("gate")) * 3
    found = []
    for activation in ("silu", "gelu_tanh"):
        memory, out = _room(rows, 80)
        kernels.gated(x, activation, out)
        found.append(memory)
    return found


def _add(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("add")
    x = _rows(rows, 96, random)
    residual = _rows(rows, 96, random)
    kernels.add(x, residual)
    return [x, residual]


def _scale(kernels: Kernels, rows: int) -> list[Tensor]:
    x = _rows(rows, 96, generator("scale"))
    kernels.scale(x, 3.25)
    return [x]


def _soft_cap(kernels: Kernels, rows: int) -> list[Tensor]:
    x = torch.randn(rows, 97, generator=generator("cap")) * 40
    assert isinstance(kernels, HasSoftCap)
    kernels.soft_cap(x, 30.0)
    return [x]


def _take_rows(kernels: Kernels, rows: int) -> list[Tensor]:
    assert isinstance(kernels, HasTakeRows)
    x = _rows(40, 97, generator("take"))
    memory, out = _room(rows, 97)
    ids = torch.arange(rows) * 7 % 40
    kernels.take_rows(x, ids, out)
    return [memory]


OPERATIONS: dict[str, Callable[[Kernels, int], list[Tensor]]] = {
    "rms_norm": _rms_norm,
    "rms_norm_heads": _rms_norm_heads,
    "rotary": _rotary,
    "gated": _gated,
    "add": _add,
    "scale": _scale,
    "soft_cap": _soft_cap,
    "take_rows": _take_rows,
}
"""The trial of each operation; a new operation is one more row."""

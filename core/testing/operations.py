"""Trial calls of the small operations of a kernel provider.

Owns: the inputs of one call each. Never does: compare. Called by: the kernel checks, with the provider and the reference.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from core.plugin.contracts import Kernels
from core.testing.numbers import generator


def _rms_norm(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("norm")
    x = torch.randn(rows, 96, generator=random)
    weight = torch.randn(96, generator=random)
    out = torch.empty(rows, 96)
    kernels.rms_norm(x, weight, 1e-6, out)
    return [out]


def _rms_norm_heads(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("heads")
    x = torch.randn(rows, 6, 32, generator=random)
    weight = torch.randn(32, generator=random)
    kernels.rms_norm_heads(x[:, :4], weight, 1e-6)
    return [x]


def _rotary(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("rotary")
    x = torch.randn(rows, 6, 32, generator=random)
    angles = torch.rand(64, 16, generator=random) * 6
    positions = torch.randint(0, 64, (rows,), generator=random)
    kernels.rotary(x[:, :4], x[:, 4:], angles.cos(), angles.sin(), positions)
    return [x]


def _gated(kernels: Kernels, rows: int) -> list[Tensor]:
    x = torch.randn(rows, 160, generator=generator("gate")) * 3
    results = []
    for activation in ("silu", "gelu_tanh"):
        out = torch.empty(rows, 80)
        kernels.gated(x, activation, out)
        results.append(out)
    return results


def _add(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("add")
    x = torch.randn(rows, 96, generator=random)
    residual = torch.randn(rows, 96, generator=random)
    kernels.add(x, residual)
    return [x, residual]


def _scale(kernels: Kernels, rows: int) -> list[Tensor]:
    x = torch.randn(rows, 96, generator=generator("scale"))
    kernels.scale(x, 3.25)
    return [x]


def _soft_cap(kernels: Kernels, rows: int) -> list[Tensor]:
    x = torch.randn(rows, 97, generator=generator("cap")) * 40
    _optional(kernels, "soft_cap")(x, 30.0)
    return [x]


def _take_rows(kernels: Kernels, rows: int) -> list[Tensor]:
    wide = torch.randn(40, 104, generator=generator("take"))
    x = wide[:, :97]
    chosen = torch.arange(rows) * 7 % 40
    out = torch.empty(rows, 97)
    _optional(kernels, "take_rows")(x, chosen, out)
    return [out]


def _optional(kernels: Kernels, name: str) -> Callable[..., None]:
    """A method that not every provider has."""
    found: Callable[..., None] = getattr(kernels, name)
    return found


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

"""Trial calls of the small operations of a kernel provider.

Owns: the inputs of one call each. Never does: compare. Called by: the kernel checks, with the provider and the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from core_kit.oracles.numbers import generator
from core_runtime.contracts import (
    HasActivate,
    HasAddNorm,
    HasLayerNorm,
    HasOpenGate,
    HasSoftCap,
    HasTakeNorm,
    HasTakeRows,
    Kernels,
)
from core_runtime.layers.activations import parse
from core_runtime.layers.features import features_of

GATES = (
    *("silu", "gelu_tanh", "gelu", "relu", "relu2", "quick_gelu"),
    *("xielu:0.7:1.3:0.5:-0.001", "clamped_swiglu:1.7:2", "clamped_silu:0.8"),
)
ALONE = GATES[:-2]


def _rows(rows: int, width: int, random: torch.Generator) -> Tensor:
    """Return normal values [rows, width] with gaps between the rows."""
    return torch.randn(rows, width + 8, generator=random)[:, :width]


def _room(rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Return zeroed memory [rows, width + 8], and its first columns as `out`: the columns after them must not change."""
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
    if "norms_by_head" in features_of(kernels):
        by_head = torch.randn(2, 32, generator=random)
        kernels.rms_norm_heads(x[:, 4:], by_head, 1e-6)
    return [x]


def _layer_norm(kernels: Kernels, rows: int) -> list[Tensor]:
    assert isinstance(kernels, HasLayerNorm)
    random = generator("layer norm")
    x = _rows(rows, 97, random) + 5
    weight = torch.randn(97, generator=random)
    bias = torch.randn(97, generator=random)
    memory, out = _room(rows, 97)
    kernels.layer_norm(x, weight, bias, 1e-5, out)
    bare, second = _room(rows, 97)
    kernels.layer_norm(x, weight, None, 1e-5, second)
    return [memory, bare]


def _layer_norm_heads(kernels: Kernels, rows: int) -> list[Tensor]:
    assert isinstance(kernels, HasLayerNorm)
    random = generator("layer norm of heads")
    x = torch.randn(rows, 6, 20, generator=random)
    weight = torch.randn(4, 20, generator=random)
    kernels.layer_norm_heads(x[:, :4], weight, None, 1e-5)
    kernels.layer_norm_heads(x[:, 4:], weight[0].clone(), weight[1].clone(), 1e-5)
    return [x]


def _rotary(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("rotary")
    x = torch.randn(rows, 6, 32, generator=random)
    q = x[:, :4]
    k = x[:, 4:]
    angles = torch.rand(64, 16, generator=random) * 6
    positions = torch.randint(0, 64, (rows,), generator=random)
    kernels.rotary(q, k, angles.cos(), angles.sin(), positions)
    if "partial_rotary" in features_of(kernels):
        few = angles[:, :5].contiguous()
        kernels.rotary(q, k, few.cos(), few.sin(), positions)
    return [x]


def _gated(kernels: Kernels, rows: int) -> list[Tensor]:
    x = _rows(rows, 160, generator("gate")) * 3
    found = []
    for activation in served_activations(kernels, GATES):
        memory, out = _room(rows, 80)
        kernels.gated(x, activation, out)
        found.append(memory)
    return found


def _activate(kernels: Kernels, rows: int) -> list[Tensor]:
    assert isinstance(kernels, HasActivate)
    x = _rows(rows, 83, generator("activate")) * 3
    found = []
    for activation in served_activations(kernels, ALONE):
        memory, out = _room(rows, 83)
        kernels.activate(x, activation, out)
        found.append(memory)
    return found


def served_activations(part: Any, names: Sequence[str] = GATES) -> list[str]:
    """Return the activation names whose kind a provider, or one of its kernels, serves."""
    features = features_of(part)
    return [name for name in names if parse(name).kind in features]


def _add(kernels: Kernels, rows: int) -> list[Tensor]:
    random = generator("add")
    x = _rows(rows, 96, random)
    residual = _rows(rows, 96, random)
    kernels.add(x, residual)
    return [x, residual]


def _add_rms_norm(kernels: Kernels, rows: int) -> list[Tensor]:
    assert isinstance(kernels, HasAddNorm)
    random = generator("add and norm")
    first, last = torch.randn(2, 96, generator=random)
    found = []
    for before in (None, first):
        x = _rows(rows, 96, random)
        residual = _rows(rows, 96, random)
        memory, out = _room(rows, 96)
        kernels.add_rms_norm(x, before, residual, last, 1e-6, out)
        found += [residual, memory]
    return found


def _open_gate(kernels: Kernels, rows: int) -> list[Tensor]:
    assert isinstance(kernels, HasOpenGate)
    random = generator("open_gate")
    found = []
    for num_gates in (96, 6, 1):
        gate = _rows(rows, num_gates, random)
        x = _rows(rows, 96, random)
        kernels.open_gate(gate, x)
        found.append(x)
    return found


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


def _take_rms_norm(kernels: Kernels, rows: int) -> list[Tensor]:
    assert isinstance(kernels, HasTakeNorm)
    random = generator("take and norm")
    x = _rows(40, 96, random)
    weight = torch.randn(96, generator=random)
    memory, out = _room(rows, 96)
    kernels.take_rms_norm(x, torch.arange(rows) * 7 % 40, weight, 1e-6, out)
    return [memory]


OPERATIONS: dict[str, Callable[[Kernels, int], list[Tensor]]] = {
    "rms_norm": _rms_norm,
    "rms_norm_heads": _rms_norm_heads,
    "rotary": _rotary,
    "gated": _gated,
    "layer_norm": _layer_norm,
    "layer_norm_heads": _layer_norm_heads,
    "activate": _activate,
    "open_gate": _open_gate,
    "add": _add,
    "add_rms_norm": _add_rms_norm,
    "scale": _scale,
    "soft_cap": _soft_cap,
    "take_rows": _take_rows,
    "take_rms_norm": _take_rms_norm,
}
"""Trial call of each operation; a new operation is one more row."""

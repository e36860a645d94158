"""Activation functions between the two products of an MLP, by name.

Owns: the names and what they mean, in plain torch. Never does: compute in a narrower type than float32.
Called by: the reference kernels, and providers of kernels (they read the numbers of a name).

A name is a word, possibly followed by its parameters: `clamped_swiglu:1.702:7`.

silu:           x * sigmoid(x).
gelu_tanh:      the approximation of gelu by tanh.
gelu:           x * Φ(x), by erf.
relu:           max(x, 0).
relu2:          relu(x)² (So et al. 2021, arXiv 2109.08668).
quick_gelu:     x * sigmoid(1.702 * x).
xielu:          with AP, AN, BETA and EPS (Huang and Schlag 2024, arXiv 2411.13010): AP * x² + BETA * x above zero, else
                                (expm1(min(x, EPS)) - x) * AN + BETA * x. AP and AN are values after the softplus of the
                                parameters.
clamped_swiglu: with ALPHA and LIMIT, of gate and up together (gpt-oss): g * sigmoid(ALPHA * g) * (u + 1), where g is
                min(gate, LIMIT) and u is up within -LIMIT and LIMIT.
clamped_silu:   with LIMIT, of gate and up together (Step 3.5): min(silu(gate), LIMIT) times up within -LIMIT and LIMIT.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NUMBERS = {
    "silu": 0,
    "gelu_tanh": 0,
    "gelu": 0,
    "relu": 0,
    "relu2": 0,
    "quick_gelu": 0,
    "xielu": 4,
    "clamped_swiglu": 2,
    "clamped_silu": 1,
}
"""Number of parameters after each word."""
PAIRED = frozenset({"clamped_swiglu", "clamped_silu"})
"""Activations that combine the gate with the value it opens; only `gated` can compute them."""
BASIC = frozenset({"silu", "gelu_tanh"})
"""Activations that every provider of `gated` supports without declaring them."""
QUICK_GELU = 1.702


class NamedActivation(NamedTuple):
    """A parsed activation name.

    kind: the word.
    numbers: parameters after the word.
    """

    kind: str
    numbers: tuple[float, ...]


@functools.cache
def parse(name: str) -> NamedActivation:
    """Parse the name of an activation. Raises ValueError for an unknown one."""
    kind, *texts = name.split(":")
    expected = NUMBERS.get(kind)
    if expected is None:
        raise ValueError(f"unknown activation '{name}'; known are {', '.join(NUMBERS)}")
    try:
        numbers = tuple(float(text) for text in texts)
    except ValueError:
        numbers = ()
    finite = all(math.isfinite(number) for number in numbers)
    if len(numbers) != expected or len(texts) != expected or not finite:
        raise ValueError(f"activation '{name}': expected {expected} finite numbers behind '{kind}', divided by colons")
    return NamedActivation(kind, numbers)


def learned(kind: str, parameters: Sequence[float]) -> str:
    """Return the name of an activation whose parameters come from the model's weights.

    parameters: for `xielu` AP and AN before the softplus, BETA and EPS; AN is at least BETA.
    """
    if kind != "xielu":
        raise ValueError(f"the numbers of activation '{kind}' do not come from parameters")
    positive, negative, beta, eps = parameters
    numbers = (_softplus(positive), beta + _softplus(negative), beta, eps)
    return ":".join((kind, *map(repr, numbers)))


def activate(x: Tensor, name: str) -> Tensor:
    """Return act(x) in float32, in the shape of x. Raises ValueError for an unknown name, or one that needs a gate."""
    kind, numbers = parse(name)
    wide = x.float()
    match kind:
        case "silu":
            return F.silu(wide)
        case "gelu_tanh":
            return F.gelu(wide, approximate="tanh")
        case "gelu":
            return F.gelu(wide)
        case "relu":
            return F.relu(wide)
        case "relu2":
            return F.relu(wide).square()
        case "quick_gelu":
            return wide * torch.sigmoid(QUICK_GELU * wide)
        case "xielu":
            return _xielu(wide, *numbers)
    raise ValueError(f"activation '{name}' is of a gate and what it opens; the layer has no gate")


def gated(x: Tensor, name: str) -> Tensor:
    """Return act(gate) * up, float32 [T, I], for x [T, 2 * I]: the gate, then up. Raises ValueError for an unknown name."""
    gate, up = x.float().chunk(2, dim=-1)
    kind, numbers = parse(name)
    if kind == "clamped_swiglu":
        return _clamped_swiglu(gate, up, *numbers)
    if kind == "clamped_silu":
        return _clamped_silu(gate, up, *numbers)
    return activate(gate, name) * up


def _softplus(x: float) -> float:
    # Written so that exp cannot overflow for a large x.
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _xielu(x: Tensor, positive: float, negative: float, beta: float, eps: float) -> Tensor:
    above = positive * x * x
    capped = x.clamp(max=eps)
    below = (torch.expm1(capped) - x) * negative
    return torch.where(x > 0, above, below) + beta * x


def _clamped_swiglu(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    capped = gate.clamp(max=limit)
    within = up.clamp(-limit, limit)
    return capped * torch.sigmoid(alpha * capped) * (within + 1)


def _clamped_silu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return F.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)

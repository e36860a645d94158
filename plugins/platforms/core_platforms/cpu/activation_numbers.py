"""Activations between two products, as the extension reads them.

Owns: their kinds and the order of their numbers. Never does: compute one. Called by: the bindings of products and experts.
"""

from __future__ import annotations

import functools

from core_runtime.layers.activations import PAIRED, parse

ACTIVATION_KINDS = {
    "silu": 0,
    "gelu_tanh": 1,
    "gelu": 2,
    "relu": 3,
    "relu2": 4,
    "quick_gelu": 5,
    "xielu": 6,
    "clamped_swiglu": 7,
    "clamped_silu": 8,
}
ACTIVATION_NUMBERS = 4


@functools.cache
def activation_numbers(name: str) -> tuple[float, ...]:
    """Return an activation's kind and its numbers, as the extension reads them. Raises ValueError for an unknown name."""
    activation = parse(name)
    absent = ACTIVATION_NUMBERS - len(activation.numbers)
    return ACTIVATION_KINDS[activation.kind], *activation.numbers, *[0.0] * absent


def alone_numbers(name: str) -> tuple[float, ...]:
    """Return the numbers of an ungated activation, as `activation_numbers` does. Raises ValueError for a gated one."""
    numbers = activation_numbers(name)
    if parse(name).kind in PAIRED:
        raise ValueError(f"activation '{name}' is of a gate and what it opens; the layer has no gate")
    return numbers

"""Check of products that round their inputs themselves.

Owns: the check. Never does: define the rounding (`core_runtime.weights.input_rounding` does). Called by:
`core_kit.checks.kernels`.
"""

from __future__ import annotations

import torch

from core_kit.case import Skipped, Subject
from core_kit.fixtures.weights import activations, linear_query, random_weights
from core_kit.oracles.numbers import generator, same_bits
from core_runtime.contracts import HasInputRounding, LinearKernel
from core_runtime.layers.kernels import weight_format
from core_runtime.weights.input_rounding import InputRounding

SHAPE = (40, 96)
ROWS = 5
STEPS = (
    InputRounding("fp8_e4m3", "fixed", scale=0.02),
    InputRounding("fp8_e4m3", "divide"),
    InputRounding("fp8_e4m3", "inverse", bound=1.5),
    InputRounding("fp8_e4m3", "quotient", 32),
    InputRounding("int8", "range"),
    InputRounding("fp4", "fp8", 16, scale=20.0),
    InputRounding("fp4", "carry", 32),
    InputRounding("fp6_e3m2", "even", 32),
)
"""A static scale, one of a row, a bound, powers of two, a zero point, and groups of narrow floats."""


def input_rounding_equals_steps(subject: Subject) -> None:
    """A product that rounds its inputs itself has the bits of the rounding followed by the product."""
    tried = 0
    for weight in random_weights(SHAPE):
        for activation in activations(weight):
            if subject.loaded.supports(linear_query(subject.device, weight, activation)):
                continue
            for step in STEPS:
                mine: LinearKernel = subject.loaded.linear(weight, activation=activation)
                if not isinstance(mine, HasInputRounding) or not mine.round_inputs(step):
                    continue
                tried += 1
                label = (
                    f"{weight_format(weight)}, activation {activation}, inputs as {step.numbers} by rule {step.rule}"
                )
                x = torch.randn(ROWS, SHAPE[1], generator=generator(label)) * 2
                got, expected = torch.empty(ROWS, SHAPE[0]), torch.empty(ROWS, SHAPE[0])
                mine(x, got)
                subject.loaded.linear(weight, activation=activation)(step(x), expected)
                same_bits(got, expected, f"{label}: in one call, compared with in two")
    if not tried:
        raise Skipped("its products do not round their inputs themselves; torch then does in front of them")

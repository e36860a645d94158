"""Rows on other kernels than the reference: the native ones of the CPU, which serve all of a model's operations, so that
a step can be recorded; and kernels that take the experts of a layer whole, with their biases.
"""

import pytest

from core.api.reason import Reason
from core_platforms.cpu.extension import kernels_or_reason
from core_runtime.layers.experts import ReferenceExperts
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.reference import ReferenceKernels
from tests.families.comparison import distances
from tests.families.expected import TOLERANCE
from tests.families.harness import Harness
from tests.families.oracle import reference


@pytest.fixture
def native() -> KernelSet:
    if isinstance(kernels_or_reason(), Reason):
        pytest.skip("the native extension is not compiled")
    from core_platforms.cpu.kernels import NativeKernels

    return KernelSet([NativeKernels(2)])


@pytest.mark.parametrize("model_type", ["gpt_oss", "phimoe"])
def test_native_kernels_serve_and_record_all_of_a_row(native: KernelSet, model_type: str) -> None:
    expected = reference(model_type, "plain")
    harness = Harness(expected.path, native)
    assert harness.model.capturable
    assert max(distances(harness, expected).values()) < TOLERANCE


class WholeWithBiases(ReferenceKernels):
    """Takes the experts of a layer as one weight a side, and their biases."""

    features = ReferenceKernels.features

    def __init__(self) -> None:
        self.shapes: list[list[tuple[int, ...]]] = []

    def grouped_experts(self, gate_up, down, activation, *, precision, gated, biases=None):
        self.shapes.append([tuple(bias.shape) for bias in biases])
        sides = []
        for side, bias in zip((gate_up, down), biases, strict=True):
            each = [self.linear(side.expert(at), activation=precision, bias=bias[at]) for at in range(side.count)]
            sides.append([Linear([kernel]) for kernel in each])
        return ReferenceExperts(*sides, activation, gated)


def test_experts_with_biases_are_given_whole_to_kernels_that_take_both() -> None:
    expected = reference("gpt_oss", "plain")
    kernels = WholeWithBiases()
    harness = Harness(expected.path, KernelSet([kernels]))
    assert len(kernels.shapes) > 0
    assert all(len(up) == len(down) == 2 for up, down in kernels.shapes)
    assert max(distances(harness, expected).values()) < TOLERANCE

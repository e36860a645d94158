"""Rows on the native kernels of the CPU: they serve all of a model's operations, so that a step can be recorded."""

import pytest

from core.api.reason import Reason
from core_platforms.cpu.extension import kernels_or_reason
from core_runtime.layers.kernels import KernelSet
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

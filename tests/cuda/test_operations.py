"""The small operations of the Triton kernels equal the reference."""

import pytest
import torch

from core_kernels.triton.kernels import TritonKernels
from core_kit.oracles.numbers import close
from core_kit.oracles.operations import OPERATIONS
from core_runtime.layers.features import features_of
from core_runtime.layers.reference import ReferenceKernels

KERNELS = TritonKernels()
SERVED = [name for name in OPERATIONS if hasattr(KERNELS, name)]


@pytest.mark.parametrize("name", SERVED)
def test_equals_the_reference(name):
    alike = ReferenceKernels()
    alike.features = frozenset(features_of(KERNELS))
    operation = OPERATIONS[name]
    for got, expected in zip(operation(KERNELS, 3), operation(alike, 3), strict=True):
        close(got, expected, 1e-5, name)


def test_bfloat16_is_rounded_once():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 160, generator=generator).bfloat16()
    weight = torch.randn(160, generator=generator)
    reference = ReferenceKernels()
    got, expected = torch.empty_like(x), torch.empty_like(x)
    KERNELS.rms_norm(x, weight, 1e-6, got)
    reference.rms_norm(x, weight, 1e-6, expected)
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=0)
    opened, reference_opened = torch.empty(3, 80).bfloat16(), torch.empty(3, 80).bfloat16()
    KERNELS.gated(x, "silu", opened)
    reference.gated(x, "silu", reference_opened)
    torch.testing.assert_close(opened, reference_opened, rtol=2**-7, atol=1e-6)


def test_a_row_has_the_same_bits_alone_and_among_others():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(64, 100, generator=generator)
    weight = torch.randn(100, generator=generator)
    out = torch.empty_like(x)
    KERNELS.rms_norm(x, weight, 1e-6, out)
    for rows in (1, 7):
        some = torch.empty(rows, 100)
        KERNELS.rms_norm(x[:rows], weight, 1e-6, some)
        assert torch.equal(some, out[:rows])

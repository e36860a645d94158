"""Number formats of vectors, held against torch's."""

import numpy as np
import pytest
import torch

from core_apis.pooling.vector_bytes import packed

FORMATS = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


@pytest.mark.parametrize("form", FORMATS)
def test_numbers_are_rounded_as_torch_does(form):
    generator = torch.Generator().manual_seed(1)
    sizes = 2.0 ** torch.randint(-20, 7, (4000,), generator=generator)
    ties = torch.arange(64) / 16 + 1 / 32
    numbers = torch.cat([torch.randn(4000, generator=generator) * sizes, ties, -ties, torch.tensor([0.0, -0.0])])
    expected = numbers.to(FORMATS[form]).view(torch.uint8).numpy().tobytes()
    assert packed(numbers.numpy(), form) == expected


def test_the_order_of_bytes():
    numbers = np.array([1.5, -2.0], np.float32)
    assert packed(numbers, "float32", "big") == numbers.astype(">f4").tobytes()
    assert packed(numbers, "bfloat16", "big") == packed(numbers, "bfloat16", "little")[1::-1] + bytes.fromhex("c000")

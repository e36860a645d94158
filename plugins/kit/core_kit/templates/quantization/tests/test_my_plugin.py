"""The kit's conformance suite, and a model that talks with quantized weights."""

import pytest

from core_kit import cases


@pytest.mark.parametrize("case", cases("quantization", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_a_model_generates(generate_greedily):
    (tokens,) = generate_greedily([[1, 40, 41, 42]], quantization="my_plugin")
    assert len(tokens) == 8

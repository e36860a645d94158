"""The kit's conformance suite, and the same text as with the engine's own attention."""

import pytest

from core_kit import cases


@pytest.mark.parametrize("case", cases("attention", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_text_equals_the_reference(generate_greedily):
    prompts = [[1, *range(40, 60)], [1, 70, 71]]
    mine, reference = (
        generate_greedily(prompts, attention_backend=name, dtype="float32") for name in ("my_plugin", "torch_sdpa")
    )
    assert mine == reference

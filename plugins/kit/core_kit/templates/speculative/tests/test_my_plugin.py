"""The kit's conformance suite, and the same text with drafts as without."""

import pytest

from core_kit import cases


@pytest.mark.parametrize("case", cases("speculative", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_drafts_change_no_token(generate_greedily):
    prompts = [[1, *[40, 41, 42] * 5]]
    config = {"method": "my_plugin", "num_speculative_tokens": 3}
    assert generate_greedily(prompts, speculative_config=config) == generate_greedily(prompts)

"""The kit's conformance suite, and what the executor answers."""

import pytest

from core_kit import cases


@pytest.mark.parametrize("case", cases("executor", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_the_prompt_comes_again(generate_greedily):
    prompts = [[1, 40, 41, 42], [1, 50, 51]]
    expected = [[1, 40, 41, 42, 1, 40], [1, 50, 51, 1, 50, 51]]
    assert generate_greedily(prompts, max_tokens=6, executor="my_plugin") == expected

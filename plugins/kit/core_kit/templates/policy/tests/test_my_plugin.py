"""The kit's conformance suite, and the same text in another order."""

import pytest

from core_kit import cases


@pytest.mark.parametrize("case", cases("policy", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_the_order_changes_no_token(generate_greedily):
    prompts = [[1, *range(40, 60)], [1, 50], [1, 50, 51, 52]]
    assert generate_greedily(prompts, scheduling_policy="my_plugin") == generate_greedily(prompts)

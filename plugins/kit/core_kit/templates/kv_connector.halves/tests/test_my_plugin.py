"""The kit's conformance suite, and the same text with a cache that is too small."""

import pytest

from core_kit import cases


@pytest.mark.parametrize("case", cases("kv_connector", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_pages_that_come_back_change_no_token(generate_greedily):
    prompts = [[1, *range(10, 70)], [1, *range(110, 170)], [1, *range(10, 70), 5]]
    small = {"num_gpu_blocks_override": 12, "max_num_seqs": 1}
    assert generate_greedily(prompts, **small, kv_connectors=["my_plugin"]) == generate_greedily(prompts, **small)

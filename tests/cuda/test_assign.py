"""Rows are assigned to experts as torch sorts them."""

import pytest
import torch

from core_kernels.triton.products.assign import MOST_COUNTED, route_rows, sorted_by_torch


def _same(ids: torch.Tensor, count: int) -> None:
    routed = route_rows(ids, count)
    most = len(routed.experts)
    pairs, experts = sorted_by_torch(ids.flatten(), count, routed.block_rows, most)
    assert torch.equal(routed.pairs, pairs)
    assert torch.equal(routed.experts, experts)
    assert (routed.pairs.dtype, routed.experts.dtype) == (torch.int32, torch.int32)
    assert (routed.divisor, routed.count) == (ids.shape[1], count)


def _choices(tokens: int, top_k: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tokens)
    return torch.rand(tokens, count, generator=generator).argsort(-1)[:, :top_k]


@pytest.mark.parametrize(
    ("tokens", "top_k", "count"), [(13, 5, 6), (65, 1, 1), (33, 2, 8), (200, 8, 128), (257, 4, 60), (600, 2, 8)]
)
def test_the_blocks_are_those_of_a_stable_sort(tokens, top_k, count):
    _same(_choices(tokens, top_k, count), count)


@pytest.mark.parametrize("expert", [0, 3, 7])
def test_one_expert_takes_all_rows(expert):
    _same(torch.full((300, 1), expert), 8)


def test_experts_without_rows_have_no_blocks():
    ids = torch.tensor([5, 2]).repeat(70)[:, None]
    routed = route_rows(ids, 9)
    assert routed.experts.tolist() == [2] * 5 + [5] * 5 + [-1] * (len(routed.experts) - 10)
    _same(ids, 9)


def test_many_rows_are_counted_in_chunks():
    _same(_choices(MOST_COUNTED, 3, 20), 20)


def test_few_rows_have_a_block_each():
    ids = torch.tensor([[3, 0], [1, 3], [0, 2]])
    routed = route_rows(ids, 4)
    blocks = routed.pairs.view(6, 16)
    assert blocks[:, 0].tolist() == list(range(6))
    assert bool((blocks[:, 1:] == -1).all())
    assert routed.experts.tolist() == [3, 0, 1, 3, 0, 2]


def test_more_experts_than_a_program_counts_are_sorted_by_torch():
    _same(_choices(80, 2, 1500), 1500)

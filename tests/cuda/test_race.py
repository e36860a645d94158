"""The Triton sampler draws numpy's tokens, to the bit."""

import numpy as np
import pytest
import torch

from core_kernels.triton.sampler.logprobs import tell_logprobs
from core_kernels.triton.sampler.race import race
from core_runtime.sampling.bitmask import bitmask_of
from core_runtime.sampling.kernel import masked_race, numpy_race
from core_runtime.sampling.logprobs import token_logprobs

WORD = 0xFFFFFFFF


def _keys(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randint(0, 2**32, (count, 5), generator=generator)
    keys[:, 3] %= 4
    keys[:, 4] %= 4
    return keys


def _logits(rows: int, vocab: int, spread: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(rows, vocab + 5, generator=generator) * spread
    return wide[:, :vocab]


def _drawn(kernel, logits, keys, temperatures, filters=None, which=None, *masks) -> list[int]:
    count = len(keys)
    which = torch.arange(count) if which is None else which
    out = torch.full((count,), -7)
    kernel(logits, which, keys, temperatures, out, filters, *masks)
    return out.tolist()


def test_ten_thousand_keys():
    logits = _logits(10_000, 40, 1.0)
    keys = _keys(10_000, 1)
    temperatures = torch.rand(10_000, generator=torch.Generator().manual_seed(2)) * 2
    temperatures[::7] = 0.0
    expected = _drawn(numpy_race, logits, keys, temperatures)
    assert _drawn(race, logits, keys, temperatures) == expected


@pytest.mark.parametrize("vocab", [1, 3, 130, 5000])
@pytest.mark.parametrize("spread", [0.0, 3.0, 20.0])
def test_every_size_and_temperature(vocab, spread):
    logits = _logits(8, vocab, spread, vocab)
    keys = _keys(8, vocab)
    temperatures = torch.tensor([0.0, 1e-37, 0.2, 1.0, 3.0, 0.7, 100.0, 1.3])
    assert _drawn(race, logits, keys, temperatures) == _drawn(numpy_race, logits, keys, temperatures)


def test_filters_leave_the_same_candidates():
    count = 96
    logits = _logits(count, 300, 2.0)
    logits[:, 50:60] = logits[:, 40:50]  # equals stay or go together
    keys = _keys(count, 3)
    temperatures = torch.full((count,), 0.8)
    temperatures[5] = 0.0
    top_k = torch.tensor([0, 1, 5, 40, 300, 1000])[torch.arange(count) % 6]
    top_p = torch.tensor([1.0, 0.0, 0.3, 0.9, 0.999], dtype=torch.float64)[torch.arange(count) % 5]
    least = torch.tensor([torch.finfo(torch.float32).min, -5.0, -1.0, 0.0])[torch.arange(count) % 4]
    filters = (top_k, top_p, least)
    expected = _drawn(numpy_race, logits, keys, temperatures, filters)
    assert _drawn(race, logits, keys, temperatures, filters) == expected


def test_masks_and_chosen_rows():
    vocab = 70
    logits = _logits(6, vocab, 1.5)
    logits[4, 3] = -torch.inf
    keys = _keys(8, 4)
    temperatures = torch.tensor([1.0, 0.0, 0.5, 2.0, 1.0, 0.0, 1.0, 1.0])
    which = torch.tensor([5, 0, 3, 3, 1, 2, 4, 4])
    allowed = [bitmask_of(ids, vocab) for ids in ([1, 2, 69], range(30, 50), [7])]
    words = torch.from_numpy(np.stack(allowed))
    index = torch.tensor([0, 1, 2, -1, 1, 0, -1, 2])
    filters = (torch.full((8,), 3), torch.full((8,), 0.9, dtype=torch.float64), torch.full((8,), -4.0))

    def with_masks(logits, which, keys, temperatures, out, filters):
        masked_race(numpy_race, logits, which, keys, temperatures, out, filters, (words, index))

    for limits in (None, filters):
        expected = _drawn(with_masks, logits, keys, temperatures, limits, which)
        assert _drawn(race, logits, keys, temperatures, limits, which, (words, index)) == expected


def test_rows_without_a_token():
    logits = _logits(6, 40, 1.0)
    logits[0, 3] = torch.nan
    logits[1, 39] = torch.inf
    logits[2] = -torch.inf
    logits[3, :39] = -torch.inf
    keys = _keys(6, 5)
    for heat in (0.0, 1.0):
        temperatures = torch.full((6,), heat)
        expected = _drawn(numpy_race, logits, keys, temperatures)
        assert _drawn(race, logits, keys, temperatures) == expected
        assert expected[:4] == [-1, -1, -1, 39]


def test_a_row_alone_draws_what_it_draws_among_others():
    logits = _logits(64, 200, 1.0)
    keys = _keys(64, 6)
    temperatures = torch.ones(64)
    together = _drawn(race, logits, keys, temperatures)
    for rows in ([3], list(range(7))):
        which = torch.tensor(rows)
        assert _drawn(race, logits, keys[rows], temperatures[rows], which=which) == [together[row] for row in rows]


def test_logprobs_are_those_of_the_sampler():
    logits = _logits(4, 300, 3.0)
    logits[2, 10:20] = logits[2, 5]  # equals: the lower id first
    which = torch.tensor([2, 0, 3, 2])
    chosen = torch.tensor([12, 7, 299, 0])
    counts = torch.tensor([8, 0, 3, 1])
    ids = torch.full((4, 9), -1)
    values = torch.full((4, 9), torch.nan, dtype=torch.float64)
    ranks = torch.full((4,), -1)
    tell_logprobs(logits, which, chosen, counts, ids, values, ranks)
    for row in range(4):
        count = int(counts[row])
        expected = token_logprobs(logits[int(which[row])].numpy(), int(chosen[row]), count)
        assert ids[row, : count + 1].tolist() == expected.token_ids
        assert int(ranks[row]) == expected.ranks[0]
        np.testing.assert_allclose(values[row, : count + 1].numpy(), expected.logprobs, rtol=0, atol=1e-6)

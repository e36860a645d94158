"""The native sampling race against the sampler's own numpy arithmetic: the same token, always."""

import numpy as np
import pytest
import torch
from sampling.reference import sequence

from core.api.specs import KernelQuery
from core.layers.kernels import KernelSet
from core.sampling.noise import NoiseKey
from core.sampling.race import Entrant, native_winners, winners
from core.sampling.sampler import Sampler, SampleRow

ROWS = 16


def numpy_winners(logits, keys, temperature):
    entrants = []
    for row, key in zip(logits.numpy(), keys, strict=True):
        with np.errstate(over="ignore"):
            entrants.append(Entrant(key, (row - row.max()) / np.float32(temperature)))
    return winners(entrants)


def draw_keys(generator):
    seeds = torch.randint(-(2**63), 2**63 - 1, (ROWS,), generator=generator).tolist()
    return [NoiseKey(seed, i * 1000003 % 2**32, i % 4) for i, seed in enumerate(seeds)]


@pytest.mark.parametrize("vocab", [1, 3, 16, 63, 64, 130, 1000, 49152])
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 20.0])
def test_same_tokens_as_numpy(kernels, isa, vocab, spread):
    generator = torch.Generator().manual_seed(vocab)
    logits = (torch.randn(ROWS, vocab + 3, generator=generator) * spread)[:, :vocab]
    keys = draw_keys(generator)
    for temperature in (1e-37, 0.2, 1.0, 3.0):
        got = native_winners(kernels.race, logits, range(ROWS), keys, [temperature] * ROWS)
        assert got == numpy_winners(logits, keys, temperature)


def test_rows_are_chosen_and_independent(kernels):
    generator = torch.Generator().manual_seed(0)
    logits, keys = torch.randn(ROWS, 500, generator=generator), draw_keys(generator)
    want = native_winners(kernels.race, logits, range(ROWS), keys, [1.0] * ROWS)
    some = [7, 2, 11]
    got = native_winners(kernels.race, logits, some, [keys[i] for i in some], [1.0] * 3)
    assert got == [want[i] for i in some]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 70, 99])
def test_rows_that_are_not_finite_are_handed_back(kernels, isa, value, place):
    logits = torch.randn(3, 100)
    logits[1, place] = value
    keys = [NoiseKey(i, 0, 0) for i in range(3)]
    got = native_winners(kernels.race, logits, range(3), keys, [1.0] * 3)
    assert got[1] == -1 and min(got[0], got[2]) >= 0


def test_frequencies_follow_the_softmax(kernels):
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    keys = [NoiseKey(5, i, 0) for i in range(20000)]
    tokens = native_winners(kernels.race, logits, [0] * 20000, keys, [1.0] * 20000)
    counts = np.bincount(tokens, minlength=4) / 20000
    assert np.abs(counts - logits[0].softmax(0).numpy()).max() < 0.015


def test_wrong_shapes_and_rows_are_refused_by_a_sentence(kernels):
    logits, out = torch.randn(2, 8), torch.empty(1, dtype=torch.int64)
    keys, heat = torch.zeros(1, 5, dtype=torch.int64), torch.ones(1)
    with pytest.raises(IndexError, match=r"rows \[2\] of 2"):
        kernels.race(logits, torch.tensor([2]), keys, heat, out)
    with pytest.raises(ValueError, match="expected 1 rows"):
        kernels.race(logits, torch.tensor([0]), keys[:, :4], heat, out)


def test_a_kernel_set_offers_the_race_only_where_a_provider_has_it(kernels):
    assert kernels.supports(KernelQuery("race", "cpu")) == []
    assert KernelSet([kernels]).race == kernels.race
    assert KernelSet([]).race is None


MIX = [
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.7, "logprobs": 2},
    {"temperature": 0.7, "top_p": 0.5},
    {"temperature": 1.3, "presence_penalty": 0.4},
    {"temperature": 0.9, "logit_bias": {7: 5.0}},
]


@pytest.mark.parametrize("bad", [None, float("nan")])
def test_the_sampler_gives_the_same_results_with_and_without_it(kernels, bad):
    logits = torch.randn(2 * len(MIX), 310) * 3
    if bad is not None:
        logits[0, 5] = bad
    rows = [SampleRow(sequence(seed=i, **params), [i] * (i % 3)) for i, params in enumerate(MIX * 2)]
    with_kernel, without = (Sampler(300, race).sample(logits, rows) for race in (kernels.race, None))
    assert with_kernel == without
    assert (without[0].error is None) == (bad is None)

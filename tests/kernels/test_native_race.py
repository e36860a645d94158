"""The native sampler against its numpy arithmetic, the same token always, and log-probabilities against torch."""

import numpy as np
import pytest
import torch
from sampling.reference import Row, draw, sequence

from core.api.sampling_params import SamplingParams
from core.api.specs import KernelQuery
from core_runtime.layers.kernels import KernelSet
from core_runtime.sampling.bitmask import bitmask_of
from core_runtime.sampling.filters import survivors
from core_runtime.sampling.kernel import masked_race, numpy_race
from core_runtime.sampling.logprob_rows import native_logprobs
from core_runtime.sampling.noise import NoiseKey
from core_runtime.sampling.race import Entrant, winners
from core_runtime.sampling.sampler import Sampler

ROWS = 16


def native_winners(kernel, logits, which, keys, temperatures, filters=None):
    low = 0xFFFFFFFF
    words = [(key.seed & low, key.seed >> 32 & low, key.index, key.choice, key.purpose) for key in keys]
    out = torch.empty(len(which), dtype=torch.int64)
    kernel(logits, torch.tensor(which), torch.tensor(words), torch.tensor(temperatures), out, filters)
    return out.tolist()


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


def filtered_winners(logits, keys, temperature, params):
    entrants = []
    for row, key in zip(logits.numpy(), keys, strict=True):
        with np.errstate(over="ignore"):
            z = (row - row.max()) / np.float32(temperature)
        ids, z = survivors(z, params)
        entrants.append(Entrant(key, z, ids))
    return winners(entrants)


FILTERS = [
    {"top_k": 1}, {"top_k": 40}, {"top_k": 5000}, {"top_p": 0.9}, {"top_p": 0.3}, {"top_p": 0.9999}, {"min_p": 0.05},
    {"top_k": 50, "top_p": 0.95}, {"top_k": 20, "top_p": 0.8, "min_p": 0.02}, {"top_p": 1e-6}, {"min_p": 1.0},
]  # fmt: skip


def filters_of(params):
    chosen = SamplingParams(**params)
    least = np.log(params["min_p"]) if "min_p" in params else np.finfo(np.float32).min
    return (
        torch.full((ROWS,), chosen.top_k),
        torch.full((ROWS,), chosen.top_p, dtype=torch.float64),
        torch.full((ROWS,), float(np.float32(least)), dtype=torch.float32),
    )


@pytest.mark.parametrize("params", FILTERS, ids=str)
@pytest.mark.parametrize("vocab", [3, 130, 9000])
def test_filters_leave_the_same_candidates(kernels, isa, vocab, params):
    """Many draws a row: a wrong limit shows as another token. Rounded logits have ties, also at the limit."""
    generator = torch.Generator().manual_seed(vocab)
    filters = filters_of(params)
    for spread, step in ((0.0, 1.0), (2.0, 0.25), (3.0, 0.0), (20.0, 0.0)):
        logits = torch.randn(ROWS, vocab, generator=generator) * spread
        logits = (logits / step).round() * step if step else logits
        logits[2, : vocab // 3] = -torch.inf  # masked
        keys = draw_keys(generator)
        for temperature in (0.7, 1.5):
            got = native_winners(kernels.race, logits, range(ROWS), keys, [temperature] * ROWS, filters)
            assert got == filtered_winners(logits, keys, temperature, SamplingParams(**params))


def test_temperature_zero_takes_the_first_of_the_largest(kernels, isa):
    logits = torch.randn(ROWS, 1000).round()
    logits[3] = 2.0
    logits[4, :500] = -torch.inf
    keys = draw_keys(torch.Generator().manual_seed(1))
    heat = [0.0] * 8 + [1.0] * 8
    got = native_winners(kernels.race, logits, range(ROWS), keys, heat)
    assert got == logits.numpy().argmax(1).tolist()[:8] + numpy_winners(logits[8:], keys[8:], 1.0)


@pytest.mark.parametrize("vocab", [1, 5, 1000, 49152])
def test_logprobs_are_those_of_torch(kernels, isa, vocab):
    logits = torch.randn(ROWS, vocab + 1)[:, :vocab] * 4
    logits[1] = logits[1].round()
    logits[2, vocab // 2 :] = -1e30
    which, tokens = [3, 1, 2, 1], [0, vocab // 2, 0, vocab - 1]
    counts = [min(count, vocab) for count in (0, 5, 20, 1)]
    for row, token, count, found in zip(
        which, tokens, counts, native_logprobs(kernels.logprobs, logits, which, tokens, counts), strict=True
    ):
        expected = logits[row].double().log_softmax(0)
        order = torch.sort(-logits[row], stable=True).indices[:count].tolist()
        assert found.token_ids == [token, *order]
        assert found.ranks == [1 + int((logits[row] > logits[row, token]).sum()), *range(1, count + 1)]
        torch.testing.assert_close(
            torch.tensor(found.logprobs).double(), expected[found.token_ids], atol=3e-6, rtol=1e-6
        )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
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
    with pytest.raises(ValueError, match="expected 1 rows of 5 words"):
        kernels.race(logits, torch.tensor([0]), keys[:, :4], heat, out)


def test_a_kernel_set_offers_the_race_only_where_a_provider_has_it(kernels):
    assert kernels.supports(KernelQuery("race", "cpu")) == []
    assert KernelSet([kernels]).race == kernels.race
    assert KernelSet([]).race is None


def random_masks(rows, vocab, generator):
    """Bitmasks of all sorts: almost nothing, almost everything, runs, and bits here and there."""
    allowed = torch.rand(rows, vocab, generator=generator) < 0.5
    allowed[0] = True
    allowed[0, vocab // 2] = False
    allowed[1] = False
    allowed[1, vocab // 3] = True
    allowed[2] = torch.arange(vocab) // 40 % 2 == 0
    allowed[3, : vocab // 2] = False
    allowed[3, -1] = True
    words = np.stack([bitmask_of(row.nonzero()[:, 0].tolist(), vocab) for row in allowed])
    spare = np.full((rows, 2), -1, np.int32)  # words behind the vocabulary say nothing
    return torch.from_numpy(np.concatenate((words, spare), axis=1)), allowed


@pytest.mark.parametrize(
    "params", [{}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.05}, {"top_k": 20, "top_p": 0.9}], ids=str
)
@pytest.mark.parametrize("vocab", [5, 64, 130, 9000])
def test_masked_rows_are_raced_as_if_their_logits_were_masked(kernels, isa, vocab, params):
    generator = torch.Generator().manual_seed(vocab)
    words, allowed = random_masks(ROWS - 2, vocab, generator)
    index = torch.tensor([*range(ROWS - 3), -1, 3, -1])
    filters = filters_of(params)
    which = torch.arange(ROWS).flip(0)
    for spread, step in ((0.0, 1.0), (2.0, 0.25), (20.0, 0.0)):
        logits = torch.randn(ROWS, vocab, generator=generator) * spread
        logits = (logits / step).round() * step if step else logits
        masked = logits[which].clone()
        for row, place in enumerate(index.tolist()):
            if place >= 0:
                masked[row][~allowed[place]] = -torch.inf
        low = 0xFFFFFFFF
        keys = draw_keys(generator)
        key_words = torch.tensor([(k.seed & low, k.seed >> 32 & low, k.index, k.choice, k.purpose) for k in keys])
        for temperature in (0.0, 0.7, 1.5):
            heat = torch.full((ROWS,), temperature)
            got, without, reference = torch.empty(3, ROWS, dtype=torch.int64)
            kernels.masked_race(logits, which, key_words, heat, got, filters, (words, index))
            kernels.race(masked, torch.arange(ROWS), key_words, heat, without, filters)
            masked_race(numpy_race, logits, which, key_words, heat, reference, filters, (words, index))
            assert got.tolist() == without.tolist() == reference.tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_logits_are_told_even_where_they_are_masked(kernels, isa, value):
    logits = torch.randn(4, 100)
    logits[0, 70] = logits[1, 70] = value
    words = torch.from_numpy(np.stack([bitmask_of(range(50), 100), bitmask_of([], 100)]))
    arguments = (logits, torch.arange(4), torch.zeros(4, 5, dtype=torch.int64), torch.ones(4))
    for race in (kernels.masked_race, lambda *given: masked_race(numpy_race, *given)):
        out = torch.empty(4, dtype=torch.int64)
        race(*arguments, out, None, (words, torch.tensor([0, -1, 0, 1])))
        assert (out >= 0).tolist() == [False, False, True, False]


def test_masks_of_another_size_or_place_are_refused(kernels):
    logits, out = torch.randn(1, 70), torch.empty(1, dtype=torch.int64)
    arguments = (logits, torch.tensor([0]), torch.zeros(1, 5, dtype=torch.int64), torch.ones(1), out, None)
    index = torch.tensor([0])
    with pytest.raises(ValueError, match="rows of 3 words or more"):
        kernels.masked_race(*arguments, (torch.zeros(1, 2, dtype=torch.int32), index))
    with pytest.raises(IndexError, match=r"bitmasks \[1\] of 1"):
        kernels.masked_race(*arguments, (torch.zeros(1, 3, dtype=torch.int32), index + 1))


MIX = [
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.7, "logprobs": 2},
    {"temperature": 0.7, "top_p": 0.5},
    {"temperature": 1.3, "presence_penalty": 0.4},
    {"temperature": 0.9, "logit_bias": {7: 5.0}},
    {"temperature": 1.1, "top_k": 30, "allowed_token_ids": list(range(50, 90))},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 5},
    {"temperature": 0.8, "top_p": 0.9, "min_p": 0.01},
]


@pytest.mark.parametrize("bad", [None, float("nan")])
def test_the_sampler_gives_the_same_results_with_and_without_it(kernels, bad):
    logits = torch.randn(2 * len(MIX), 310) * 3
    if bad is not None:
        logits[0, 5] = bad
    rows = [Row(sequence(seed=i, **params), [i] * (i % 3)) for i, params in enumerate(MIX * 2)]
    with_kernel, without = (
        draw(Sampler(300, *natives), logits, rows) for natives in ((kernels.race, kernels.logprobs), ())
    )
    for ours, theirs in zip(with_kernel, without, strict=True):
        assert (ours.token_id, ours.error) == (theirs.token_id, theirs.error)
        assert (ours.logprobs is None) == (theirs.logprobs is None)
        if ours.logprobs is not None:
            assert (ours.logprobs.token_ids, ours.logprobs.ranks) == (theirs.logprobs.token_ids, theirs.logprobs.ranks)
            np.testing.assert_allclose(ours.logprobs.logprobs, theirs.logprobs.logprobs, atol=3e-6)
    assert (without[0].error is None) == (bad is None)

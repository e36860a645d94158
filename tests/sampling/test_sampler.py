"""The sampler as a request sees it: definition, distribution, independence of rows, speed paths, errors."""

import math

import numpy as np
import pytest
import torch
from sampling.reference import Row, bound, draw, gumbel_reference, race_reference, results, sample_one, sequence

from core_runtime.sampling import Sampler, SampleRows, SamplingColumns

VOCAB = 1000


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 2.5])
def test_token_is_the_winner_of_the_definition(temperature):
    logits = random_logits(12)
    for row, seed in enumerate([0, 1, 2**31, 2**32, 2**63 + 7, 2**64 - 1] * 2):
        output = list(range(row * 3))
        token = sample_one(
            logits[row], sequence(seed=seed, choice=row, output=output, temperature=temperature)
        ).token_id
        assert token == race_reference(logits[row].tolist(), temperature, seed, index=len(output), choice=row)


def test_frequencies_follow_softmax():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5, 0.5, -3.0, 2.0])
    draws = 20_000
    rows = [Row(sequence(seed=seed * 7919, temperature=0.8)) for seed in range(draws)]
    tokens = [result.token_id for result in draw(Sampler(8), logits.expand(draws, 8), rows)]
    expected = torch.softmax(logits / 0.8, 0).numpy() * draws
    chi_square = float((((np.bincount(tokens, minlength=8) - expected) ** 2) / expected).sum())
    assert chi_square < 24.3  # 99.9 % quantile with 7 degrees of freedom


def test_frequencies_follow_softmax_over_output_indices_of_one_seed():
    logits = torch.tensor([1.0, 0.0, 0.5, -0.5, 2.0])
    draws = 20_000
    columns = SamplingColumns(1)
    columns.start(0, sequence(seed=42).state)
    rows = SampleRows(columns, np.zeros(draws, np.int64))
    rows.bind(np.zeros(draws, np.int64), np.arange(draws))
    Sampler(5).sample(logits.expand(draws, 5), rows)
    tokens = rows.tokens.tolist()
    expected = torch.softmax(logits, 0).numpy() * draws
    assert float((((np.bincount(tokens, minlength=5) - expected) ** 2) / expected).sum()) < 18.5
    pairs = np.bincount(np.array(tokens[:-1]) * 5 + tokens[1:], minlength=25)  # neighbours are independent
    expected_pairs = np.outer(expected, expected).ravel() / draws
    assert float((((pairs - expected_pairs) ** 2) / expected_pairs).sum()) < 52.6  # 24 degrees of freedom


MIX = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.3, "top_k": 20},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.05, "logprobs": 3},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 0},
    {"temperature": 0.9, "frequency_penalty": 0.5, "presence_penalty": 0.4},
    {"temperature": 1.0, "logit_bias": {5: 4.0}, "allowed_token_ids": list(range(100))},
]


def test_a_row_alone_equals_the_row_in_any_batch():
    logits = random_logits(32)
    states = [sequence(seed=i, choice=i % 3, output=[i, i, 7], **MIX[i % len(MIX)]) for i in range(32)]
    sampler = Sampler(VOCAB)
    alone = [draw(sampler, logits[i : i + 1], [Row(state)])[0] for i, state in enumerate(states)]
    together = draw(sampler, logits, [Row(state) for state in states])
    backwards = draw(sampler, logits.flip(0), [Row(state) for state in states[::-1]])[::-1]
    assert together == alone and backwards == alone


def test_a_drafted_position_equals_the_same_position_reached_by_output():
    logits = random_logits(len(MIX))
    for i, params in enumerate(MIX):
        by_output = sample_one(logits[i], sequence(seed=i, output=[4, 5, 6, 5], **params))
        by_draft = sample_one(logits[i], sequence(seed=i, output=[4, 5], **params), drafts=[6, 5])
        assert by_output == by_draft


def test_output_list_may_grow_outside_with_penalties():
    logits = random_logits(1)[0]
    state = sequence(seed=3, frequency_penalty=1.0, repetition_penalty=1.2)
    for token in [5, 9, 5, 11]:
        fresh = sequence(seed=3, frequency_penalty=1.0, repetition_penalty=1.2, output=state.output_token_ids)
        assert sample_one(logits, state, drafts=[1, 1]) == sample_one(logits, fresh, drafts=[1, 1])
        assert sample_one(logits, state) == sample_one(logits, fresh)
        state.extend([token])


def test_large_vocabulary_skips_hopeless_candidates_without_changing_the_winner():
    vocab = 40_000
    for trial in range(6):
        logits = random_logits(1, vocab, seed=trial, scale=2.0)[0]
        logits[trial::7] -= 60.0  # beyond the range of the noise at these temperatures
        if trial % 2:
            logits[100:] -= 100.0  # a short list of candidates: noise is drawn for those only
        temperature = [0.5, 1.0, 2.0][trial % 3]
        token = sample_one(logits, sequence(seed=trial, temperature=temperature)).token_id
        noise = full_noise(trial, vocab)
        assert token == int(np.argmax(logits.double().numpy() / temperature + noise))


def full_noise(seed: int, vocab: int) -> np.ndarray:
    return np.array([gumbel_reference(seed, 0, 0, token) for token in range(vocab)])


def test_a_candidate_just_within_the_range_can_still_win():
    """The best token has almost the worst noise: one 10 below it wins, so it must not be skipped."""
    seed = next(s for s in range(100_000) if gumbel_reference(s, 0, 0, 0) < -2.2)
    logits = torch.full((64,), -10.0)
    logits[0] = 0.0
    scores = [logits[v].item() + gumbel_reference(seed, 0, 0, v) for v in range(64)]
    assert sample_one(logits, sequence(seed=seed)).token_id == int(np.argmax(scores))
    close = torch.full((64,), -1.0)
    close[0] = 0.0
    assert sample_one(close, sequence(seed=seed)).token_id != 0


def test_greedy_takes_the_lowest_id_on_ties_in_every_path():
    logits = torch.zeros(3, VOCAB)
    logits[:, [700, 40, 333]] = 5.0
    plain = [Row(sequence(temperature=0.0))] * 3
    assert [r.token_id for r in draw(Sampler(VOCAB), logits, plain)] == [40, 40, 40]
    mixed = [Row(sequence(temperature=0.0, **extra)) for extra in ({}, {"logprobs": 1}, {"logit_bias": {40: -1.0}})]
    assert [r.token_id for r in draw(Sampler(VOCAB), logits, mixed)] == [40, 40, 333]


def test_tiny_temperatures_are_greedy():
    logits = random_logits(1)[0]
    for temperature in (1e-3, 1e-30, 5e-324):
        assert sample_one(logits, sequence(temperature=temperature)).token_id == int(logits.argmax())


def test_padding_is_never_sampled_and_logits_are_left_alone():
    logits = random_logits(4, VOCAB + 24)
    logits[:, VOCAB:] = 1e9
    logits[1, VOCAB:] = math.nan
    before = logits.clone()
    states = [sequence(seed=1, **params) for params in MIX[:3]] + [
        sequence(temperature=0.0, logprobs=-1, logit_bias={3: 9.0})
    ]
    results = draw(Sampler(VOCAB), logits, [Row(state) for state in states])
    assert all(result.error is None and 0 <= result.token_id < VOCAB for result in results)
    assert len(results[3].logprobs.token_ids) == VOCAB + 1
    assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.0, "logprobs": 2}])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_broken_row_fails_alone(params, bad):
    logits = random_logits(3)
    if bad == -math.inf:
        logits[1] = bad
    else:
        logits[1, 17] = bad
    rows = [Row(sequence(**params)) for _ in range(3)]
    first, broken, last = draw(Sampler(VOCAB), logits, rows)
    assert broken.token_id == -1 and "not finite" in broken.error and broken.logprobs is None
    assert first == sample_one(logits[0], rows[0].sequence) and first.error is None and last.error is None


def test_masking_everything_is_a_sentence():
    state = sequence(allowed_token_ids=[5], bad_words=[[5]])
    result = sample_one(random_logits(1)[0], state)
    assert "allowed_token_ids" in result.error and "bad_words" in result.error


def test_extreme_penalties_do_not_raise():
    logits = random_logits(1)[0]
    for penalty in (1e-6, 1e-3, 1e3, 1e6):
        result = sample_one(logits, sequence(prompt=range(VOCAB), repetition_penalty=penalty, temperature=0.0))
        assert (result.error is None) != (result.token_id == -1)


def test_wrong_shapes_are_refused():
    one = bound([Row(sequence())])
    with pytest.raises(ValueError, match="expected"):
        Sampler(10).sample(torch.zeros(2, 10), one)
    with pytest.raises(ValueError, match="at least 10"):
        Sampler(10).sample(torch.zeros(1, 9), one)
    Sampler(10).sample(torch.zeros(0, 10), one)
    assert results(bound([])) == []

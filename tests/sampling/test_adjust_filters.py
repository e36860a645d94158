"""Masks, penalties and filters, against transformers' logits processors and plain formulas."""

import numpy as np
import pytest
import torch
from sampling.reference import race_reference, sample_one, sequence, support
from transformers import (
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from core_runtime.sampling.changes.stages import Adjusted, adjust, adjust_there
from core_runtime.sampling.largest import at_least_kth

VOCAB = 3000


def random_logits(seed: int, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


def adjusted(logits: np.ndarray, running, drafts) -> np.ndarray:
    """One row after all stages, with `drafts` behind its output."""
    running.draft(drafts)
    rows = logits[None].copy()
    adjust(rows, [Adjusted(running.state, running.num_output + len(drafts), len(drafts))])
    return rows[0]


def warped(logits: torch.Tensor, *warpers) -> set[int]:
    scores = logits[None]
    for warper in warpers:
        scores = warper(None, scores)
    return set(torch.isfinite(scores[0]).nonzero().flatten().tolist())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [1, 2, 50, 255, 256, 257, 1000, VOCAB, 10 * VOCAB])
def test_top_k_agrees_with_transformers(k, seed):
    assert support(random_logits(seed), top_k=k) == warped(random_logits(seed), TopKLogitsWarper(k))


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.99, 0.999])
def test_top_p_agrees_with_transformers(p, scale):
    logits = random_logits(7, scale)
    ours, theirs = support(logits, top_p=p), warped(logits.double(), TopPLogitsWarper(p))
    assert len(ours ^ theirs) <= 1  # the last one may fall either way by rounding
    probabilities = torch.softmax(logits.double(), 0)
    assert probabilities[list(ours)].sum() >= p - 1e-6


@pytest.mark.parametrize("p", [0.001, 0.05, 0.5, 1.0])
def test_min_p_agrees_with_transformers(p):
    logits = random_logits(3)
    assert support(logits, min_p=p) == warped(logits, MinPLogitsWarper(p))


def test_filters_compose_in_the_order_min_p_top_k_top_p():
    logits = random_logits(11)
    temperature = 1.7
    scaled = logits.double() / temperature
    theirs = warped(scaled, MinPLogitsWarper(0.02), TopKLogitsWarper(40), TopPLogitsWarper(0.8))
    assert support(logits, min_p=0.02, top_k=40, top_p=0.8, temperature=temperature) == theirs


def test_filters_only_mask_a_winner_that_survives_stays():
    logits = random_logits(2, scale=1.0)
    changed = 0
    for seed in range(40):
        plain = sample_one(logits, sequence(seed=seed)).token_id
        filtered = sample_one(logits, sequence(seed=seed, top_k=800, top_p=0.9)).token_id
        kept = support(logits, top_k=800, top_p=0.9)
        assert filtered in kept
        assert filtered == plain or plain not in kept
        changed += filtered != plain
    assert 0 < changed < 40


def test_filtered_winner_is_the_winner_of_the_definition_among_survivors():
    logits = random_logits(5)
    kept = support(logits, top_k=30, top_p=0.95, temperature=1.3)
    masked = [value if token in kept else -float("inf") for token, value in enumerate(logits.tolist())]
    for seed in range(10):
        state = sequence(seed=seed, top_k=30, top_p=0.95, temperature=1.3)
        assert sample_one(logits, state).token_id == race_reference(masked, 1.3, seed)


def test_equal_logits_stay_together():
    logits = torch.zeros(600)
    logits[10] = 1.0
    assert support(logits, top_k=5) == set(range(600))
    assert support(logits, top_k=1) == {10}


@pytest.mark.parametrize("size", [5, 300, 5000])
def test_at_least_kth_is_exact(size):
    rng = np.random.default_rng(size)
    values = rng.integers(0, 50, size).astype(np.float32)
    values[: size // 3] = -np.inf
    for k in (1, 3, size // 2, size - 1, size):
        limit = np.sort(values)[::-1][k - 1]
        assert at_least_kth(values, k).tolist() == np.flatnonzero(values >= limit).tolist()


def test_repetition_penalty_agrees_with_transformers():
    logits, prompt, output = random_logits(1), [5, 9, 9, 2000], [7, 5, 7]
    ours = adjusted(logits.numpy(), sequence(prompt=prompt, output=output, repetition_penalty=1.3), [8])
    theirs = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([[*prompt, *output, 8]]), logits[None].clone())
    np.testing.assert_allclose(ours, theirs[0].numpy(), rtol=1e-6)


def test_frequency_and_presence_count_output_and_drafts_but_not_the_prompt():
    logits = random_logits(4).numpy()
    state = sequence(prompt=[1, 2], output=[7, 7, 2], frequency_penalty=0.5, presence_penalty=0.25)
    expected = logits.copy()
    for token, count in {7: 3, 2: 1, 8: 1}.items():
        expected[token] -= 0.5 * count + 0.25
    np.testing.assert_allclose(adjusted(logits, state, [8, 7]), expected, rtol=1e-6)
    expected = logits.copy()
    for token, count in {7: 2, 2: 1}.items():
        expected[token] -= 0.5 * count + 0.25
    np.testing.assert_allclose(adjusted(logits, state, []), expected, rtol=1e-6)  # the drafts left no trace


def test_bad_words_agree_with_transformers_on_the_output():
    logits = random_logits(6)
    words = [[4], [7, 8], [1, 2, 3], [9, 9]]
    for output in ([], [7], [1, 2], [2], [9], [1, 2, 7]):
        ours = adjusted(logits.numpy(), sequence(prompt=[9, 1], output=output, bad_words=words), [])
        processor = NoBadWordsLogitsProcessor(bad_words_ids=words)
        theirs = processor(torch.tensor([output or [0]]), logits[None].clone())[0]
        assert np.array_equal(np.isinf(ours), np.isinf(theirs.numpy()))


def test_bad_word_may_be_completed_by_a_draft():
    logits = torch.zeros(20)
    logits[3] = 9.0
    state = sequence(temperature=0.0, bad_words=[[1, 2, 3]], output=[1])
    assert sample_one(logits, state).token_id == 3
    assert sample_one(logits, state, drafts=[2]).token_id == 0


def test_stop_tokens_are_masked_until_min_tokens():
    logits = torch.zeros(20)
    logits[[6, 8]] = 9.0
    state = sequence(temperature=0.0, stop=[6, 8], min_tokens=2)
    assert sample_one(logits, state).token_id == 0
    assert sample_one(logits, state, drafts=[1]).token_id == 0
    assert sample_one(logits, state, drafts=[1, 1]).token_id == 6


def test_bias_and_allowed_ids():
    logits = torch.zeros(20)
    logits[3] = 5.0
    assert sample_one(logits, sequence(temperature=0.0, logit_bias={4: 5.5})).token_id == 4
    assert sample_one(logits, sequence(temperature=0.0, logit_bias={3: -100.0})).token_id == 0
    tokens = {sample_one(logits, sequence(seed=s, allowed_token_ids=[2, 9, 11])).token_id for s in range(60)}
    assert tokens == {2, 9, 11}


def test_ids_beyond_the_vocabulary_do_no_harm():
    state = sequence(
        prompt=[1, 99], output=[98], allowed_token_ids=[2, 90], logit_bias={91: 1.0}, stop=[92], min_tokens=5,
        bad_words=[[93]], repetition_penalty=1.1, temperature=0.0,
    )  # fmt: skip
    assert sample_one(torch.zeros(20), state).token_id == 2


def test_logits_are_changed_to_the_same_bits_where_a_device_has_them():
    """Every stage, and ids beyond the vocabulary."""
    asked = [
        sequence(
            prompt=[1, 2, 2, 9], output=[5, 5, 7], repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=-0.2
        ),
        sequence(prompt=[3], output=[4, 4], logit_bias={4: 2.5, 11: -100.0}, repetition_penalty=0.6),
        sequence(prompt=[3], allowed_token_ids=[5, 6, VOCAB + 3], presence_penalty=1.5),
        sequence(prompt=[3], min_tokens=4, stop=[8, 9], repetition_penalty=1e-6),
        sequence(prompt=[3], output=[6], bad_words=[[12], [6, 13]]),
    ]
    rows = [Adjusted(running.state, running.num_output) for running in asked]
    logits = torch.stack([random_logits(seed) for seed in range(len(rows))])
    there = logits.clone()
    adjust_there(there, rows)
    here = logits.numpy().copy()
    adjust(here, rows)
    assert torch.equal(there.view(torch.int32), torch.from_numpy(here).view(torch.int32))
    assert not torch.equal(there, logits)

"""Rules of acceptance: whose distribution the tokens follow, and what each rule says of one draft."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from sampling.reference import Row, draw, sequence

from core_runtime.sampling import Sampler, SampleRows, SamplingColumns
from core_runtime.sampling.distribution import Distribution
from core_runtime.sampling.drafts.acceptance import AcceptanceRule, DraftedPosition, Rejection, Synthetic, Typical
from core_runtime.sampling.noise import NoiseKey

VOCAB = 4
NUM_DRAFTS = 2
DRAWS = 3000
CHI_SQUARE = {15: 37.7, 9: 27.9}
"""99.9 % quantiles by degrees of freedom."""


class Speculation:
    """Sequences whose next token depends on the last one only, for the target and, otherwise, for its draft.

    target, draft: float32 [V, V], logits behind each token. The prompt ends with token 0.
    """

    def __init__(self, rule: AcceptanceRule, target: torch.Tensor, draft: torch.Tensor, **params: float) -> None:
        self.target = target
        self.draft = draft
        self.running = [sequence(prompt=[0], seed=seed * 7919, **params) for seed in range(DRAWS)]
        self.columns = SamplingColumns(DRAWS)
        for slot, running in enumerate(self.running):
            self.columns.start(slot, running.state)
        self.sampler = Sampler(VOCAB, rule=rule)
        self.drafted = SampleRows(self.columns, np.zeros(DRAWS, np.int64), self.sampler.draft_purpose)
        self.rows = SampleRows(self.columns, np.zeros(DRAWS * (NUM_DRAFTS + 1), np.int64))

    def last_tokens(self, slots: np.ndarray, num_drafts: int) -> np.ndarray:
        ends = [self.running[slot].num_output + num_drafts for slot in slots]
        return np.array([self.running[slot].tokens[end] for slot, end in zip(slots, ends, strict=True)])

    def propose(self, slots: np.ndarray) -> None:
        for nth in range(NUM_DRAFTS):
            indices = np.array([self.running[slot].num_output for slot in slots]) + nth
            self.drafted.bind(slots, indices, np.full(len(slots), nth))
            logits = self.draft[self.last_tokens(slots, nth)]
            self.sampler.sample(logits, self.drafted)
            for slot, index, token in zip(slots, indices, self.drafted.tokens, strict=True):
                self.running[slot].tokens[1 + index] = token

    def verify(self, slots: np.ndarray) -> None:
        """One step: each sequence keeps the drafts that agree, and the token behind them."""
        count = NUM_DRAFTS + 1
        owners = np.repeat(slots, count)
        nth = np.tile(np.arange(count), len(slots))
        first = np.array([self.running[slot].num_output for slot in slots])
        self.rows.bind(owners, np.repeat(first, count) + nth, nth)
        before = [self.last_tokens(slots, drafts) for drafts in range(count)]
        self.sampler.sample(self.target[np.stack(before, 1).ravel()], self.rows)
        tokens = self.rows.tokens.reshape(len(slots), count)
        for slot, sampled in zip(slots, tokens.tolist(), strict=True):
            running = self.running[slot]
            start = 1 + running.num_output
            drafts = running.tokens[start : start + NUM_DRAFTS].tolist()
            agreed = [draft == token for draft, token in zip(drafts, sampled, strict=False)]
            kept = (*agreed, False).index(False) + 1
            running.extend(sampled[:kept])

    def outputs(self, length: int) -> np.ndarray:
        """int64 [DRAWS, length]."""
        while True:
            short = np.array([slot for slot, running in enumerate(self.running) if running.num_output < length])
            if not len(short):
                return np.array([running.output_token_ids[:length] for running in self.running])
            self.propose(short)
            self.verify(short)


def logits_of(seed: int) -> torch.Tensor:
    return torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed))


def chi_square(outputs: np.ndarray, shares: np.ndarray) -> float:
    """Of two tokens. shares: [V, V], of the second behind the first."""
    expected = shares[0][:, None] * shares * len(outputs)
    counts = np.bincount(outputs[:, 0] * VOCAB + outputs[:, 1], minlength=VOCAB * VOCAB).reshape(VOCAB, VOCAB)
    possible = expected > 0
    assert not counts[~possible].any()
    squares = (counts[possible] - expected[possible]) ** 2
    return float((squares / expected[possible]).sum())


@pytest.mark.parametrize("draft_seed", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_rejection_follows_the_target_whatever_is_drafted(draft_seed: int) -> None:
    """Two tokens together, of which the second is drafted again, at the same index, where the first draft was rejected."""
    target = logits_of(1)
    outputs = Speculation(Rejection(), target, logits_of(draft_seed), temperature=0.8).outputs(2)
    shares = torch.softmax(target / 0.8, 1).numpy()
    assert chi_square(outputs, shares) < CHI_SQUARE[15]


def test_rejection_follows_what_filters_and_bias_leave() -> None:
    target = logits_of(3)
    outputs = Speculation(Rejection(), target, logits_of(4), top_k=3, logit_bias={1: 0.5}).outputs(2)
    biased = target.clone()
    biased[:, 1] += 0.5
    third = biased.topk(3).values[:, -1:]
    biased[biased < third] = -math.inf
    assert chi_square(outputs, torch.softmax(biased, 1).numpy()) < CHI_SQUARE[9]


def test_drafts_of_the_same_distribution_are_all_accepted() -> None:
    target = logits_of(5)
    speculation = Speculation(Rejection(), target, target)
    slots = np.arange(500)
    speculation.propose(slots)
    speculation.verify(slots)
    assert {running.num_output for running in speculation.running[:500]} == {NUM_DRAFTS + 1}


def drafted_rows(count: int, draft: int, logits: torch.Tensor, rule: AcceptanceRule, **params: object) -> Iterator[int]:
    """The tokens that come where `draft` was proposed without any other choice, for `count` seeds."""
    sampler = Sampler(len(logits), rule=rule)
    columns = SamplingColumns(count)
    for slot in range(count):
        running = sequence(seed=slot * 104729, **params)
        running.draft([draft])
        columns.start(slot, running.state)
    rows = SampleRows(columns, np.zeros(2 * count, np.int64))
    nth = np.tile([0, 1], count)
    rows.bind(np.repeat(np.arange(count), 2), nth, nth)
    sampler.sample(logits.expand(2 * count, -1), rows)
    return iter(rows.tokens[::2].tolist())


@pytest.mark.parametrize("draft", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_rejection_of_certain_drafts_follows_the_target(draft: int) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5, 0.5, -3.0, 2.0])
    draws = 5000
    tokens = list(drafted_rows(draws, draft, logits, Rejection(), temperature=0.8))
    expected = torch.softmax(logits / 0.8, 0).numpy() * draws
    counts = np.bincount(tokens, minlength=8)
    assert float(((counts - expected) ** 2 / expected).sum()) < 24.3  # 99.9 %, 7 degrees of freedom


@pytest.mark.parametrize("rule", [Rejection(), Typical(0.09, 0.3)])
def test_greedy_drafts_are_accepted_only_when_they_win(rule: AcceptanceRule) -> None:
    logits = torch.tensor([0.0, 5.0, 4.9])
    for draft in range(3):
        assert set(drafted_rows(3, draft, logits, rule, temperature=0.0)) == {1}


def position(target: list[float], draft: int, drawn: Distribution | None = None, seed: int = 0) -> DraftedPosition:
    shares = np.array(target)
    return DraftedPosition(NoiseKey(seed, 0, 0), draft, 0, Distribution(np.arange(len(shares)), shares), drawn)


@pytest.mark.parametrize(
    ("target", "accepted"),
    [
        ([0.5, 0.3, 0.2], {0, 1, 2}),  # entropy 1.03: above 0.09
        ([0.9, 0.08, 0.02], {0}),  # entropy 0.38: alpha e^-H = 0.2, so the threshold of 0.09 counts
        ([0.01] * 100, set(range(100))),  # entropy 4.6: above 0.003
    ],
)
def test_typical_drafts_are_those_above_the_threshold_or_the_entropys(target: list[float], accepted: set[int]) -> None:
    rule = Typical(0.09, 0.3)
    drafts = range(len(target))
    tokens = dict(zip(drafts, rule.tokens([position(target, draft) for draft in drafts]), strict=True))
    assert {draft for draft, token in tokens.items() if token == draft} == accepted
    assert all(token == 0 for draft, token in tokens.items() if draft not in accepted)


def test_synthetic_acceptance_keeps_its_rate() -> None:
    rule = Synthetic([0.7, 0.35])
    first = rule.tokens([position([0.5, 0.5, 0.0], 2, seed=seed) for seed in range(2000)])
    assert first.count(2) / 2000 == pytest.approx(0.7, abs=0.04)
    greedy = list(drafted_rows(2000, 2, torch.tensor([9.0, 0.0, -9.0]), rule, temperature=0.0))
    assert greedy.count(2) / 2000 == pytest.approx(0.7, abs=0.04)


def test_a_draft_that_its_distribution_does_not_know_was_the_only_choice() -> None:
    """Somebody else's token took the place of the one that was drawn."""
    drawn = Distribution(np.array([1]), np.ones(1))
    tokens = Rejection().tokens([position([0.25, 0.75], 0, drawn, seed) for seed in range(2000)])
    assert tokens.count(0) / 2000 == pytest.approx(0.25, abs=0.04)


def test_a_rule_is_not_asked_where_there_are_no_drafts() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    rows = [Row(sequence(seed=seed, logprobs=2)) for seed in range(3)]
    assert draw(Sampler(50, rule=Rejection()), logits, rows) == draw(Sampler(50), logits, rows)

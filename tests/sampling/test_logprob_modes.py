"""The four modes of log-probabilities, against torch and transformers' own warpers."""

import math
from typing import Any

import pytest
import torch
from sampling.reference import Row, draw, sequence
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from core.api.logprobs_mode import LogprobsMode
from core_runtime.sampling import Sampler, prompt_logprobs
from core_runtime.sampling.bitmask import bitmask_of

VOCAB = 500
FILTERS = {
    "plain": ({}, []),
    "top-k": ({"top_k": 7}, [TopKLogitsWarper(7)]),
    "top-p": ({"top_p": 0.7}, [TopPLogitsWarper(0.7)]),
    "min-p": ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
}


class OnlyTwo:
    """Lets the tokens 2 and 3 come."""

    must_end = False

    def __call__(self, output: Any, num_drafted: int) -> Any:
        return bitmask_of([2, 3], VOCAB)

    def allows(self, output: Any, num_drafted: int, token_id: int) -> bool:
        return token_id in (2, 3)


def logits(seed: int = 0, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def told(mode: LogprobsMode, given: torch.Tensor, **params: Any) -> dict[int, float]:
    """What a request that asks for the whole vocabulary is told of one row."""
    (result,) = draw(Sampler(VOCAB, mode=mode), given, [Row(sequence(logprobs=-1, **params))])
    assert result.error is None and result.logprobs is not None
    entry = result.logprobs
    assert entry.token_ids[0] == result.token_id and len(entry.token_ids) == VOCAB + 1
    assert entry.logprobs[1:] == sorted(entry.logprobs[1:], reverse=True)
    assert entry.ranks[1:] == list(range(1, VOCAB + 1))
    return dict(zip(entry.token_ids, entry.logprobs, strict=True))


def column(found: dict[int, float]) -> torch.Tensor:
    return torch.tensor([found[token] for token in range(VOCAB)], dtype=torch.float64)


def test_raw_modes_tell_of_what_the_model_computed() -> None:
    given = logits()
    changed = {"temperature": 0.5, "top_k": 3, "logit_bias": {5: 50.0}, "repetition_penalty": 1.5}
    assert torch.equal(column(told("raw_logits", given, **changed)), given[0].double())
    expected = torch.log_softmax(given[0].double(), 0)
    assert torch.allclose(column(told("raw_logprobs", given, **changed)), expected, atol=1e-6)


@pytest.mark.parametrize("name", FILTERS)
def test_processed_modes_tell_of_what_was_drawn_from(name: str) -> None:
    params, filters = FILTERS[name]
    given = logits(3)
    prompt = [4, 9, 11]
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.3), TemperatureLogitsWarper(0.8), *filters])
    expected = processors(torch.tensor([prompt]), given.clone())[0]
    shared = {"prompt": prompt, "repetition_penalty": 1.3, "temperature": 0.8, **params}
    found = column(told("processed_logits", given, **shared))
    assert torch.equal(torch.isfinite(found), torch.isfinite(expected)), "the same tokens are left"
    assert torch.allclose(found, expected.double(), atol=1e-5)
    scores = column(told("processed_logprobs", given, **shared))
    assert torch.allclose(scores, torch.log_softmax(expected.double(), 0), atol=1e-5)


def test_greedy_requests_are_neither_divided_nor_filtered() -> None:
    given = logits(1)
    found = column(told("processed_logits", given, temperature=0.0, top_k=2, logit_bias={8: 2.0}))
    expected = given[0].double()
    expected[8] = (given[0, 8] + 2.0).double()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_masks_are_processed(temperature: float) -> None:
    found = told("processed_logprobs", logits(2), temperature=temperature, mask=OnlyTwo())
    assert {token for token, value in found.items() if value > -math.inf} == {2, 3}


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
def test_no_mode_changes_a_token_or_its_neighbours(mode: LogprobsMode) -> None:
    given = logits(5, rows=6)
    some: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0},
        {"top_k": 5},
        {"frequency_penalty": 1.0},
        {"min_p": 0.2},
        {},
    ]

    def tokens(which: LogprobsMode) -> list[int]:
        rows = [Row(sequence(seed=seed, logprobs=2, **params)) for seed, params in enumerate(some)]
        return [result.token_id for result in draw(Sampler(VOCAB, mode=which), given, rows)]

    assert tokens(mode) == tokens("raw_logprobs")


def test_prompts_are_told_of_as_logits() -> None:
    given = logits(6, rows=3)
    entries = prompt_logprobs(given, [1, 2, 3], 4, as_logits=True)
    for row, token, entry in zip(given, [1, 2, 3], entries, strict=True):
        best = row.topk(4)
        assert entry.token_ids == [token, *best.indices.tolist()]
        assert entry.logprobs == [float(row[token]), *best.values.tolist()]

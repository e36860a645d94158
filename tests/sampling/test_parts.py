"""A vocabulary in unequal parts gives the tokens and the log-probabilities of the whole, to the bit."""

import numpy as np
import pytest
import torch

from core_runtime.sampling.filters import LOWEST
from core_runtime.sampling.kernel import numpy_race
from core_runtime.sampling.logprobs import token_logprobs
from core_runtime.sampling.part_logprobs import logprobs_in_parts
from core_runtime.sampling.parts import RowParameters, VocabularyPart, race_in_parts

ROWS, VOCAB = 10_000, 97
CUTS = [(), (13,), (40, 41), (8, 30, 77)]


def asked_by(rows: int) -> RowParameters:
    """Greedy, plain, top-k, top-p, min-p and all filters together, in turn, at three temperatures."""
    generator = np.random.default_rng(7)
    kind = np.arange(rows) % 6
    keys = generator.integers(0, 2**32, (rows, 5))
    keys[:, 4] = 0
    heat = np.array([0.3, 1.0, 2.5], np.float32)[np.arange(rows) // 6 % 3]
    low, high = LOWEST, np.float32(np.log(0.05))
    return RowParameters(
        keys=keys,
        temperatures=np.where(kind == 0, np.float32(0), heat),
        top_k=np.where((kind == 2) | (kind == 5), generator.integers(1, 60, rows), 0),
        top_p=np.where((kind == 3) | (kind == 5), generator.uniform(0.05, 0.999, rows), 1.0),
        least=np.where(kind >= 4, high, np.float32(low)).astype(np.float32),
    )


def logits_of(rows: int, vocab: int) -> np.ndarray:
    """Every third row has ties, also at the limits; some have entries taken out, a few are broken."""
    logits = (np.random.default_rng(1).standard_normal((rows, vocab)) * 3).astype(np.float32)
    logits[::3] = np.round(logits[::3])
    logits[::7, : vocab // 3] = -np.inf
    logits[5, vocab // 2], logits[11, -1], logits[17] = np.nan, np.inf, -np.inf
    return logits


def whole_race(logits: np.ndarray, asked: RowParameters) -> list[int]:
    out = torch.empty(len(logits), dtype=torch.int64)
    filters = tuple(torch.from_numpy(column) for column in (asked.top_k, asked.top_p, asked.least))
    tables = (torch.from_numpy(asked.keys), torch.from_numpy(asked.temperatures))
    numpy_race(torch.from_numpy(logits), torch.arange(len(logits)), *tables, out, filters)
    return out.tolist()


@pytest.fixture(scope="module")
def race() -> tuple[np.ndarray, RowParameters, list[int]]:
    logits, asked = logits_of(ROWS, VOCAB), asked_by(ROWS)
    return logits, asked, whole_race(logits, asked)


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_tokens_are_those_of_the_whole(race, cuts):
    logits, asked, expected = race
    starts = (0, *cuts)
    pieces = np.split(logits, cuts, axis=1)
    parts = [VocabularyPart(np.ascontiguousarray(piece), first) for piece, first in zip(pieces, starts, strict=True)]
    assert race_in_parts(parts, asked).tolist() == expected
    assert [row for row, token in enumerate(expected) if token < 0] == [5, 11, 17]


@pytest.fixture(scope="module")
def reported() -> tuple[np.ndarray, np.ndarray, list]:
    logits = logits_of(ROWS, VOCAB)[18:]
    tokens = np.random.default_rng(2).integers(VOCAB // 3, VOCAB, len(logits))
    return logits, tokens, [token_logprobs(row, int(token), 2) for row, token in zip(logits, tokens, strict=True)]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_logprobs_are_those_of_the_whole(reported, cuts):
    logits, tokens, expected = reported
    assert logprobs_in_parts(np.split(logits, cuts, axis=1), tokens, 2) == expected


@pytest.mark.parametrize("cuts", [(), (8192,), (100, 8000), (8191, 8193, 20_000), (30, 16_384, 24_576)], ids=str)
def test_the_order_of_sums_does_not_depend_on_the_cuts(cuts):
    """Longer than a span: parts within one, across its border, and cut where one ends."""
    logits = (np.random.default_rng(3).standard_normal((12, 25_000)) * 4).astype(np.float32)
    tokens = np.random.default_rng(4).integers(0, 25_000, 12)
    expected = [token_logprobs(row, int(token), 3) for row, token in zip(logits, tokens, strict=True)]
    assert logprobs_in_parts(np.split(logits, cuts, axis=1), tokens, 3) == expected


@pytest.mark.parametrize("size", [1, 100, 8192, 8193, 49_152, 151_936])
def test_sums_by_spans_are_those_of_one_float64_sum(size):
    logits = (np.random.default_rng(size).standard_normal(size) * 4).astype(np.float32)
    largest = logits.max()
    total = float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
    assert token_logprobs(logits, size // 2, 0).logprobs == [float(logits[size // 2]) - (float(largest) + total)]

"""The filters of the Triton sampler keep the candidates of the reference, each of them and no other."""

import numpy as np
import pytest
import torch

from core_kernels.triton.sampler import race as module
from core_kernels.triton.sampler.race import race
from core_runtime.sampling.filters import LOWEST, filtered

INF = float("inf")
TOP_P = (1.0, 0.0, 1e-300, 0.3, 0.95, 0.999999999, 1 - 2**-53)
LEAST = (LOWEST, LOWEST, -13.0, -1.0, 0.0)


@pytest.fixture
def kept(monkeypatch):
    """A race that returns whether each candidate passes the filters: bool [S, V]. seen: the logits that masks leave."""
    found = []

    def recorded(*arguments):
        found.append(limits_of(*arguments))
        return found[-1]

    limits_of = module.limits_of
    monkeypatch.setattr(module, "limits_of", recorded)

    def run(logits, temperatures, filters, *, masks=None, seen=None):
        count = len(logits)
        out = torch.zeros(count, dtype=torch.int64)
        race(logits, torch.arange(count), torch.zeros(count, 5, dtype=torch.int64), temperatures, out, filters, masks)
        bits = _z(logits if seen is None else seen, temperatures).view(np.int32)
        scores = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        return scores >= found[-1].numpy()[:, None]

    return run


def _z(logits: torch.Tensor, temperatures: torch.Tensor) -> np.ndarray:
    values = logits.numpy()
    heat = np.where(temperatures > 0, temperatures, 1).astype(np.float32)
    with np.errstate(all="ignore"):
        return (values - values.max(axis=1, keepdims=True)) / heat[:, None] + np.float32(0)


def _expected(logits, temperatures, filters) -> np.ndarray:
    z = _z(logits, temperatures)
    passes = np.zeros(z.shape, dtype=bool)
    for row, (top_k, top_p, least) in enumerate(zip(*(column.tolist() for column in filters), strict=True)):
        ids, _ = filtered(z[row], top_k, top_p, least)
        passes[row, ids] = True
    return passes


def _filters(top_k, top_p, least) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.tensor(top_k), torch.tensor(top_p, dtype=torch.float64), torch.tensor(least, dtype=torch.float32)


def _same(kept, logits, temperatures, filters) -> None:
    finite = torch.isfinite(logits).numpy()
    got = kept(logits, temperatures, filters) & finite
    assert np.array_equal(got, _expected(logits, temperatures, filters))


@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0, 60.0])
@pytest.mark.parametrize("vocab", [1, 2, 33, 1025, pytest.param(5003, marks=pytest.mark.gpu_interpreter)])
def test_the_candidates_of_the_reference_pass(kept, vocab, spread):
    """Flat rows, whose lists have no room for the candidates, and rows whose limit is near or far."""
    count = 21
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(count, vocab + 3, generator=generator)[:, :vocab] * spread
    logits[::4] = logits[::4].round()  # many equals
    logits[1::4, 1::3] = -INF
    top_k = [(0, 1, 5, 40, vocab, vocab + 7, 0)[row % 7] for row in range(count)]
    top_p = [TOP_P[(row + row // 7) % 7] for row in range(count)]
    least = [LEAST[(row // 2) % 5] for row in range(count)]
    temperatures = torch.tensor([(1.0, 0.6, 1e-3, 100.0)[row % 4] for row in range(count)])
    _same(kept, logits, temperatures, _filters(top_k, top_p, least))


@pytest.mark.gpu_interpreter
def test_equals_stay_or_go_together(kept):
    logits = torch.zeros(3, 5000)
    logits[1, :2500] = 1.0
    logits[2] = -20.0
    logits[2, 7] = 0.0
    filters = _filters([1, 2501, 2], [1.0, 1.0, 1.0], [LOWEST] * 3)
    assert kept(logits, torch.ones(3), filters).sum(axis=1).tolist() == [5000, 5000, 5000]
    filters = _filters([1, 2500, 1], [0.1, 0.9, 1.0], [LOWEST] * 3)
    assert kept(logits, torch.ones(3), filters).sum(axis=1).tolist() == [5000, 2500, 1]


def test_a_row_keeps_what_it_keeps_alone(kept):
    """Beside rows without filters, greedy ones, and rows that have no token."""
    generator = torch.Generator().manual_seed(8)
    logits = torch.randn(6, 700, generator=generator) * 3
    logits[2] = torch.nan
    logits[4, 5] = INF
    logits[5] = -INF
    temperatures = torch.tensor([1.0, 0.0, 1.0, 0.7, 1.0, 1.0])
    filters = _filters([0, 3, 3, 3, 3, 3], [1.0, 0.5, 0.5, 0.9, 0.5, 0.5], [LOWEST] * 6)
    together = kept(logits, temperatures, filters)
    assert together[0].all()
    assert together[1].all()  # the largest wins, whatever its filters
    alone = kept(logits[3:4], temperatures[3:4], tuple(column[3:4] for column in filters))
    assert np.array_equal(alone[0], together[3])
    assert np.array_equal(alone, _expected(logits[3:4], temperatures[3:4], tuple(column[3:4] for column in filters)))


def test_masked_tokens_count_for_nothing(kept):
    logits = torch.arange(64.0).repeat(2, 1) / 8
    words = torch.tensor([[-1, 0x0FFFFFFF]], dtype=torch.int32)  # without the four largest
    filters = _filters([2, 2], [1.0, 1.0], [LOWEST] * 2)
    seen = logits.clone()
    seen[1, 60:] = -INF
    got = kept(logits, torch.ones(2), filters, masks=(words, torch.tensor([-1, 0])), seen=seen)
    assert [row.nonzero()[0].tolist() for row in got] == [[62, 63], [58, 59]]

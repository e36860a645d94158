"""Checks of a provider's sampling kernels: the tokens and the log-probabilities of `core.sampling`.

Owns: those checks. Never does: sample for anybody. Called by: `core.testing.kernels`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from core.api.sampling_params import SamplingParams
from core.api.specs import KernelQuery
from core.sampling.filters import survivors
from core.sampling.logprobs import token_logprobs
from core.sampling.noise import NoiseKey
from core.sampling.race import Entrant, winners
from core.testing.case import Failure, Skipped, Subject
from core.testing.numbers import generator

VOCABULARY = 500
DRAWS = 64
ODD_SEED = 0x9E3779B97F4A7C15
LOWEST_LOG = -3.4e38
"""As the logarithm of a probability that no token falls below."""
FILTERS = (
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.0, top_p=0.6),
    SamplingParams(temperature=2.0, min_p=0.05),
    SamplingParams(temperature=1.5, top_k=40, top_p=0.9, min_p=0.01),
)


def optional_kernel(subject: Subject, name: str) -> Any:
    """The provider's kernel for an operation that it may leave to others. Raises Skipped."""
    kernel = getattr(subject.loaded, name, None)
    if kernel is None or subject.loaded.supports(KernelQuery(name, subject.device)):
        raise Skipped(f"it does not serve {name}")
    return kernel


def race_equals_sampler(subject: Subject) -> None:
    """race draws the tokens that the sampler draws, to the bit, with every filter and without."""
    race = optional_kernel(subject, "race")
    rows = [FILTERS[i % len(FILTERS)] for i in range(DRAWS)]
    keys = [NoiseKey(i * ODD_SEED % 2**64, 1000 * i, i % 3) for i in range(DRAWS)]
    logits = torch.randn(DRAWS, VOCABULARY, generator=generator("race")) * 2
    which = torch.arange(DRAWS)
    words = torch.tensor([_words(key) for key in keys])
    temperatures = torch.tensor([params.temperature for params in rows])
    out = torch.empty(DRAWS, dtype=torch.int64)

    race(logits, which, words, temperatures, out)
    _compare_draws("without filters", out, _sampled(logits, keys, rows, filtered=False), keys, rows)
    race(logits, which, words, temperatures, out, _limits(rows))
    _compare_draws("with filters", out, _sampled(logits, keys, rows, filtered=True), keys, rows)


def _words(key: NoiseKey) -> tuple[int, int, int, int, int]:
    """A key as the kernel takes it: the seed's low and high half, index, choice, purpose."""
    return key.seed & 0xFFFFFFFF, key.seed >> 32, key.index, key.choice, key.purpose


def _limits(rows: list[SamplingParams]) -> tuple[Tensor, Tensor, Tensor]:
    """top_k, top_p and the logarithm of min_p of every row, as the kernel takes them."""
    top_k = torch.tensor([params.top_k for params in rows]).clamp_min(0)
    top_p = torch.tensor([params.top_p for params in rows], dtype=torch.float64)
    log_min_p = torch.tensor([math.log(params.min_p) if params.min_p else LOWEST_LOG for params in rows])
    return top_k, top_p, log_min_p


def _sampled(logits: Tensor, keys: list[NoiseKey], rows: list[SamplingParams], filtered: bool) -> list[int]:
    """The tokens that the sampler draws."""
    entrants = []
    for row, key, params in zip(logits, keys, rows, strict=True):
        temperature = torch.tensor(params.temperature, dtype=torch.float32)
        z = ((row - row.max()) / temperature).numpy()
        ids, kept = survivors(z, params) if filtered else (None, z)
        entrants.append(Entrant(key, kept, ids))
    return list(winners(entrants))


def _compare_draws(
    how: str, out: Tensor, expected: list[int], keys: list[NoiseKey], rows: list[SamplingParams]
) -> None:
    for got, wanted, key, params in zip(out.tolist(), expected, keys, rows, strict=True):
        if got != wanted:
            raise Failure(f"race {how} drew {got} for {params} and {key}, the sampler draws {wanted}")


def logprobs_equal_sampler(subject: Subject) -> None:
    """logprobs tells the chosen token, the most likely ones and their ranks as the sampler does."""
    logprobs = optional_kernel(subject, "logprobs")
    logits = torch.randn(3, VOCABULARY, generator=generator("logprobs")) * 4
    logits[1, :4] = logits[1].max()  # equal ones: the lower id comes first
    which = [2, 0, 1, 1]
    chosen = [17, 3, 2, 499]
    counts = [5, 0, 3, 7]
    ids = torch.zeros(len(which), 1 + max(counts), dtype=torch.int64)
    values = torch.zeros(ids.shape, dtype=torch.float64)
    ranks = torch.zeros(len(which), dtype=torch.int64)
    logprobs(logits, torch.tensor(which), torch.tensor(chosen), torch.tensor(counts), ids, values, ranks)
    for i, (row, token, count) in enumerate(zip(which, chosen, counts, strict=True)):
        expected = token_logprobs(logits[row].numpy(), token, count)
        got = (ids[i, : count + 1].tolist(), int(ranks[i]))
        wanted = (expected.token_ids, expected.ranks[0])
        if got != wanted:
            raise Failure(
                f"logprobs of token {token} and the {count} most likely: ids and rank {got}, expected {wanted}"
            )
        differences = [abs(a - b) for a, b in zip(values[i].tolist(), expected.logprobs, strict=False)]
        apart = max(differences)
        if not apart <= 1e-5:
            raise Failure(f"logprobs of token {token}: {apart:.2g} away from the sampler's, allowed are 1e-05")

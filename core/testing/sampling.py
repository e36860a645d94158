"""Checks of a provider's sampling kernels: the tokens and the log-probabilities of `core.sampling`.

Owns: those checks. Never does: sample for anybody. Called by: `core.testing.kernels`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from core.api.sampling_params import SamplingParams
from core.api.specs import KernelQuery
from core.sampling.filters import survivors
from core.sampling.logprobs import token_logprobs
from core.sampling.noise import NoiseKey
from core.sampling.race import Entrant, winners
from core.testing.case import Failure, Skipped, Subject
from core.testing.numbers import generator

VOCABULARY, DRAWS, ODD_SEED = 500, 64, 0x9E3779B97F4A7C15
FILTERS = (
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.0, top_p=0.6),
    SamplingParams(temperature=2.0, min_p=0.05),
    SamplingParams(temperature=1.5, top_k=40, top_p=0.9, min_p=0.01),
)


def optional_kernel(subject: Subject, name: str) -> Any:
    """The provider's kernel for an operation that it may leave to others. Raises Skipped."""
    if not hasattr(subject.loaded, name) or subject.loaded.supports(KernelQuery(name, subject.device)):
        raise Skipped(f"it does not serve {name}")
    return getattr(subject.loaded, name)


def race_equals_sampler(subject: Subject) -> None:
    """race draws the tokens that the sampler draws, to the bit, with every filter and without."""
    race = optional_kernel(subject, "race")
    rows = [FILTERS[i % len(FILTERS)] for i in range(DRAWS)]
    keys = [NoiseKey(i * ODD_SEED % 2**64, 1000 * i, i % 3) for i in range(DRAWS)]
    logits = torch.randn(DRAWS, VOCABULARY, generator=generator("race")) * 2
    words = [(key.seed & 0xFFFFFFFF, key.seed >> 32, key.index, key.choice, key.purpose) for key in keys]
    heats, out = torch.tensor([params.temperature for params in rows]), torch.empty(DRAWS, dtype=torch.int64)
    limits = (
        torch.tensor([params.top_k for params in rows]).clamp_min(0),
        torch.tensor([params.top_p for params in rows], dtype=torch.float64),
        torch.tensor([math.log(params.min_p) if params.min_p else -3.4e38 for params in rows]),
    )
    for how, filters in (("without filters", []), ("with filters", [limits])):
        race(logits, torch.arange(DRAWS), torch.tensor(words), heats, out, *filters)
        entrants = []
        for row, key, params in zip(logits, keys, rows, strict=True):
            z = ((row - row.max()) / torch.tensor(params.temperature, dtype=torch.float32)).numpy()
            ids, kept = survivors(z, params) if filters else (None, z)
            entrants.append(Entrant(key, kept, ids))
        for i, (got, expected) in enumerate(zip(out.tolist(), winners(entrants), strict=True)):
            if got != expected:
                raise Failure(f"race {how} drew {got} for {rows[i]} and {keys[i]}, the sampler draws {expected}")


def logprobs_equal_sampler(subject: Subject) -> None:
    """logprobs tells the chosen token, the most likely ones and their ranks as the sampler does."""
    logprobs = optional_kernel(subject, "logprobs")
    logits = torch.randn(3, VOCABULARY, generator=generator("logprobs")) * 4
    logits[1, :4] = logits[1].max()  # equal ones: the lower id comes first
    which, chosen, counts = [2, 0, 1, 1], [17, 3, 2, 499], [5, 0, 3, 7]
    ids = torch.zeros(len(which), 1 + max(counts), dtype=torch.int64)
    values, ranks = torch.zeros(ids.shape, dtype=torch.float64), torch.zeros(len(which), dtype=torch.int64)
    logprobs(logits, torch.tensor(which), torch.tensor(chosen), torch.tensor(counts), ids, values, ranks)
    for i, (row, token, count) in enumerate(zip(which, chosen, counts, strict=True)):
        expected = token_logprobs(logits[row].numpy(), token, count)
        got = ids[i, : count + 1].tolist(), int(ranks[i])
        if got != (expected.token_ids, expected.ranks[0]):
            raise Failure(
                f"logprobs of token {token} and the {count} most likely: ids and rank {got}, "
                f"expected {(expected.token_ids, expected.ranks[0])}"
            )
        apart = max(abs(a - b) for a, b in zip(values[i].tolist(), expected.logprobs, strict=False))
        if not apart <= 1e-5:
            raise Failure(f"logprobs of token {token}: {apart:.2g} away from the sampler's, allowed are 1e-05")

"""Checks of a provider's sampling kernels: the tokens and the log-probabilities of `core_runtime.sampling`.

Owns: the checks. Never does: sample for a request. Called by: `core_kit.checks.kernels`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.api.sampling_params import SamplingParams
from core.api.specs import KernelQuery
from core_kit.case import Failure, Skipped, Subject
from core_kit.oracles.numbers import generator
from core_runtime.sampling.bitmask import bitmask_of
from core_runtime.sampling.filters import survivors
from core_runtime.sampling.logprobs import token_logprobs
from core_runtime.sampling.noise import NoiseKey
from core_runtime.sampling.race import Entrant, winners

VOCABULARY = 500
DRAWS = 64
ODD_SEED = 0x9E3779B97F4A7C15
LOWEST_LOG = -3.4e38
"""Logarithm of a probability below that of any token."""
ASKED_LOGPROBS = (
    (2, 17, 5),
    (0, 3, 0),
    (1, 2, 3),
    (1, 499, 7),
)
"""Requested logprobs: row of logits, chosen token, number of most likely tokens."""
FILTERS = (
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.0, top_p=0.6),
    SamplingParams(temperature=2.0, min_p=0.05),
    SamplingParams(temperature=1.5, top_k=40, top_p=0.9, min_p=0.01),
)


def optional_kernel(subject: Subject, name: str) -> Any:
    """Return the provider's kernel for an optional operation. Raises Skipped."""
    kernel = getattr(subject.loaded, name, None)
    if kernel is None or subject.loaded.supports(KernelQuery(name, subject.device)):
        raise Skipped(f"it does not serve {name}")
    return kernel


def race_equals_sampler(subject: Subject) -> None:
    """race draws the tokens that the sampler draws, to the bit, with every filter and without."""
    race = optional_kernel(subject, "race")
    rows: list[SamplingParams] = []
    keys: list[NoiseKey] = []
    for i in range(DRAWS):
        rows.append(FILTERS[i % len(FILTERS)])
        seed = i * ODD_SEED % 2**64
        keys.append(NoiseKey(seed, index=1000 * i, choice=i % 3))
    logits = torch.randn(DRAWS, VOCABULARY, generator=generator("race")) * 2
    which = torch.arange(DRAWS)
    words = torch.tensor([_words(key) for key in keys])
    temperatures = torch.tensor([params.temperature for params in rows])
    out = torch.empty(DRAWS, dtype=torch.int64)

    race(logits, which, words, temperatures, out)
    expected = _sampled(logits, keys, rows, filtered=False)
    _compare_draws("without filters", out, expected, keys, rows)

    limits = _limits(rows)
    race(logits, which, words, temperatures, out, limits)
    expected = _sampled(logits, keys, rows, filtered=True)
    _compare_draws("with filters", out, expected, keys, rows)


def masked_race_equals_race(subject: Subject) -> None:
    """masked_race equals race of logits that are -inf where a mask says so."""
    race = optional_kernel(subject, "race")
    masked_race = getattr(subject.loaded, "masked_race", None)
    if masked_race is None:
        raise Skipped("its race takes no masks")
    numbers = generator("masks")
    logits = torch.randn(DRAWS, VOCABULARY, generator=numbers) * 2
    allowed = torch.rand(DRAWS, VOCABULARY, generator=numbers) < 0.3
    index = torch.arange(DRAWS)
    index[::4] = -1
    allowed[::4] = True
    masks = [bitmask_of(row.nonzero()[:, 0].tolist(), VOCABULARY) for row in allowed]
    words = torch.from_numpy(np.stack(masks))
    rows: list[SamplingParams] = []
    keys: list[NoiseKey] = []
    for i in range(DRAWS):
        rows.append(FILTERS[i % len(FILTERS)])
        keys.append(NoiseKey(i * ODD_SEED % 2**64, index=i, choice=i % 3))
    which = torch.arange(DRAWS)
    key_words = torch.tensor([_words(key) for key in keys])
    temperatures = torch.tensor([params.temperature for params in rows])
    limits = _limits(rows)
    expected = torch.empty(DRAWS, dtype=torch.int64)
    out = torch.empty(DRAWS, dtype=torch.int64)
    race(logits.masked_fill(~allowed, -math.inf), which, key_words, temperatures, expected, limits)
    masked_race(logits, which, key_words, temperatures, out, limits, (words, index))
    _compare_draws("with masks", out, expected.tolist(), keys, rows)


def _words(key: NoiseKey) -> tuple[int, int, int, int, int]:
    """Return a key in the kernel's form: the seed's low and high half, index, choice, purpose."""
    low = key.seed & 0xFFFFFFFF
    high = key.seed >> 32
    return low, high, key.index, key.choice, key.purpose


def _limits(rows: list[SamplingParams]) -> tuple[Tensor, Tensor, Tensor]:
    """Return top_k, top_p and the logarithm of min_p of every row, in the kernel's form."""
    top_k = torch.tensor([params.top_k for params in rows]).clamp_min(0)
    top_p = torch.tensor([params.top_p for params in rows], dtype=torch.float64)
    logs = []
    for params in rows:
        logs.append(math.log(params.min_p) if params.min_p else LOWEST_LOG)
    return top_k, top_p, torch.tensor(logs)


def _sampled(logits: Tensor, keys: list[NoiseKey], rows: list[SamplingParams], filtered: bool) -> list[int]:
    """Return the tokens that the sampler draws."""
    entrants = []
    for row, key, params in zip(logits, keys, rows, strict=True):
        temperature = torch.tensor(params.temperature, dtype=torch.float32)
        below_largest = row - row.max()
        z = (below_largest / temperature).numpy()
        if filtered:
            ids, kept = survivors(z, params)
            entrants.append(Entrant(key, kept, ids))
        else:
            entrants.append(Entrant(key, z, None))
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
    asked = ASKED_LOGPROBS
    which, chosen, counts = (torch.tensor(column) for column in zip(*asked, strict=True))
    width = 1 + int(counts.max())
    ids = torch.zeros(len(asked), width, dtype=torch.int64)
    values = torch.zeros(len(asked), width, dtype=torch.float64)
    ranks = torch.zeros(len(asked), dtype=torch.int64)
    logprobs(logits, which, chosen, counts, ids, values, ranks)
    for i, (row, token, count) in enumerate(asked):
        expected = token_logprobs(logits[row].numpy(), token, count)
        got_ids = ids[i, : count + 1].tolist()
        got = (got_ids, int(ranks[i]))
        wanted = (expected.token_ids, expected.ranks[0])
        if got != wanted:
            raise Failure(
                f"logprobs of token {token} and the {count} most likely: ids and rank {got}, expected {wanted}"
            )
        got_values = values[i, : count + 1].tolist()
        apart = max(abs(a - b) for a, b in zip(got_values, expected.logprobs, strict=True))
        if not apart <= 1e-5:
            raise Failure(f"logprobs of token {token}: {apart:.2g} away from the sampler's, allowed are 1e-05")

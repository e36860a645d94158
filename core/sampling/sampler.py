"""The sampler: one token for each row of logits.

Owns: the order of things: masks, bias, penalties, temperature, filters, race. Never does: keep a state between calls
(the sequences do), or let one row's result depend on another row. Called by: the executor's worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from core.api.messages import TokenLogprobs
from core.plugin.contracts import RaceKernel
from core.sampling.adjust import adjust
from core.sampling.filters import survivors
from core.sampling.logprobs import prompt_logprobs, token_logprobs
from core.sampling.noise import Float32
from core.sampling.race import Entrant, native_winners, winners
from core.sampling.state import SequenceSampling

__all__ = ["NO_TOKEN", "SampleRow", "Sampled", "Sampler", "prompt_logprobs"]

NO_TOKEN: Final = -1
SMALLEST: Final = 1e-37
"""Temperatures below are as good as this one; float32 holds it."""


@dataclass(slots=True)
class SampleRow:
    """One row of logits: the position after prompt, output and `drafts` of a sequence."""

    state: SequenceSampling
    drafts: Sequence[int] = ()


@dataclass(slots=True)
class Sampled:
    """The result of one row. error: a sentence when nothing could be sampled; token_id is then -1."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None


class Sampler:
    """Samples rows of logits over a vocabulary of `vocab_size` entries; logits beyond it are padding.

    race: a native kernel for rows without filters, penalties and masks; the same tokens, faster. None: numpy throughout.
    """

    def __init__(self, vocab_size: int, race: RaceKernel | None = None) -> None:
        self.vocab_size = vocab_size
        self.race = race

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
        """One result for each row, in order. logits: float32 [R, V], V ≥ vocab_size, not modified.

        A row with NaN or infinite logits, or with every token masked, fails alone: its `Sampled.error` says why.
        """
        if logits.ndim != 2 or logits.shape[0] != len(rows) or logits.shape[1] < self.vocab_size:
            raise ValueError(
                f"logits have the shape {tuple(logits.shape)}; expected ({len(rows)}, at least {self.vocab_size})."
            )
        if not rows:
            return []
        logits = logits.detach()[:, : self.vocab_size]
        if all(row.state.greedy and row.state.logprobs is None and not row.state.adjusts(row.drafts) for row in rows):
            return self._greedy(logits)
        values: Float32 = logits.float().cpu().numpy()
        results: list[Sampled] = []
        entrants: list[tuple[int, Entrant]] = []
        raced = self._raced(logits, rows)
        for position, row in enumerate(rows):
            if position in raced:
                results.append(Sampled(raced[position]))
                continue
            result, entrant = self._prepare(values[position], row)
            results.append(result)
            if entrant is not None:
                entrants.append((position, entrant))
        tokens = winners([entrant for _, entrant in entrants])
        for (position, _), token in zip(entrants, tokens, strict=True):
            results[position].token_id = token
        for position, row in enumerate(rows):
            result = results[position]
            if row.state.logprobs is not None and result.error is None:
                result.logprobs = token_logprobs(values[position], result.token_id, row.state.logprobs)
        return results

    def _raced(self, logits: Tensor, rows: Sequence[SampleRow]) -> dict[int, int]:
        """The tokens of the rows that the native kernel could sample, by position."""
        if self.race is None or logits.dtype is not torch.float32 or logits.device.type != "cpu":
            return {}
        plain = [
            position
            for position, row in enumerate(rows)
            if not (row.state.greedy or row.state.filtered or row.state.adjusts(row.drafts))
        ]
        if not plain:
            return {}
        keys = [rows[position].state.noise_key(rows[position].drafts) for position in plain]
        heat = [max(rows[position].state.params.temperature, SMALLEST) for position in plain]
        tokens = native_winners(self.race, logits, plain, keys, heat)
        return {position: token for position, token in zip(plain, tokens, strict=True) if token >= 0}

    def _greedy(self, logits: Tensor) -> list[Sampled]:
        """All rows at once: the largest logit, the lowest id on ties."""
        if logits.device.type == "cpu":
            values: Float32 = logits.float().numpy()
            ids = values.argmax(axis=1)
            tops = values[np.arange(len(ids)), ids]
        else:
            top, index = torch.max(logits, dim=1)
            ids, tops = index.cpu().numpy(), top.float().cpu().numpy()
        finite = np.isfinite(tops).tolist()
        return [
            Sampled(token) if good else Sampled(NO_TOKEN, error=_not_finite(float(top)))
            for token, good, top in zip(ids.tolist(), finite, tops, strict=True)
        ]

    def _prepare(self, raw: Float32, row: SampleRow) -> tuple[Sampled, Entrant | None]:
        """The result of a greedy or failed row, or a placeholder and the row's entry for the race."""
        state = row.state
        best = int(raw.argmax())
        largest = raw[best]
        if not np.isfinite(largest):
            return Sampled(NO_TOKEN, error=_not_finite(float(largest))), None
        values = raw
        if state.adjusts(row.drafts):
            values = adjust(raw, state, row.drafts)
            best = int(values.argmax())
            largest = values[best]
            if not np.isfinite(largest):
                return Sampled(NO_TOKEN, error=_nothing_left(float(largest))), None
        if state.greedy:
            return Sampled(best), None
        with np.errstate(over="ignore"):  # far below the best with a tiny temperature: -inf is right
            z = (values - largest) / np.float32(max(state.params.temperature, SMALLEST))
        key = state.noise_key(row.drafts)
        if not state.filtered:
            return Sampled(NO_TOKEN), Entrant(key, z)
        ids, z = survivors(z, state.params)
        return Sampled(NO_TOKEN), Entrant(key, z, ids)


def _nothing_left(largest: float) -> str:
    if largest == -np.inf:
        return (
            "No token can be sampled: allowed_token_ids, bad_words, min_tokens and penalties together rule out the whole "
            "vocabulary; relax one of them."
        )
    return f"The penalties make logits that are not finite (largest: {largest}); bring repetition_penalty nearer to 1."


def _not_finite(largest: float) -> str:
    return (
        f"The model's logits for this sequence are not finite (largest: {largest}); expected finite numbers. "
        "Try another dtype, or check the checkpoint."
    )

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
from core.plugin.contracts import LogprobsKernel, RaceKernel
from core.sampling.adjust import adjust
from core.sampling.filters import survivors
from core.sampling.logprobs import many_logprobs, prompt_logprobs
from core.sampling.native import SMALLEST, NativeRace
from core.sampling.noise import Float32
from core.sampling.race import Entrant, winners
from core.sampling.state import SequenceSampling

__all__ = ["NO_TOKEN", "SampleRow", "Sampled", "Sampler", "prompt_logprobs"]

NO_TOKEN: Final = -1


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

    race, logprobs: native kernels; the same tokens, faster. None: numpy throughout.
    """

    def __init__(self, vocab_size: int, race: RaceKernel | None = None, logprobs: LogprobsKernel | None = None) -> None:
        self.vocab_size = vocab_size
        self.race = race
        self.logprobs = logprobs
        self._batch = NativeRace(race) if race is not None else None
        self._single = NativeRace(race) if race is not None else None

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
        native = self._batch is not None and logits.dtype is torch.float32 and logits.device.type == "cpu"
        if native:
            results = [Sampled(token) for token in self._native(logits, rows)]
        elif all(row.state.greedy and not row.state.adjusts(row.drafts) for row in rows):
            results = self._greedy(logits)
        else:
            results = [Sampled(NO_TOKEN) for _ in rows]
        left = [i for i, result in enumerate(results) if result.token_id < 0 and result.error is None]
        reported = [i for i, row in enumerate(rows) if row.state.logprobs is not None]
        if left or reported:
            values: Float32 = logits.float().cpu().numpy()
            self._sample_in_numpy(values, rows, left, results)
            reported = [i for i in reported if results[i].error is None]
            counts = [rows[i].state.logprobs or 0 for i in reported]
            tokens = [results[i].token_id for i in reported]
            kernel = self.logprobs if native else None
            for i, found in zip(reported, many_logprobs(kernel, values, reported, tokens, counts), strict=True):
                results[i].logprobs = found
        return results

    def _native(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[int]:
        """The tokens by the native kernel; -1 for what numpy has to look at."""
        assert self._batch is not None and self._single is not None
        states, indices, adjusting = [], [], []
        for position, row in enumerate(rows):
            if row.state.adjusts(row.drafts):
                adjusting.append(position)
            states.append(row.state)
            indices.append(row.state.index(row.drafts))
        if not adjusting:
            return self._batch.tokens(logits, range(len(rows)), states, indices)
        tokens = [NO_TOKEN] * len(rows)
        plain = [i for i in range(len(rows)) if i not in set(adjusting)]
        if plain:
            found = self._batch.tokens(logits, plain, [states[i] for i in plain], [indices[i] for i in plain])
            for i, token in zip(plain, found, strict=True):
                tokens[i] = token
        for i in adjusting:
            raw: Float32 = logits[i].numpy()
            if np.isfinite(raw[raw.argmax()]):
                adjusted = torch.from_numpy(adjust(raw, states[i], rows[i].drafts)).unsqueeze(0)
                tokens[i] = self._single.tokens(adjusted, (0,), [states[i]], [indices[i]])[0]
        return tokens

    def _sample_in_numpy(
        self, values: Float32, rows: Sequence[SampleRow], which: Sequence[int], results: list[Sampled]
    ) -> None:
        """Fill in the results of the rows `which` of values float32 [R, V]."""
        entrants: list[tuple[int, Entrant]] = []
        for position in which:
            results[position], entrant = self._prepare(values[position], rows[position])
            if entrant is not None:
                entrants.append((position, entrant))
        tokens = winners([entrant for _, entrant in entrants])
        for (position, _), token in zip(entrants, tokens, strict=True):
            results[position].token_id = token

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

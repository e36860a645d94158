"""What requests do to their logits before the temperature: masks, bias, penalties, each for all rows that want it at once.

Owns: the stages and their order: allowed ids, token masks, bad words, minimum tokens, logit bias, penalties. Never does:
filter (`core.sampling.filters`) or choose. Called by: `core.sampling.sampler`.

What a row becomes depends on its own logits and tokens alone. Ids beyond the vocabulary are ignored here; the front end
refuses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from core.sampling.bitmask import EVERY_TOKEN, apply_bitmask, num_words
from core.sampling.noise import Float32, Ids
from core.sampling.state import SequenceSampling

MASKED = np.float32(-np.inf)


@dataclass(slots=True)
class Adjusted:
    """A row that the stages change.

    state: of its sequence.
    index: its output index, drafts before it included.
    num_drafted: how many of the output tokens before it are drafts.
    """

    state: SequenceSampling
    index: int
    num_drafted: int = 0


def adjust(logits: Float32, rows: Sequence[Adjusted]) -> None:
    """Run all stages on logits float32 [R, V], in place, contiguous; masked entries become -inf. rows: R of them."""
    _keep_allowed(logits, rows)
    _apply_masks(logits, rows)
    _mask_bad_words(logits, rows)
    _mask_until_min_tokens(logits, rows)
    _add_bias(logits, rows)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # extreme penalties: the sampler looks
        _penalize(logits, rows)


def _keep_allowed(logits: Float32, rows: Sequence[Adjusted]) -> None:
    allowed = [(i, row.state.allowed_ids) for i, row in enumerate(rows) if row.state.allowed_ids is not None]
    if not allowed:
        return
    places = _places(logits, allowed)
    kept = logits.reshape(-1)[places]
    logits[[i for i, _ in allowed]] = MASKED
    logits.reshape(-1)[places] = kept


def _apply_masks(logits: Float32, rows: Sequence[Adjusted]) -> None:
    masks = {i: row.state.mask(row.state.output(row.index)) for i, row in enumerate(rows) if row.state.mask is not None}
    found = {i: words for i, words in masks.items() if words is not None}
    if not found:
        return
    words = np.full((len(rows), num_words(logits.shape[1])), EVERY_TOKEN, np.int32)
    for i, mask in found.items():
        words[i] = mask
    apply_bitmask(logits, words)


def _mask_bad_words(logits: Float32, rows: Sequence[Adjusted]) -> None:
    worded = [(i, row) for i, row in enumerate(rows) if row.state.bad_words]
    _mask(logits, [(i, row.state.bad_words.ends(row.state.output(row.index))) for i, row in worded])


def _mask_until_min_tokens(logits: Float32, rows: Sequence[Adjusted]) -> None:
    found: list[tuple[int, Ids]] = []
    for i, row in enumerate(rows):
        ids = row.state.min_tokens_ids
        if ids is not None and row.index < row.state.min_tokens:
            found.append((i, ids))
    _mask(logits, found)


def _add_bias(logits: Float32, rows: Sequence[Adjusted]) -> None:
    biased = [(i, row.state.bias) for i, row in enumerate(rows) if row.state.bias is not None]
    if not biased:
        return
    inside = [(i, ids[ids < logits.shape[1]], values[ids < logits.shape[1]]) for i, (ids, values) in biased]
    places = _places(logits, [(i, ids) for i, ids, _ in inside])
    logits.reshape(-1)[places] += np.concatenate([values for _, _, values in inside])


def _penalize(logits: Float32, rows: Sequence[Adjusted]) -> None:
    """Of a token that occurred: its logit ÷ or × the repetition penalty, then minus frequency · count, minus presence."""
    size = logits.shape[1]
    found: list[tuple[int, Ids]] = []
    all_counts: list[Float32] = []
    for i, row in enumerate(rows):
        if row.state.penalized:
            ids, counts = row.state.counts(row.index, row.num_drafted)
            inside = ids < size
            found.append((i, ids[inside]))
            all_counts.append(counts[inside])
    if not found:
        return
    places = _places(logits, found)
    lengths = [len(ids) for _, ids in found]
    params = [rows[i].state.params for i, _ in found]
    factor = _spread([p.repetition_penalty for p in params], lengths)
    frequency = _spread([p.frequency_penalty for p in params], lengths)
    presence = _spread([p.presence_penalty for p in params], lengths)
    counts = np.concatenate(all_counts)
    values = logits.reshape(-1)[places]
    values = np.where(values > 0, values / factor, values * factor)
    values -= frequency * counts
    values -= presence * (counts > 0)
    logits.reshape(-1)[places] = values


def _mask(logits: Float32, found: Sequence[tuple[int, Ids]]) -> None:
    if found:
        logits.reshape(-1)[_places(logits, found)] = MASKED


def _places(logits: Float32, found: Iterable[tuple[int, Ids]]) -> Ids:
    """Where (row, its ids) lie in the flat logits; ids beyond the vocabulary left out."""
    size = logits.shape[1]
    return np.concatenate([ids[ids < size] + i * size for i, ids in found])


def _spread(values: Sequence[float], lengths: Sequence[int]) -> Float32:
    """Each value, in float32, as often as its length says."""
    return np.repeat(np.array(values, dtype=np.float32), lengths)

"""Stages: changes that requests make to their logits before the temperature, each for all rows that use it at once.

Owns: the stages and their order: allowed ids, bad words, minimum tokens, logit bias, processors of plugins, penalties, replay.
Never does: filter (`core_runtime.sampling.filters`), apply token masks (the race does) or choose.
Called by: `core_runtime.sampling.changes.adjusted`.

A row's result depends on its own logits and tokens alone. Ids beyond the vocabulary are ignored here; the frontend refuses
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from core_runtime.sampling.changes.canvas import MASKED, Canvas, DeviceCanvas, HostCanvas
from core_runtime.sampling.columns import temperature_of
from core_runtime.sampling.noise import Float32, Ids
from core_runtime.sampling.state import SequenceSampling


@dataclass(slots=True)
class Adjusted:
    """A row that the stages change.

    state: sampling state of its sequence.
    index: its output index, drafts before it included.
    num_drafted: number of drafts among the output tokens before it.
    """

    state: SequenceSampling
    index: int
    num_drafted: int = 0


class CustomStage(Protocol):
    """The logits processors of plugins, for the rows that use them."""

    def apply(self, logits: Float32, rows: Sequence[Adjusted], *, late: bool) -> dict[int, str]:
        """Change logits float32 [R, V], in place. rows: R of them.

        late: whether to run the processors that come after the temperature; they get z = (logit - largest) / T.
        Returns error messages by place, each for its row alone. Never raises.
        """
        ...


def adjust(logits: Float32, rows: Sequence[Adjusted], custom: CustomStage | None = None) -> dict[int, str]:
    """Run all stages on logits float32 [R, V], in place, contiguous; masked entries become -inf.

    rows: R of them.
    custom: logits processors; None if no request uses any.
    Returns error messages by place of rows that failed.
    """
    canvas = HostCanvas(logits)
    _restrict(canvas, rows)
    failed = {} if custom is None else custom.apply(logits, rows, late=False)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # extreme penalties: the sampler looks
        _penalize(canvas, rows)
        _divide(logits, rows)
    if custom is not None:
        failed |= custom.apply(logits, rows, late=True)
    # Last, so that no other stage can change a replayed token.
    _replay(logits, rows)
    return failed


def adjust_there(logits: Tensor, rows: Sequence[Adjusted]) -> None:
    """Run the stages on logits of a device, float32 [R, V], for rows without processors."""
    canvas = DeviceCanvas(logits)
    _restrict(canvas, rows)
    _penalize(canvas, rows)


def _restrict(canvas: Canvas, rows: Sequence[Adjusted]) -> None:
    """Run the stages before processors and penalties."""
    _keep_allowed(canvas, rows)
    _mask_bad_words(canvas, rows)
    _mask_until_min_tokens(canvas, rows)
    _add_bias(canvas, rows)


def _keep_allowed(canvas: Canvas, rows: Sequence[Adjusted]) -> None:
    """Mask all tokens but the allowed ids of rows that have such a list."""
    allowed: list[tuple[int, Ids]] = []
    for i, row in enumerate(rows):
        ids = row.state.allowed_ids
        if ids is not None:
            allowed.append((i, ids))
    if allowed:
        canvas.keep([i for i, _ in allowed], _places(canvas.size, allowed))


def _mask_bad_words(canvas: Canvas, rows: Sequence[Adjusted]) -> None:
    """Mask the last tokens of bad words whose beginnings end the output."""
    found: list[tuple[int, Ids]] = []
    for i, row in enumerate(rows):
        bad_words = row.state.bad_words
        if bad_words:
            output = row.state.output(row.index)
            found.append((i, bad_words.ends(output)))
    _mask(canvas, found)


def _mask_until_min_tokens(canvas: Canvas, rows: Sequence[Adjusted]) -> None:
    """Mask the tokens that would end a sequence before `min_tokens`."""
    found: list[tuple[int, Ids]] = []
    for i, row in enumerate(rows):
        ids = row.state.min_tokens_ids
        if ids is not None and row.index < row.state.min_tokens:
            found.append((i, ids))
    _mask(canvas, found)


def _add_bias(canvas: Canvas, rows: Sequence[Adjusted]) -> None:
    """Add the logit bias of rows that have one."""
    found: list[tuple[int, Ids]] = []
    all_values: list[Float32] = []
    for i, row in enumerate(rows):
        if row.state.bias is not None:
            ids, values = row.state.bias
            # `_places` drops ids beyond the vocabulary, so their values are dropped too.
            inside = ids < canvas.size
            found.append((i, ids[inside]))
            all_values.append(values[inside])
    if found:
        canvas.add(_places(canvas.size, found), np.concatenate(all_values))


def _penalize(canvas: Canvas, rows: Sequence[Adjusted]) -> None:
    """Apply the penalties to each token that occurred: ÷ or × repetition, − frequency · count, − presence."""
    found: list[tuple[int, Ids]] = []
    all_counts: list[Float32] = []
    for i, row in enumerate(rows):
        if row.state.penalized:
            ids, counts = row.state.counts(row.index, row.num_drafted)
            inside = ids < canvas.size
            found.append((i, ids[inside]))
            all_counts.append(counts[inside])
    if not found:
        return
    lengths = [len(ids) for _, ids in found]
    params = [rows[i].state.params for i, _ in found]
    canvas.penalize(
        _places(canvas.size, found),
        _spread([p.repetition_penalty for p in params], lengths),
        _spread([p.frequency_penalty for p in params], lengths),
        _spread([p.presence_penalty for p in params], lengths),
        np.concatenate(all_counts),
    )


def _divide(logits: Float32, rows: Sequence[Adjusted]) -> None:
    """Compute z = (logit - largest) / T for rows with late processors; the race then has T = 1 for these rows.

    So a late processor that changes nothing leaves every bit as it would be without it.
    """
    for i, row in enumerate(rows):
        if not row.state.late_processors:
            continue
        values = logits[i]
        largest = values.max()
        if np.isfinite(largest):
            values -= largest
            values /= np.float32(temperature_of(row.state.params))


def _replay(logits: Float32, rows: Sequence[Adjusted]) -> None:
    """Mask all tokens but the replayed one. The step after the last replayed token is not masked; its result is unused."""
    for i, row in enumerate(rows):
        trace = row.state.trace
        if trace is not None and row.index < len(trace):
            logits[i] = MASKED
            logits[i, trace[row.index]] = 0.0


def _mask(canvas: Canvas, found: Sequence[tuple[int, Ids]]) -> None:
    if found:
        canvas.mask(_places(canvas.size, found))


def _places(size: int, found: Iterable[tuple[int, Ids]]) -> Ids:
    """Return the places of each row's ids in the flat logits, without ids beyond the vocabulary. size: V."""
    places = []
    for i, ids in found:
        inside = ids[ids < size]
        places.append(inside + i * size)
    return np.concatenate(places)


def _spread(values: Sequence[float], lengths: Sequence[int]) -> Float32:
    """Repeat each value as often as its length says, in float32."""
    return np.repeat(np.array(values, dtype=np.float32), lengths)

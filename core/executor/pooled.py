"""Hidden states of prompts, pooled.

Owns: which rows of a step count, and what is known of a sequence between its chunks. Never does: sample, or compute a layer.
Called by: the model runner, in steps with a sequence to pool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.pooling import Pooling
from core.api.step_plan import StepResult
from core.executor.batch import PersistentBatch, StepInput
from core.executor.pooled_state import Pooled

Hidden = Callable[[range], Tensor]
"""[R, H], behind the final norm, of these tokens of the step; valid until the next call."""

LEAST_NORM = 1e-12
"""Shorter vectors keep their direction and get no longer than this allows, as in torch's `normalize`."""


def pool_step(step: StepInput, batch: PersistentBatch, result: StepResult, hidden: Hidden, max_rows: int) -> None:
    """Take in the tokens of a step; sequences whose prompt ended get their result. max_rows: of hidden states at once."""
    for index, slot in enumerate(step.slots.tolist()):
        state = batch.pooled.get(slot)
        if state is None:
            continue
        pooling = state.pooling
        begin = int(step.num_computed[index])
        end = begin + int(step.query_lens[index])
        is_last = end >= len(batch[slot].prompt_token_ids)
        offset = int(step.cu_seqlens[index])
        for rows in _wanted(pooling, offset, end - begin, max_rows, is_first=begin == 0, is_last=is_last):
            _take(state, _on_host(hidden(rows)))
        if is_last:
            vectors = _finished(state, end)
            if np.isfinite(vectors).all():
                result.pooled[slot] = vectors.tobytes()
            else:
                result.errors[slot] = "The model's hidden states hold NaN or infinity."


def _wanted(pooling: Pooling, offset: int, count: int, max_rows: int, *, is_first: bool, is_last: bool) -> list[range]:
    """The tokens of the step that count, a few at a time. count: tokens of the sequence, the first of them at `offset`."""
    end = offset + count
    if pooling.kind == "cls":
        return [range(offset, offset + 1)] if is_first else []
    if pooling.kind == "last":
        return [range(end - 1, end)] if is_last else []
    starts = range(offset, end, max_rows)
    return [range(start, min(start + max_rows, end)) for start in starts]


def _take(state: Pooled, rows: NDArray[np.float32]) -> None:
    """More hidden states of a sequence, in their order."""
    kind = state.pooling.kind
    if kind == "mean":
        # numpy adds whole rows one after the other, so chunks do not change the sum
        known = np.zeros((1, rows.shape[1])) if state.total is None else state.total[None]
        state.total = np.add.reduce(np.concatenate([known, rows]), axis=0)
    elif kind == "all":
        state.parts.append(rows.copy())
    else:
        state.one = rows[0].copy()


def _finished(state: Pooled, num_tokens: int) -> NDArray[np.float32]:
    """float32 [H] or [T, H]."""
    vectors: NDArray[Any]
    if state.total is not None:
        vectors = state.total / num_tokens
    elif state.parts:
        vectors = np.concatenate(state.parts)
    else:
        assert state.one is not None, "a prompt has a first token and a last one"
        vectors = state.one
    pooling = state.pooling
    if pooling.dimensions:
        vectors = vectors[..., : pooling.dimensions]
    if pooling.normalize:
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
        vectors = vectors / np.maximum(lengths, LEAST_NORM)
    return np.ascontiguousarray(vectors, np.float32)


def _on_host(rows: Tensor) -> NDArray[np.float32]:
    """The same numbers as an array."""
    found: NDArray[np.float32] = rows.to("cpu", torch.float32).numpy()
    return found

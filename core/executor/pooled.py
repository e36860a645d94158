"""Hidden states of prompts, pooled.

Owns: which rows of a step count, what is known of a sequence between its chunks, and the way through the model's head.
Never does: sample, or compute a layer of the model.
Called by: the model runner, in steps with a sequence to pool.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.pooling import Pooling, PoolingConfig, Squash
from core.api.step_plan import StepResult
from core.executor.batch import PersistentBatch, StepInput
from core.executor.forward import ForwardPass
from core.executor.pooled_state import Pooled
from core.models.decoder import Decoder
from core.models.vector_head import VectorHead, dense_head

LEAST_NORM = 1e-12
"""Shorter vectors keep their direction and get no longer than this allows, as in torch's `normalize`."""


def pooler_of(config: PoolingConfig, forward: ForwardPass) -> Pooler:
    """The pooler of a model. Raises CheckpointError for a damaged file of its head."""
    model = forward.model
    head: VectorHead | None = None
    if config.head == "dense":
        head = dense_head(config.dense)
    elif config.head == "classes" and isinstance(model, Decoder):
        head = model.weights.pooling_head
    return Pooler(forward, config, head)


class Pooler:
    """For one model. head: what vectors go through, where that is no head for the next token."""

    def __init__(self, forward: ForwardPass, config: PoolingConfig, head: VectorHead | None) -> None:
        self._forward = forward
        self._head = head
        self._token_ids = list(config.token_ids)
        self._contrast = config.contrast
        self._max_rows = forward.model.max_logits
        self._told_segments = False

    def begin(self, step: StepInput, batch: PersistentBatch) -> None:
        """Before the forward pass: tell the model which tokens are of the second text of a pair."""
        seconds = [state.pooling.second for state in batch.pooled.values()]
        model = self._forward.model
        if not isinstance(model, Decoder) or not (any(seconds) or self._told_segments):
            return
        self._told_segments = any(seconds) and model.spec.token_types > 1
        segments: Tensor | None = None
        if self._told_segments:
            segments = _segments(step, batch).to(model.workspace.buffer("residual").device)
        model.tell_segments(segments)

    def run(self, step: StepInput, batch: PersistentBatch, result: StepResult) -> None:
        """Take in the tokens of a step; sequences whose prompt ended get their result."""
        for index, slot in enumerate(step.slots.tolist()):
            state = batch.pooled.get(slot)
            if state is None:
                continue
            pooling = state.pooling
            begin = int(step.num_computed[index])
            end = begin + int(step.query_lens[index])
            is_last = end >= len(batch[slot].prompt_token_ids)
            offset = int(step.cu_seqlens[index])
            wanted = _wanted(pooling, offset, end - begin, self._max_rows, is_first=begin == 0, is_last=is_last)
            for rows in wanted:
                _take(state, self._rows(rows, pooling))
            if is_last:
                vectors = self._finished(state, end)
                if np.isfinite(vectors).all():
                    result.pooled[slot] = vectors.tobytes()
                else:
                    result.errors[slot] = "The model's hidden states hold NaN or infinity."

    def _rows(self, rows: range, pooling: Pooling) -> NDArray[np.float32]:
        """What counts of some tokens of the step: hidden states, or numbers of classes where each token has its own."""
        if pooling.through_head and self._token_ids:
            return self._of_tokens(rows)
        hidden = _on_host(self._forward.hidden(rows))
        if pooling.kind == "all" and pooling.through_head:
            return self._through_head(hidden)
        return hidden

    def _of_tokens(self, rows: range) -> NDArray[np.float32]:
        """[R, classes]: the logits of the classes' tokens, or how much larger the second one is than the first."""
        logit_rows = self._forward.buffers.logit_rows
        logit_rows.array[: len(rows)] = rows
        logits = _on_host(self._forward.logits(len(rows))[:, self._token_ids])
        return logits[:, 1:] - logits[:, :1] if self._contrast else logits

    def _through_head(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """[R, outputs] of [R, H]."""
        assert self._head is not None, "a request asks for a head that was loaded"
        with torch.inference_mode():
            return _on_host(self._head(torch.from_numpy(np.ascontiguousarray(vectors, np.float32))))

    def _finished(self, state: Pooled, num_tokens: int) -> NDArray[np.float32]:
        """float32 [H] or [T, H]; of classes [N] or [T, N]."""
        pooling = state.pooling
        vectors = _pooled(state, num_tokens)
        if pooling.through_head and pooling.kind != "all" and not self._token_ids:
            vectors = self._through_head(vectors[None])[0]
        if pooling.dimensions:
            vectors = vectors[..., : pooling.dimensions]
        if pooling.normalize:
            lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
            vectors = vectors / np.maximum(lengths, LEAST_NORM)
        return np.ascontiguousarray(_squashed(vectors, pooling.squash), np.float32)


def _segments(step: StepInput, batch: PersistentBatch) -> Tensor:
    """int64 [T]: 1 for tokens of the second text of a pair, 0 for all others."""
    segments = np.zeros(step.num_tokens, np.int64)
    for index, slot in enumerate(step.slots.tolist()):
        state = batch.pooled.get(slot)
        if state is None or not state.pooling.second:
            continue
        offset = int(step.cu_seqlens[index])
        end = int(step.cu_seqlens[index + 1])
        first = offset + max(state.pooling.second - int(step.num_computed[index]), 0)
        segments[min(first, end) : end] = 1
    return torch.from_numpy(segments)


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


def _pooled(state: Pooled, num_tokens: int) -> NDArray[Any]:
    """[H], or [T, H]: one vector of what was taken in, or all of them."""
    if state.total is not None:
        return state.total / num_tokens
    if state.parts:
        return np.concatenate(state.parts)
    assert state.one is not None, "a prompt has a first token and a last one"
    return state.one


def _squashed(numbers: NDArray[Any], squash: Squash) -> NDArray[Any]:
    """Numbers of classes, along the last axis, as the request wants them."""
    if squash == "none":
        return numbers
    wide = numbers.astype(np.float64)
    if squash == "sigmoid":
        return 0.5 * (1.0 + np.tanh(0.5 * wide))  # the same as 1 / (1 + exp(-x)), which may overflow
    shares = np.exp(wide - wide.max(axis=-1, keepdims=True))
    found: NDArray[Any] = shares / shares.sum(axis=-1, keepdims=True)
    return found


def _on_host(rows: Tensor) -> NDArray[np.float32]:
    """The same numbers as an array."""
    found: NDArray[np.float32] = rows.to("cpu", torch.float32).numpy()
    return found

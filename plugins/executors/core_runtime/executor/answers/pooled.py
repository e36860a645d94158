"""Pooling of prompts' hidden states.

Owns: which rows of a step count, a sequence's state between its chunks, and the use of the model's head.
Never does: sample, or compute a layer of the model.
Called by: the model runner, in steps with a sequence to pool.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.pooling import PoolingConfig, Squash
from core.api.step_plan import Slot, StepResult
from core_runtime.executor.answers.pooled_state import Pooled
from core_runtime.executor.forward import ForwardPass
from core_runtime.executor.steps.batch import PersistentBatch, StepInput
from core_runtime.models.decoder import Decoder
from core_runtime.models.vector_head import VectorHead, dense_head

LEAST_NORM = 1e-12
"""Minimum divisor of a normalization, as in torch's `normalize`: shorter vectors stay shorter than 1."""


def pooler_of(config: PoolingConfig, forward: ForwardPass) -> Pooler:
    """Make the pooler of a model. Raises CheckpointError for a damaged file of its head."""
    model = forward.model
    head: VectorHead | None = None
    if config.head == "dense":
        head = dense_head(config.dense)
    elif config.head == "classes" and isinstance(model, Decoder):
        head = model.weights.pooling_head
    return Pooler(forward, config, head)


class Stretch(NamedTuple):
    """Consecutive tokens of a sequence in a step.

    row: row of the first token in the step.
    begin: position of the first token in its sequence.
    """

    state: Pooled
    row: int
    begin: int
    length: int

    def cut(self, most: int) -> tuple[Stretch, Stretch | None]:
        """Split off the first `most` tokens. Returns them and the rest, or None if nothing is left."""
        if self.length <= most:
            return self, None
        left = self._replace(row=self.row + most, begin=self.begin + most, length=self.length - most)
        return self._replace(length=most), left


class Pooler:
    """Pools the sequences of one model. head: head for vectors; None if the model's head predicts tokens, or there is
    none.
    """

    def __init__(self, forward: ForwardPass, config: PoolingConfig, head: VectorHead | None) -> None:
        self._forward = forward
        self._head = head
        self._token_ids = list(config.token_ids)
        self._contrast = config.contrast
        self._max_rows = forward.model.max_logits
        self._told_segments = False

    def begin(self, step: StepInput, batch: PersistentBatch) -> None:
        """Set the model's segments before the forward pass: which tokens belong to the second text of a pair."""
        seconds = [state.pooling.second for state in batch.pooled.values()]
        model = self._forward.model
        if not isinstance(model, Decoder) or not (any(seconds) or self._told_segments):
            return
        self._told_segments = any(seconds) and model.spec.token_types > 1
        segments: Tensor | None = None
        if self._told_segments:
            segments = _segments(step, batch).to(model.workspace.buffer("residual").device)
        # Called once more without pairs, so that the segments of an earlier step are removed.
        model.set_segments(segments)

    def run(self, step: StepInput, batch: PersistentBatch, result: StepResult) -> None:
        """Pool the tokens of a step; sequences whose prompt has ended get their result."""
        stretches: list[Stretch] = []
        ended: list[tuple[Slot, Pooled, int]] = []
        for index, slot in enumerate(step.slots.tolist()):
            state = batch.pooled.get(slot)
            if state is None:
                continue
            begin = int(step.num_computed[index])
            count = int(step.query_lens[index])
            is_last = begin + count >= len(batch[slot].prompt_token_ids)
            whole = Stretch(state, int(step.cu_seqlens[index]), begin, count)
            stretches += _wanted(whole, is_last=is_last)
            if is_last:
                ended.append((slot, state, begin + count))
        self._take(stretches)
        for slot, state, num_tokens in ended:
            vectors = self._finished(state, num_tokens)
            if np.isfinite(vectors).all():
                result.pooled[slot] = vectors.tobytes()
            else:
                result.errors[slot] = "The model's hidden states hold NaN or infinity."

    def _take(self, stretches: list[Stretch]) -> None:
        """Pass these tokens to their sequences, as many at a time as the head's buffer has rows."""
        left: Stretch | None
        waiting = deque(stretches)
        while waiting:
            together: list[Stretch] = []
            room = self._max_rows
            while waiting and room:
                part, left = waiting.popleft().cut(room)
                together.append(part)
                room -= part.length
                if left is not None:
                    waiting.appendleft(left)
            rows = np.concatenate([np.arange(part.row, part.row + part.length) for part in together])
            states = self._states(rows)
            start = 0
            for part in together:
                own = states[start : start + part.length]
                start += part.length
                if part.state.pooling.tokenwise and part.state.pooling.through_head and not self._token_ids:
                    own = self._through_head(own, part.state)
                part.state.take(own, part.begin)

    def _states(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return hidden states [R, H] of rows [R] of the step, or class scores if the classes are tokens."""
        if self._token_ids:
            return self._of_tokens(rows)
        return _on_host(self._forward.hidden(rows))

    def _of_tokens(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return [R, classes]: the logits of the classes' tokens, or with contrast the difference to the first one."""
        logit_rows = self._forward.buffers.logit_rows
        logit_rows.array[: len(rows)] = rows
        logits = _on_host(self._forward.logits(len(rows))[:, self._token_ids])
        return logits[:, 1:] - logits[:, :1] if self._contrast else logits

    def _through_head(self, vectors: NDArray[np.float32], state: Pooled) -> NDArray[np.float32]:
        """Apply the head, or the adapter's, to vectors [R, H] of a sequence. Returns [R, outputs]."""
        adapters = self._forward.adapters
        head = self._head if adapters is None else adapters.classes.get(state.adapter_row, self._head)
        assert head is not None, "a request asks for a head that was loaded"
        with torch.inference_mode():
            return _on_host(head(torch.from_numpy(np.ascontiguousarray(vectors, np.float32))))

    def _finished(self, state: Pooled, num_tokens: int) -> NDArray[np.float32]:
        """Return the result of a sequence: float32 [H] or [T, H]; for classes [N] or [T, N]."""
        pooling = state.pooling
        vectors = state.vector(num_tokens)
        if pooling.through_head and not pooling.tokenwise and not self._token_ids:
            vectors = self._through_head(vectors[None], state)[0]
        if pooling.dimensions:
            vectors = vectors[..., : pooling.dimensions]
        if pooling.normalize:
            lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
            vectors = vectors / np.maximum(lengths, LEAST_NORM)
        if pooling.logit_mean != 0.0 or pooling.logit_sigma != 1.0:
            vectors = (vectors - pooling.logit_mean) / pooling.logit_sigma
        return np.ascontiguousarray(_squashed(vectors, pooling.squash), np.float32)


def _segments(step: StepInput, batch: PersistentBatch) -> Tensor:
    """Return int64 [T]: 1 for tokens of the second text of a pair, 0 for all others."""
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


def _wanted(whole: Stretch, *, is_last: bool) -> list[Stretch]:
    """Return the tokens of a sequence in this step that are pooled. is_last: whether its prompt ends with them."""
    kinds = set(whole.state.pooling.kinds)
    if not kinds <= {"cls", "last"}:
        return [whole]
    found = []
    if "cls" in kinds and whole.begin == 0:
        found.append(whole._replace(length=1))
    if "last" in kinds and is_last:
        behind = whole.length - 1
        found.append(whole._replace(row=whole.row + behind, begin=whole.begin + behind, length=1))
    return found


def _squashed(numbers: NDArray[Any], squash: Squash) -> NDArray[Any]:
    """Apply the request's activation to class scores, along the last axis."""
    if squash == "none":
        return numbers
    wide = numbers.astype(np.float64)
    if squash == "sigmoid":
        return 0.5 * (1.0 + np.tanh(0.5 * wide))  # the same as 1 / (1 + exp(-x)), which may overflow
    # The largest is subtracted so that `exp` cannot overflow.
    shares = np.exp(wide - wide.max(axis=-1, keepdims=True))
    found: NDArray[Any] = shares / shares.sum(axis=-1, keepdims=True)
    return found


def _on_host(rows: Tensor) -> NDArray[np.float32]:
    """Copy rows to the host as float32."""
    found: NDArray[np.float32] = rows.to("cpu", torch.float32).numpy()
    return found

"""The forward pass of a step: run by the layers' own code, or replayed from what they once called.

Owns: the recorded calls of the blocks and of the head. Never does: fill the step's buffers, sample.
Called by: the model runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from core.executor.step_buffers import StepBuffers
from core.models.decoder import Decoder
from core.plugin.contracts import BatchView, CapturedCalls, RecordingRuntime, Runtime

Capture = Callable[[Callable[[], None], int, int], CapturedCalls | None]


def capture_of(model: Decoder, runtime: Runtime, *, enforce_eager: bool) -> Capture | None:
    """The runtime's `capture` when everything that the model calls can be recorded, else None."""
    if enforce_eager or not model.capturable:
        return None
    return runtime.capture if isinstance(runtime, RecordingRuntime) else None


class ForwardPass:
    """Runs a model on the step's buffers. With `capture`, the first step is recorded and later ones are replayed.

    groups: the KV group of each layer.
    """

    def __init__(self, model: Decoder, buffers: StepBuffers, capture: Capture | None, groups: Sequence[int]) -> None:
        self.model = model
        self.groups = groups
        self.buffers = buffers
        self._capture = capture
        self._blocks: CapturedCalls | None = None
        self._head: CapturedCalls | None = None

    @property
    def on_cpu(self) -> bool:
        """Whether logits lie in the host's memory."""
        return str(self.buffers.logit_rows.tensor.device.type) == "cpu"

    @property
    def captured(self) -> bool:
        """Whether the next step is a replay."""
        return self._blocks is not None and self._head is not None

    def run(self, views: Sequence[BatchView]) -> None:
        """Compute the residual stream of the step's tokens. views: of each KV group."""
        view = views[0]
        if self._blocks is not None:
            self._blocks(view.num_tokens, view.num_seqs)
        elif self._capture is not None:
            self._blocks = self._record(lambda: self._eager(views), view.num_tokens, view.num_seqs)
        else:
            self._eager(views)

    def logits(self, count: int) -> Tensor:
        """float32 logits [count, V] of the residual rows that `buffers.logit_rows` names; valid until the next call."""
        rows = self.buffers.logit_rows.upload(count)
        if self._head is not None:
            self._head(count, 0)
            return self.model.logits_view(count)
        if self._capture is None:
            return self.model.logits(rows)
        self._head = self._record(lambda: self._eager_logits(rows), count, 0)
        return self.model.logits_view(count)

    def replay(self, count: int) -> None:
        """Both passes for `count` sequences of one token each, when `captured`; `logits_view` then has all logits."""
        assert self._blocks is not None and self._head is not None
        self._blocks(count, count)
        self._head(count, 0)

    def capture(self, run: Callable[[], None], count: int) -> CapturedCalls | None:
        """Run something on `count` rows, and record it for as many if that can be."""
        if self._capture is not None:
            return self._capture(run, count, 0)
        run()
        return None

    def residual(self, rows: Sequence[int]) -> Tensor:
        """A copy of some rows of the latest residual stream, [len(rows), H]."""
        stream = self.model.workspace.buffer("residual")
        return stream[torch.tensor(rows, dtype=torch.int64, device=stream.device)]

    def _record(self, run: Callable[[], None], num_rows: int, num_seqs: int) -> CapturedCalls | None:
        """Run and record; what cannot be recorded is never tried again."""
        assert self._capture is not None
        calls = self._capture(run, num_rows, num_seqs)
        if calls is None:
            self._capture = None
        return calls

    def _eager_logits(self, rows: Tensor) -> None:
        self.model.logits(rows)

    def _eager(self, views: Sequence[BatchView]) -> None:
        token_ids = self.buffers.token_ids.upload(views[0].num_tokens)
        self.model.forward(token_ids, views[0].positions, self._metadata(views))

    def _metadata(self, views: Sequence[BatchView]) -> list[Any]:
        """Attention metadata of each layer, built once for each backend and KV group."""
        built: dict[tuple[int, int], Any] = {}
        metadata: list[Any] = []
        for mixer, group in zip(self.model.mixers, self.groups, strict=True):
            key = id(mixer.backend), group
            if key not in built:
                built[key] = mixer.build(views[group])
            metadata.append(built[key])
        return metadata

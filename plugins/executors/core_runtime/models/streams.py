"""Several residual streams, of which each block computes the first.

Owns: the order of their operations. Never does: run a mixer or an MLP. Called by: the decoder, around each block.

Sums are taken stream by stream in float32, so that a row has the same bits in every step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.whole_change import WholeAdapters
from core_runtime.layers.workspace import Workspace, by_heads
from core_runtime.models.norm import Norm
from core_runtime.models.step_views import StepViews
from core_runtime.models.tail import move_rows
from core_runtime.specs.decoder_spec import DecoderSpec

LEAST_SQUARE: Final = 1e-5
"""Least mean square by which a stream is divided."""


@dataclass(slots=True)
class StreamWeights:
    """The prepared weights outside of blocks. into, back: matrices from the embedding to each further stream, and back."""

    into: Sequence[Linear]
    back: Sequence[Linear]


@dataclass(slots=True)
class BlockStreams:
    """The prepared weights of one block.

    router, left, right: see `Streams.linears`. router_norm, laurel_norm: see `Streams.norms`.
    predict: float32 [streams, streams, streams]: for each stream and stream that it is made of, the shares of the router's
        outputs. correct: float32 [streams, streams]. scale: float32 [H], or None.
    adapters: adapters of both; None: the engine has none.
    """

    router: Linear
    left: Linear
    right: Linear
    router_norm: Norm
    laurel_norm: Norm
    predict: Tensor
    correct: Tensor
    scale: Tensor | None
    adapters: WholeAdapters | None = None

    @classmethod
    def of(
        cls, linears: Mapping[str, Linear], norms: Mapping[str, Norm], tensors: Mapping[str, Tensor]
    ) -> BlockStreams:
        """Return the weights of a block from its parts by role."""
        count = len(tensors["correct"])
        return cls(
            linears["layer_router"],
            linears["layer_left"],
            linears["layer_right"],
            norms["stream_router"],
            norms["laurel"],
            tensors["predict"].view(count, count, count),
            tensors["correct"],
            tensors.get("scale"),
        )


class StreamViews:
    """The buffers of one step: streams [T, streams, H]; router [T, streams]; inner [T, rank]; laurel [T, H]."""

    __slots__ = ("inner", "laurel", "router", "streams")

    def __init__(self, workspace: Workspace, num_tokens: int, count: int) -> None:
        self.streams = by_heads(workspace.view("streams", num_tokens), count)
        self.router = workspace.view("stream_router", num_tokens)
        self.inner = workspace.view("laurel_inner", num_tokens)
        self.laurel = workspace.view("laurel", num_tokens)


class StreamsStep:
    """The streams of a decoder. The residual stream of the workspace is the one that the current block computes."""

    def __init__(self, spec: DecoderSpec, weights: StreamWeights, kernels: KernelSet, workspace: Workspace) -> None:
        assert spec.streams is not None
        count = self._count = spec.streams.count
        self._hidden = spec.hidden_size
        self._weights = weights
        self._kernels = kernels
        self._views = workspace.cached("streams", lambda rows: StreamViews(workspace, rows, count))

    def begin(self, views: StepViews) -> None:
        """Make all streams of a step from the embeddings in `views.residual`, with their magnitude."""
        streams = self._views(len(views.residual)).streams
        streams[:, 0] = views.residual
        magnitude = _mean_square(views.residual).sqrt()
        for number, matrix in enumerate(self._weights.into, 1):
            matrix(views.residual, views.branch)
            streams[:, number] = _resized(views.branch, magnitude).to(streams.dtype)

    def predict(self, block: BlockStreams, views: StepViews) -> None:
        """Predict all streams from all; the first one becomes `views.residual`."""
        streams = self._views(len(views.residual)).streams
        shares = self._routed(block, streams[:, 0], views)
        factors = (shares[:, None, None, :] * block.predict).sum(-1)
        if block.adapters is not None and block.adapters.active:
            for predict, rows in block.adapters.chosen("predict.weight", len(shares)):
                factors[rows] = (shares[rows][:, None, None, :] * predict.view_as(block.predict)).sum(-1)
        predicted = [self._mixed(streams, number, factors[:, number]) for number in range(self._count)]
        for number, one in enumerate(predicted):
            streams[:, number] = one.to(streams.dtype)
        views.residual.copy_(streams[:, 0])

    def join(self, block: BlockStreams, views: StepViews) -> None:
        """Add the small matrix's output of the mixer's input, `views.normed`, to `views.residual` behind the mixer."""
        own = self._views(len(views.residual))
        block.left(views.normed, own.inner)
        block.right(own.inner, own.laurel)
        block.laurel_norm(own.laurel, own.laurel)
        self._kernels.add(views.normed, own.laurel)
        self._kernels.add(own.laurel, views.residual)
        self._kernels.scale(views.residual, math.sqrt(0.5))

    def correct(self, block: BlockStreams, views: StepViews) -> None:
        """Correct all streams by the block's result, `views.residual`, which becomes the corrected first one.

        `views.normed` gets the same with the block's factors, as embeddings for each layer read it.
        """
        streams = self._views(len(views.residual)).streams
        shares = self._routed(block, views.residual, views)
        factors = (shares[:, None, :] * block.correct).sum(-1) + 1.0
        if block.adapters is not None and block.adapters.active:
            for correct, rows in block.adapters.chosen("correct.weight", len(shares)):
                factors[rows] = (shares[rows][:, None, :] * correct).sum(-1) + 1.0
        change = views.residual.float() - streams[:, 0].float()
        for number in range(self._count):
            streams[:, number] = torch.addcmul(streams[:, number].float(), change, factors[:, number, None]).to(
                streams.dtype
            )
        views.residual.copy_(streams[:, 0])
        scaled = views.residual if block.scale is None else (views.residual * block.scale).to(views.residual.dtype)
        views.normed.copy_(scaled)

    def move(self, num_tokens: int, rows: Tensor) -> None:
        """Move rows, int64 [K], of all streams of a step of `num_tokens` rows to its first K ones."""
        move_rows(self._views(num_tokens).streams, rows)

    def add(self, branch: Tensor) -> None:
        """Add branch [T, H] to all streams but the first."""
        streams = self._views(len(branch)).streams
        streams[:, 1:] += branch[:, None]

    def finish(self, views: StepViews) -> None:
        """Make `views.residual` the mean of all streams, each projected back and with the magnitude of the first."""
        streams = self._views(len(views.residual)).streams
        total = streams[:, 0].float()
        magnitude = _mean_square(total).sqrt()
        for number, matrix in enumerate(self._weights.back, 1):
            views.normed.copy_(streams[:, number])
            matrix(views.normed, views.branch)
            total = total + _resized(views.branch, magnitude)
        views.residual.copy_(total / self._count)

    def _routed(self, block: BlockStreams, x: Tensor, views: StepViews) -> Tensor:
        """Return the router's shares of x [T, H], float32 [T, streams]. `views.normed` is scratch."""
        out = self._views(len(x)).router
        views.branch.copy_(x)
        block.router_norm(views.branch, views.normed)
        self._kernels.scale(views.normed, 1.0 / self._hidden)
        block.router(views.normed, out)
        return out.float().tanh()

    def _mixed(self, streams: Tensor, number: int, factors: Tensor) -> Tensor:
        """Return a stream plus all streams times factors [T, streams], float32 [T, H]."""
        found = streams[:, number].float()
        for other in range(self._count):
            found = torch.addcmul(found, streams[:, other].float(), factors[:, other, None])
        return found


def _mean_square(x: Tensor) -> Tensor:
    """Return the mean square of each row, float32 [T, 1]."""
    return x.float().square().mean(-1, keepdim=True)


def _resized(x: Tensor, magnitude: Tensor) -> Tensor:
    """Return x [T, H] with the root mean square `magnitude` [T, 1], in float32."""
    return x.float() * magnitude / _mean_square(x).clamp(min=LEAST_SQUARE).sqrt()

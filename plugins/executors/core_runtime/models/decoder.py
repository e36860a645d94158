"""The generic decoder: one class for every row of the family table.

Owns: the order of blocks, and of norms, mixer and MLP in a block. Never does: read checkpoints, choose kernels, sample.
Called by: the model runner, once a step, on one flat token array.

Every operation writes to a buffer of the step workspace, so the sequence of kernel calls for a step depends on nothing
but the number of tokens and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from core.api.step_limits import StepLimits
from core_runtime.contracts import Communicator, HeadsKernel, LinearKernel, is_recordable, recordable_steps
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.partial_sums import PartialSums
from core_runtime.layers.rotary import SpareRows
from core_runtime.layers.workspace import Workspace
from core_runtime.models.around_blocks import add_rows, keep_and_blend, late_experts, put_aside
from core_runtime.models.decoder_weights import BlockWeights, DecoderWeights
from core_runtime.models.draft_input import DraftEntry
from core_runtime.models.embedding import Embedding
from core_runtime.models.experts_beside import ExpertsBeside
from core_runtime.models.halves import Half, Halves, halves_of
from core_runtime.models.head import Head
from core_runtime.models.layer_fetch import LayerFetch
from core_runtime.models.layer_inputs import LayerInputsStep
from core_runtime.models.layer_ranges import LayerRanges
from core_runtime.models.mixers import Mixer
from core_runtime.models.mlp import BlockMLP
from core_runtime.models.needs import needs
from core_runtime.models.step_views import StepViews, reserve_step
from core_runtime.models.streams import StreamsStep
from core_runtime.models.tail import TailStep
from core_runtime.models.taps import Taps
from core_runtime.specs.decoder_spec import BlockSpec, DecoderSpec

Held = TypeVar("Held")
Made = TypeVar("Made")


class Decoder:
    """A decoder ready to run, once a backend is bound to each of its `mixers`.

    tables: (cos, sin) tables of each block.
    dtype: dtype of the tensors between layers.
    limits: limits of one step.
    reduce: sums, in place, a tensor [T, H] of which every rank has computed a part; None: this is the whole model.

    spare: rows of the tables for rows of media with three positions; None: there are none.
    fetch: copies of weights that lie in host memory; None: kernels read all weights where they are.
    ranges: names of the blocks for profiles; None: they have none.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        kernels: KernelSet,
        tables: list[tuple[Tensor, Tensor] | None],
        workspace: Workspace,
        dtype: torch.dtype,
        limits: StepLimits,
        reduce: Callable[[Tensor], None] | None = None,
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.kernels = kernels
        self.workspace = workspace
        self._reduce = reduce
        self.max_logits = limits.logit_rows
        max_tokens = limits.tokens
        reserve_step(workspace, spec, max_tokens, dtype, divided=reduce is not None)
        self._halves = halves_of(spec, kernels, [block.norms for block in weights.blocks])
        self._late = late_experts(spec)
        self._keeps_entry = any(block.aside for block in spec.blocks)
        if reduce is not None:
            sums = PartialSums(workspace, kernels, reduce, max_tokens, spec.hidden_size)
            for block in weights.blocks:
                block.attach(sums)
        self._views = workspace.cached("step", lambda rows: StepViews(workspace, rows, spec))
        self.mixers: list[Mixer] = []
        for block, cos_sin in zip(weights.blocks, tables, strict=True):
            for mixer in block.mixers:
                mixer.attach(workspace, cos_sin)
                self.mixers.append(mixer)
        self.embedding = _made(
            weights.embedding if spec.holds_embedding else None,
            lambda held: Embedding(spec, held, kernels, max_tokens, reduce),
        )
        self.head = _made(weights.head, lambda held: Head(spec, held, kernels, workspace, dtype, limits.logit_rows))
        self.draft_entry = _made(
            weights.draft_input, lambda held: DraftEntry(spec, held, kernels, workspace, max_tokens)
        )
        self.layer_inputs = _made(weights.layer_inputs, lambda held: LayerInputsStep(spec, held, kernels, workspace))
        self.streams = _made(weights.streams, lambda held: StreamsStep(spec, held, kernels, workspace))
        self.spare: SpareRows | None = None
        self.fetch: LayerFetch | None = None
        self.ranges: LayerRanges | None = None
        self._added: tuple[Tensor, Tensor] | None = None
        norm = None if weights.head is None else weights.head.norm
        self._taps = Taps(spec, kernels, workspace, max_tokens, norm) if spec.taps else None

    def forward(
        self, token_ids: Tensor, positions: Tensor, metadata: Sequence[Any], tail: TailStep | None = None
    ) -> Tensor:
        """Run all blocks on token_ids and positions (int64 [T]); metadata: attention metadata of each mixer.

        A part of the model without the embedding continues from the residual stream in the workspace.

        tail: the rows of the last blocks; None: all.

        Returns the residual stream [T, H], with a tail [K, H], a view of the workspace that is valid until the next step.
        Without a tail, only kernels and attention backends are called, on buffers that depend on T alone.
        """
        if self.embedding is not None:
            self.embed(token_ids, positions)
        return self.run_blocks(positions, metadata, tail)

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Return the residual stream [T, H] at the entry of the first block, from token_ids and positions, int64 [T].

        A draft that takes in hidden states reads them from the first T rows of the workspace's buffer `hidden`.
        """
        assert self.embedding is not None, "this part of the model has no embedding"
        views = self._views(token_ids.shape[0])
        if self.draft_entry is None:
            self.embedding(token_ids, positions, views.embedded, views.normed, views.residual)
            if self.layer_inputs is not None:
                self.layer_inputs.embed(token_ids, views.residual)
            return views.residual
        taken = self.draft_entry.views(token_ids.shape[0])
        self.embedding(token_ids, positions, views.embedded, views.normed, taken.embedded)
        self.draft_entry(taken, views.residual)
        return views.residual

    def run_blocks(self, positions: Tensor, metadata: Sequence[Any], tail: TailStep | None = None) -> Tensor:
        """Return the residual stream [T, H] at the exit of the last block, with a tail [K, H]. The workspace must hold the
        stream at the entry of the first block.
        """
        views = self._views(positions.shape[0])
        steps = iter(metadata)
        self._begin_blocks(views)
        blocks = zip(self.spec.blocks, self.weights.blocks, self._halves, strict=True)
        for index, (spec, block, halves) in enumerate(blocks):
            number = self.spec.first_block + index
            if tail is not None and index == tail.first:
                tail.take(views, (self.layer_inputs, self.streams))
                views, positions, steps = self._views(len(tail.rows)), tail.positions, iter(tail.metadata)
            if self.ranges is not None:
                self.ranges.begin(number)
            if self.fetch is not None:
                self.fetch.before(number)
            if tail is not None and not len(positions):
                pass  # no result of this step is read; weights in host memory are still fetched in turn
            elif spec.aside:
                put_aside(self.kernels, block, views, positions, next(steps))
            else:
                self._block(index, spec, block, halves, views, positions, steps)
            if self.fetch is not None:
                self.fetch.after(number)
        self._end_blocks(views, positions)
        return views.residual

    def _begin_blocks(self, views: StepViews) -> None:
        """Do what comes before the first block."""
        if self.streams is not None:
            self.streams.begin(views)
        if self._keeps_entry:
            self.kernels.take_rows(views.residual, views.every_row, views.entry)
        if self.fetch is not None:
            self.fetch.begin()

    def _end_blocks(self, views: StepViews, positions: Tensor) -> None:
        """Do what comes after the last block."""
        if self.streams is not None and len(positions):
            self.streams.finish(views)
        if self.ranges is not None:
            self.ranges.end()
        if self._taps is not None:
            self._taps.after_blocks(views.residual)

    def join(self, communicator: Communicator, vocab_size: int) -> None:
        """Make this the part of one rank, which gathers logits. vocab_size: tokens of the whole vocabulary."""
        if self.embedding is not None:
            self.embedding.whole = vocab_size
        if self.head is not None:
            self.head.join(communicator, vocab_size)

    def set_segments(self, segments: Tensor | None) -> None:
        """Set the segment of each token of the next steps, int64 [T]; None: all tokens are in the first segment."""
        assert self.embedding is not None, "this part of the model has no embedding"
        self.embedding.set_segments(segments)

    def set_input_embeddings(self, rows: Tensor | None, values: Tensor | None) -> None:
        """Set embeddings, float32 [R, H], that replace those of the tokens in `rows` (int64 [R]) in the next steps;
        None: no replacement.
        """
        assert self.embedding is not None, "this part of the model has no embedding"
        self.embedding.given = None if rows is None or values is None else (rows, values)

    def set_added(self, rows: Tensor | None, values: Tensor | None) -> None:
        """Set float32 [R, levels, H], which the first `levels` blocks add to their results in `rows` (int64 [R]) in the next
        steps; None: nothing.
        """
        self._added = None if rows is None or values is None else (rows, values)

    def logits(self, rows: Tensor) -> Tensor:
        """Return float32 logits [R, V] of the rows `rows` (int64 [R], R at most `max_logits`) of the latest residual
        stream.

        V: the tokens whose rows of the head are held, from `spec.vocab_start` on.
        """
        assert self.head is not None, "this part of the model has no head"
        return self.head(rows)

    def hidden(self, rows: Tensor) -> Tensor:
        """Return the last hidden state [R, H] of rows (int64 [R], at most `max_logits`), after the final norm. Valid
        until the next call.
        """
        assert self.head is not None, "this part of the model has no head"
        return self.head.hidden(rows)

    def logits_view(self, count: int) -> Tensor:
        """Return the buffer that `logits` writes its result to, [count, V]: a view of the workspace, valid until the
        next call.
        """
        assert self.head is not None, "this part of the model has no head"
        return self.head.view(count)

    @property
    def capturable(self) -> bool:
        """Whether a runtime can record every kernel that `forward` and `logits` call. For attention see `capture`."""
        parts = [part for part in (self.embedding, *self.mixers, self.head) if part is not None]
        mlps = [block.mlp for block in self.weights.blocks if block.mlp is not None]
        return (
            self.kernels.capturable
            and self.layer_inputs is None
            and (self._reduce is None or is_recordable(self._reduce))
            and needs(self.spec) <= self.kernels.recorded
            and all(part.is_plain for part in parts)
            and all(mlp.capturable for mlp in mlps)
            and all(is_recordable(linear) for linear in self._linears())
        )

    def _linears(self) -> Iterator[LinearKernel | HeadsKernel]:
        """Yield the kernels of all products outside of MLPs."""
        for part in (self.embedding, self.head, self.draft_entry, *self.mixers):
            if part is not None:
                yield from part.linears
        for block in self.weights.blocks:
            if "layer_aside" in block.linears:
                yield from block.linears["layer_aside"].kernels

    @property
    def capture(self) -> str:
        """Return for which steps a runtime can record attention: `never`, `uniform` or `any`. The weakest backend
        decides.
        """
        levels = {recordable_steps(mixer.backend) for mixer in self.mixers}
        if levels == {"any"}:
            return "any"
        return "uniform" if levels <= {"any", "uniform"} else "never"

    def _block(
        self,
        index: int,
        spec: BlockSpec,
        block: BlockWeights,
        halves: Halves,
        views: StepViews,
        positions: Tensor,
        steps: Iterator[Any],
    ) -> None:
        """Run one block. index: in this part of the model. steps: yields the metadata of its mixers."""
        self._enter(spec, block, views)
        if block.mixers:
            self._mix(spec, block, halves.mixer, views, positions, steps)
        if block.mlp is not None:
            self._mlp(block.mlp, halves.mlp, views)
        if self.layer_inputs is not None:
            self._add_inputs(self.layer_inputs, index, block, views)
        self._scale(views.residual, block.scalar)
        if index in self._late:
            self.kernels.add(views.late, views.residual)
        if self._added is not None and index < self._added[1].shape[1]:
            rows, values = self._added
            add_rows(views, rows, values[:, index], self._halves[index + 1].mixer)
        if self._taps is not None:
            self._taps.after_block(index, views.residual)

    def _enter(self, spec: BlockSpec, block: BlockWeights, views: StepViews) -> None:
        """Do what comes before the mixer, which may add its branch to the residual stream directly."""
        if spec.keeps_as or spec.blends:
            keep_and_blend(self.kernels, spec, views)
        if self.spec.order == "parallel_two":
            block.norms["pre_mlp"](views.residual, views.normed_mlp)
        if self.streams is not None and block.streams is not None:
            self.streams.predict(block.streams, views)

    def _mix(
        self,
        spec: BlockSpec,
        block: BlockWeights,
        half: Half,
        views: StepViews,
        positions: Tensor,
        steps: Iterator[Any],
    ) -> None:
        """Run the mixers of a block, its first half. steps: metadata of the remaining mixers, from which this block
        takes its own.
        """
        x = views.pair if spec.wide else self._input(half, views)
        if spec.takes_aside and half.norm is not None:
            self.kernels.add(views.residual, views.aside)
            half.norm(views.aside, views.normed)
        out = views.residual if half.direct else views.branch
        first = block.mixers[0]
        first(x, positions, next(steps), out, accumulate=half.direct)
        if not half.direct:
            self._scale(views.branch, spec.mixer_scale)
        for second in block.mixers[1:]:
            if half.direct:
                second(x, positions, next(steps), out, accumulate=True)
                continue
            second(x, positions, next(steps), views.beside, accumulate=False)
            self._scale(views.beside, spec.beside_scale)
            self.kernels.add(views.beside, views.branch)
        self._join(half, views)
        if self.streams is not None and block.streams is not None:
            self.streams.join(block.streams, views)

    def _add_inputs(self, inputs: LayerInputsStep, index: int, block: BlockWeights, views: StepViews) -> None:
        """Add a block's own embeddings to the residual stream, or to all streams that no block computes."""
        x = views.residual
        if self.streams is not None and block.streams is not None:
            self.streams.correct(block.streams, views)
            x = views.normed
        inputs(self.spec.first_block + index, block.linears, block.norms["post_layer"], x, views.branch)
        if self.streams is None:
            self.kernels.add(views.branch, views.residual)
        else:
            self.streams.add(views.branch)

    def _mlp(self, mlp: BlockMLP | ExpertsBeside, half: Half, views: StepViews) -> None:
        """Run the MLP, the second half of a block."""
        # In parallel blocks the MLP reads the same normalized input as the mixer.
        if self.spec.order == "parallel":
            x = views.normed
        elif self.spec.order == "parallel_two":
            x = views.normed_mlp
        else:
            x = self._input(half, views)
        mlp(x, views, views.residual if half.direct else views.branch, accumulate=half.direct)
        self._join(half, views)

    def _input(self, half: Half, views: StepViews) -> Tensor:
        """Return the input of a half of a block: the residual stream, normalized where a norm precedes the half."""
        if half.norm is None:
            return views.residual
        if not half.is_ready:
            half.norm(views.residual, views.normed)
        return views.normed

    def _join(self, half: Half, views: StepViews) -> None:
        """Add the branch to the residual stream, unless the half has added it directly. The branch is first normalized
        where the family does so.
        """
        if half.direct:
            return
        if half.joint is not None:
            half.joint(views.branch, views.residual, views.normed)
            return
        norm = half.behind
        on_stream = self.spec.order == "residual_post"
        if norm is not None and not on_stream:
            norm(views.branch, views.branch)
        self._scale(views.branch, self.spec.residual_scale * half.scale)
        self._scale(views.residual, half.keeps)
        self.kernels.add(views.branch, views.residual)
        if norm is not None and on_stream:
            norm(views.residual, views.residual)

    def _scale(self, x: Tensor, factor: float) -> None:
        if factor != 1.0:
            self.kernels.scale(x, factor)


def _made(held: Held | None, make: Callable[[Held], Made]) -> Made | None:
    """Make a component from its weights; None where this part of the model holds none."""
    return None if held is None else make(held)

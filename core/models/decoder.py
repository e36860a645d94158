"""The generic decoder: one class for every row of the family table.

Owns: the order of operations of a decoder-only transformer. Never does: read checkpoints, choose kernels, sample.
Called by: the model runner, once a step, on one flat token array.

Every operation writes to a buffer of the step workspace, so the sequence of kernel calls for a step depends on nothing
but the number of tokens and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.api.decoder_spec import DecoderSpec
from core.api.specs import RopeSpec
from core.layers.kernels import KernelSet
from core.layers.rotary import tables
from core.layers.workspace import Workspace
from core.models.mixers import Mixer
from core.models.mlp import ExpertsMLP, GatedMLP
from core.models.step_views import StepViews
from core.plugin.contracts import HeadsKernel, LinearKernel, is_recordable, recordable_steps


@dataclass(slots=True)
class BlockWeights:
    """The prepared weights of one block.

    mixer: its first half.
    mlp: its second half.
    norms: by role, see `DecoderSpec.block_norms`.
    """

    mixer: Mixer
    mlp: GatedMLP | ExpertsMLP
    norms: dict[str, Tensor]


@dataclass(slots=True)
class DecoderWeights:
    """The prepared weights of a decoder; a tied head is the embedding's kernel.

    embedding: None where this part of the model does not hold it.
    head: None where this part of the model does not hold it.
    norm: in front of the head; None without a head.
    blocks: the ones that this part of the model holds, in order.
    """

    embedding: LinearKernel | None
    head: LinearKernel | None
    norm: Tensor | None
    blocks: list[BlockWeights]

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices, a tied one counted once."""
        total = sum(block.mixer.nbytes + block.mlp.nbytes for block in self.blocks)
        if self.embedding is not None:
            total += self.embedding.nbytes
        tied = self.head is self.embedding
        if self.head is not None and not tied:
            total += self.head.nbytes
        return total


def rotary_tables(spec: DecoderSpec, length: int, device: torch.device) -> list[tuple[Tensor, Tensor] | None]:
    """(cos, sin) of `length` positions for each block, None for layers with a state; equal ones are shared."""
    shared: dict[tuple[RopeSpec, int], tuple[Tensor, Tensor]] = {}
    found: list[tuple[Tensor, Tensor] | None] = []
    for block in spec.blocks:
        rope = block.rope
        if rope is None:
            found.append(None)
            continue
        key = rope, block.rotary_size
        if key not in shared:
            shared[key] = tables(rope, block.rotary_size, length, device)
        found.append(shared[key])
    return found


class Decoder:
    """A decoder ready to run, once a backend is bound to each of its `mixers`.

    tables: (cos, sin) for each block.
    dtype: of the tensors between layers.
    max_tokens: most tokens of one step.
    max_logits: most logit rows of one step.
    reduce: adds up, in place, a tensor [T, H] of which every rank has computed a part; None: this is the whole model, and
        branches are added to the residual stream as they are computed.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        kernels: KernelSet,
        tables: list[tuple[Tensor, Tensor] | None],
        workspace: Workspace,
        dtype: torch.dtype,
        max_tokens: int,
        max_logits: int,
        reduce: Callable[[Tensor], None] | None = None,
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.kernels = kernels
        self.workspace = workspace
        self._reduce = reduce
        self.max_logits = max_logits
        self.mixers: list[Mixer] = [block.mixer for block in weights.blocks]
        for name, width in spec.buffers().items():
            workspace.reserve(name, max_tokens, width, dtype)
        _, top_k = spec.router_widths()
        workspace.reserve("expert_ids", max_tokens, top_k, torch.int64)
        workspace.reserve("expert_weights", max_tokens, top_k, torch.float32)
        workspace.reserve("last", max_logits, spec.hidden_size, dtype)
        workspace.reserve("logits", max_logits, spec.vocab_size, torch.float32)
        self._views = workspace.cached("step", lambda rows: StepViews(workspace, rows, spec))
        for mixer, cos_sin in zip(self.mixers, tables, strict=True):
            mixer.attach(workspace, cos_sin)

    def forward(self, token_ids: Tensor, positions: Tensor, metadata: Sequence[Any]) -> Tensor:
        """Run all blocks on token_ids and positions (int64 [T]); metadata: attention metadata of each block.

        A part of the model without the embedding goes on with what is in the residual stream.

        Returns the residual stream [T, H], a view of the workspace that holds until the next step.
        Nothing is called but kernels and attention backends, on buffers that depend on T alone.
        """
        if self.weights.embedding is not None and self.spec.holds_embedding:
            self.embed(token_ids)
        return self.run_blocks(positions, metadata)

    def embed(self, token_ids: Tensor) -> Tensor:
        """The residual stream [T, H] as it enters the first block, from token_ids int64 [T]."""
        assert self.weights.embedding is not None, "this part of the model has no embedding"
        residual = self._views(token_ids.shape[0]).residual
        self._embed(self.weights.embedding, token_ids, residual)
        return residual

    def run_blocks(self, positions: Tensor, metadata: Sequence[Any]) -> Tensor:
        """The residual stream [T, H] as it leaves the last block; the workspace holds it as it entered the first."""
        views = self._views(positions.shape[0])
        for block, step in zip(self.weights.blocks, metadata, strict=True):
            self._mix(block, views, positions, step)
            self._mlp(block, views)
        return views.residual

    def logits(self, rows: Tensor) -> Tensor:
        """float32 logits [R, V] of the rows `rows` (int64 [R], R at most `max_logits`) of the latest residual stream.

        V: the tokens whose rows of the head are held, from `spec.vocab_start` on.
        """
        head = self.weights.head
        norm = self.weights.norm
        assert head is not None and norm is not None, "this part of the model has no head"
        count = rows.shape[0]
        last = self.workspace.view("last", count)
        out = self.logits_view(count)
        self.kernels.take_rows(self.workspace.buffer("residual"), rows, last)
        self.kernels.rms_norm(last, norm, self.spec.eps, last)
        head(last, out)
        if self.spec.logit_cap is not None:
            self.kernels.soft_cap(out, self.spec.logit_cap)
        return out

    def logits_view(self, count: int) -> Tensor:
        """Where `logits` puts its result, [count, V]: a view of the workspace, valid until the next call."""
        return self.workspace.view("logits", count)

    @property
    def capturable(self) -> bool:
        """Whether a runtime can record every kernel that `forward` and `logits` call; for attention see `capture`."""
        if self._reduce is not None or not self.kernels.capturable:
            return False
        ends = (self.weights.embedding, self.weights.head)
        linears: list[LinearKernel | HeadsKernel] = [kernel for kernel in ends if kernel is not None]
        for block in self.weights.blocks:
            if not block.mlp.capturable:
                return False
            linears += block.mixer.linears
        return all(is_recordable(linear) for linear in linears)

    @property
    def capture(self) -> str:
        """Of which steps a runtime can record attention, by the weakest backend: `never`, `uniform` or `any`."""
        levels = {recordable_steps(mixer.backend) for mixer in self.mixers}
        if levels == {"any"}:
            return "any"
        return "uniform" if levels <= {"any", "uniform"} else "never"

    def _embed(self, embedding: LinearKernel, token_ids: Tensor, out: Tensor) -> None:
        """out[T, H] = the tokens' rows. A rank gives zeros for rows that other ranks hold, so the sum has all of them."""
        if self._reduce is None:
            embedding.rows(token_ids, out)
        else:
            local = token_ids - self.spec.vocab_start
            foreign = (local < 0) | (local >= self.spec.vocab_size)
            embedding.rows(local.masked_fill(foreign, 0), out)
            out.masked_fill_(foreign.unsqueeze(1), 0.0)
            self._reduce(out)
        if self.spec.embed_scale != 1.0:
            self.kernels.scale(out, self.spec.embed_scale)

    def _mix(self, block: BlockWeights, views: StepViews, positions: Tensor, metadata: Any) -> None:
        self.kernels.rms_norm(views.residual, block.norms["input"], self.spec.eps, views.normed)
        norm = block.norms.get("post_attention")
        direct = norm is None and self._reduce is None
        out = views.residual if direct else views.branch
        block.mixer(views.normed, positions, metadata, out, accumulate=direct)
        if not direct:
            self._to_residual(views, norm)

    def _mlp(self, block: BlockWeights, views: StepViews) -> None:
        self.kernels.rms_norm(views.residual, block.norms["pre_mlp"], self.spec.eps, views.normed)
        norm = block.norms.get("post_mlp")
        direct = norm is None and self._reduce is None
        block.mlp(views, views.residual if direct else views.branch, accumulate=direct)
        if not direct:
            self._to_residual(views, norm)

    def _to_residual(self, views: StepViews, norm: Tensor | None) -> None:
        """residual += branch: summed over ranks, then through a norm when the family has one behind each branch."""
        if self._reduce is not None:
            self._reduce(views.branch)
        if norm is not None:
            self.kernels.rms_norm(views.branch, norm, self.spec.eps, views.branch)
        self.kernels.add(views.branch, views.residual)

"""The generic decoder: one class for every row of the family table.

Owns: the order of operations of a decoder-only transformer. Never does: read checkpoints, choose kernels, sample.
Called by: the model runner, once a step, on one flat token array.

Every operation writes to a buffer of the step workspace, so the sequence of kernel calls for a step depends on nothing
but the number of tokens and rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.api.specs import AttentionSpec
from core.layers.kernels import KernelSet
from core.layers.linear import Linear
from core.layers.workspace import Workspace
from core.models.mlp import ExpertsMLP, GatedMLP
from core.models.spec import DecoderSpec
from core.plugin.contracts import AttentionBackend, LinearKernel

MAX_CACHED_VIEWS = 512
"""Numbers of tokens whose views are kept."""


@dataclass(slots=True)
class BlockWeights:
    """The prepared weights of one block. norms: by role, see `DecoderSpec.block_norms`."""

    qkv: Linear
    o: Linear
    mlp: GatedMLP | ExpertsMLP
    norms: dict[str, Tensor]


@dataclass(slots=True)
class DecoderWeights:
    """The prepared weights of a decoder; a tied head is the embedding's kernel."""

    embedding: LinearKernel
    head: LinearKernel
    norm: Tensor
    blocks: list[BlockWeights]

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices, a tied one counted once."""
        total = self.embedding.nbytes + (0 if self.head is self.embedding else self.head.nbytes)
        return total + sum(b.qkv.nbytes + b.o.nbytes + b.mlp.nbytes for b in self.blocks)


class AttentionLayer:
    """A block's attention bound to its backend and its part of the KV cache."""

    __slots__ = ("backend", "handle", "kind")

    def __init__(self, backend: AttentionBackend, handle: Any, kind: str) -> None:
        self.backend = backend
        self.handle = handle
        self.kind = kind


class StepViews:
    """The workspace's buffers for one number of tokens, sliced once: a step then makes no tensor of its own."""

    __slots__ = (
        "attention",
        "branch",
        "expert_ids",
        "expert_weights",
        "gate_up",
        "heads_out",
        "k",
        "mlp",
        "normed",
        "q",
        "qkv",
        "residual",
        "router",
        "v",
    )

    def __init__(self, workspace: Workspace, num_tokens: int, attention: AttentionSpec) -> None:
        self.residual = workspace.view("residual", num_tokens)
        self.normed = workspace.view("normed", num_tokens)
        self.branch = workspace.view("branch", num_tokens)
        self.qkv = workspace.view("qkv", num_tokens)
        self.attention = workspace.view("attention", num_tokens)
        self.gate_up = workspace.view("gate_up", num_tokens)
        self.mlp = workspace.view("mlp", num_tokens)
        self.router = workspace.view("router", num_tokens)
        self.expert_ids = workspace.view("expert_ids", num_tokens)
        self.expert_weights = workspace.view("expert_weights", num_tokens)
        heads = self.qkv.view(num_tokens, -1, attention.head_size)
        first_v = attention.num_heads + attention.num_kv_heads
        self.q = heads[:, : attention.num_heads]
        self.k = heads[:, attention.num_heads : first_v]
        self.v = heads[:, first_v:]
        self.heads_out = self.attention.view(num_tokens, attention.num_heads, attention.head_size_v)


class Decoder:
    """A decoder ready to run.

    tables: (cos, sin) for each block. attention: one bound layer for each block.
    max_tokens, max_logits: most tokens and most logit rows of one step.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        kernels: KernelSet,
        tables: list[tuple[Tensor, Tensor]],
        workspace: Workspace,
        dtype: torch.dtype,
        max_tokens: int,
        max_logits: int,
    ) -> None:
        self.spec, self.weights, self.kernels, self.tables = spec, weights, kernels, tables
        self.workspace = workspace
        self.attention: list[AttentionLayer] = []
        self._views: dict[int, StepViews] = {}
        self.max_logits = max_logits
        a = spec.blocks[0].attention
        self.q_size, self.kv_size = a.num_heads * a.head_size, a.num_kv_heads * a.head_size
        sizes = {
            "residual": spec.hidden_size,
            "normed": spec.hidden_size,
            "branch": spec.hidden_size,
            "qkv": self.q_size + 2 * self.kv_size,
            "attention": a.num_heads * a.head_size_v,
            "gate_up": 2 * spec.intermediate_size,
            "mlp": spec.intermediate_size,
            "router": spec.router_widths()[0],
        }
        for name, width in sizes.items():
            workspace.reserve(name, max_tokens, width, dtype)
        workspace.reserve("expert_ids", max_tokens, spec.router_widths()[1], torch.int64)
        workspace.reserve("expert_weights", max_tokens, spec.router_widths()[1], torch.float32)
        workspace.reserve("last", max_logits, spec.hidden_size, dtype)
        workspace.reserve("logits", max_logits, spec.vocab_size, torch.float32 if dtype != torch.float32 else dtype)

    def forward(self, token_ids: Tensor, positions: Tensor, metadata: Sequence[Any]) -> Tensor:
        """Run all blocks on token_ids and positions (int64 [T]); metadata: attention metadata of each block.

        Returns the residual stream [T, H], a view of the workspace that holds until the next step.
        Nothing is called but kernels and attention layers, on buffers that depend on T alone.
        """
        views = self._step_views(token_ids.shape[0])
        self.weights.embedding.rows(token_ids, views.residual)
        if self.spec.embed_scale != 1.0:
            self.kernels.scale(views.residual, self.spec.embed_scale)
        for block, layer, cos_sin, step in zip(self.weights.blocks, self.attention, self.tables, metadata, strict=True):
            self._attention(block, layer, cos_sin, views, positions, step)
            self._mlp(block, views)
        return views.residual

    def logits(self, rows: Tensor) -> Tensor:
        """float32 logits [R, V] of the rows `rows` (int64 [R], R at most `max_logits`) of the latest residual stream."""
        last, out = self.workspace.view("last", rows.shape[0]), self.logits_view(rows.shape[0])
        self.kernels.take_rows(self.workspace.buffer("residual"), rows, last)
        self.kernels.rms_norm(last, self.weights.norm, self.spec.eps, last)
        self.weights.head(last, out)
        if self.spec.logit_cap is not None:
            self.kernels.soft_cap(out, self.spec.logit_cap)
        return out

    def logits_view(self, count: int) -> Tensor:
        """Where `logits` puts its result, [count, V]: a view of the workspace, valid until the next call."""
        return self.workspace.view("logits", count)

    @property
    def capturable(self) -> bool:
        """Whether a runtime can record everything that `forward` and `logits` call."""
        linears: list[LinearKernel] = [self.weights.embedding, self.weights.head]
        for block in self.weights.blocks:
            linears += [*block.qkv.kernels, *block.o.kernels, *block.mlp.linears]
        kernels = self.kernels.capturable and all(block.mlp.linears for block in self.weights.blocks)
        kernels = kernels and all(getattr(linear, "capturable", False) for linear in linears)
        return kernels and all(getattr(layer.backend, "capture", "never") == "any" for layer in self.attention)

    def _step_views(self, num_tokens: int) -> StepViews:
        views = self._views.get(num_tokens)
        if views is None:
            if len(self._views) >= MAX_CACHED_VIEWS:
                self._views.clear()
            views = self._views[num_tokens] = StepViews(self.workspace, num_tokens, self.spec.blocks[0].attention)
        return views

    def _attention(
        self,
        block: BlockWeights,
        layer: AttentionLayer,
        cos_sin: tuple[Tensor, Tensor],
        views: StepViews,
        positions: Tensor,
        metadata: Any,
    ) -> None:
        spec, kernels, norms = self.spec, self.kernels, block.norms
        kernels.rms_norm(views.residual, norms["input"], spec.eps, views.normed)
        block.qkv(views.normed, views.qkv)
        if spec.qk_norm:
            kernels.rms_norm_heads(views.q, norms["q"], spec.eps)
            kernels.rms_norm_heads(views.k, norms["k"], spec.eps)
        kernels.rotary(views.q, views.k, *cos_sin, positions)
        layer.backend.write(layer.handle, views.k, views.v, metadata)
        layer.backend.forward(layer.handle, views.q, metadata, views.heads_out)
        norm = norms.get("post_attention")
        block.o(views.attention, views.residual if norm is None else views.branch, accumulate=norm is None)
        self._to_residual(views, norm)

    def _mlp(self, block: BlockWeights, views: StepViews) -> None:
        self.kernels.rms_norm(views.residual, block.norms["pre_mlp"], self.spec.eps, views.normed)
        norm = block.norms.get("post_mlp")
        block.mlp(views, views.residual if norm is None else views.branch, accumulate=norm is None)
        self._to_residual(views, norm)

    def _to_residual(self, views: StepViews, norm: Tensor | None) -> None:
        """residual += branch through a norm, when the family has one behind each branch; else it is there already."""
        if norm is not None:
            self.kernels.rms_norm(views.branch, norm, self.spec.eps, views.branch)
            self.kernels.add(views.branch, views.residual)

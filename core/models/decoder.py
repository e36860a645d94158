"""The generic decoder: one class for every row of the family table.

Owns: the order of operations of a decoder-only transformer. Never does: read checkpoints, choose kernels, sample.
Called by: the model runner, once a step, on one flat token array.

Every operation writes to a buffer of the step workspace, so the sequence of kernel calls for a step depends on nothing
but the number of tokens and rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.layers.kernels import KernelSet
from core.layers.linear import Linear
from core.layers.workspace import Workspace
from core.models.spec import DecoderSpec
from core.plugin.contracts import AttentionBackend, LinearKernel


@dataclass(slots=True)
class BlockWeights:
    """The prepared weights of one block. norms: by role, see `DecoderSpec.block_norms`."""

    qkv: Linear
    o: Linear
    gate_up: Linear
    down: Linear
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
        return total + sum(b.qkv.nbytes + b.o.nbytes + b.gate_up.nbytes + b.down.nbytes for b in self.blocks)


class AttentionLayer:
    """A block's attention bound to its backend and its part of the KV cache."""

    __slots__ = ("backend", "handle", "kind")

    def __init__(self, backend: AttentionBackend, handle: Any, kind: str) -> None:
        self.backend = backend
        self.handle = handle
        self.kind = kind


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
        }
        for name, width in sizes.items():
            workspace.reserve(name, max_tokens, width, dtype)
        workspace.reserve("last", max_logits, spec.hidden_size, dtype)
        workspace.reserve("logits", max_logits, spec.vocab_size, torch.float32 if dtype != torch.float32 else dtype)

    def forward(self, token_ids: Tensor, positions: Tensor, metadata: dict[str, Any]) -> Tensor:
        """Run all blocks on token_ids and positions (int64 [T]); metadata: attention metadata by layer kind.

        Returns the residual stream [T, H], a view of the workspace that holds until the next step.
        """
        num_tokens = token_ids.shape[0]
        residual = self.workspace.view("residual", num_tokens)
        self.weights.embedding.rows(token_ids, residual)
        if self.spec.embed_scale != 1.0:
            self.kernels.scale(residual, self.spec.embed_scale)
        for index, block in enumerate(self.weights.blocks):
            self._attention(index, block, residual, positions, metadata)
            self._mlp(block, residual)
        return residual

    def logits(self, residual: Tensor, rows: Tensor) -> Tensor:
        """float32 logits [R, V] of the residual rows `rows` (int64 [R], R at most `max_logits`), a workspace view."""
        count = rows.shape[0]
        last, out = self.workspace.view("last", count), self.workspace.view("logits", count)
        torch.index_select(residual, 0, rows, out=last)
        self.kernels.rms_norm(last, self.weights.norm, self.spec.eps, last)
        self.weights.head(last, out)
        if self.spec.logit_cap is not None:
            out.div_(self.spec.logit_cap).tanh_().mul_(self.spec.logit_cap)
        return out

    def _attention(
        self, index: int, block: BlockWeights, residual: Tensor, positions: Tensor, metadata: dict[str, Any]
    ) -> None:
        spec, kernels, view = self.spec, self.kernels, self.workspace.view
        layer, a = self.attention[index], self.spec.blocks[index].attention
        num_tokens = residual.shape[0]
        normed, qkv, out = view("normed", num_tokens), view("qkv", num_tokens), view("attention", num_tokens)
        kernels.rms_norm(residual, block.norms["input"], spec.eps, normed)
        block.qkv(normed, qkv)
        heads = qkv.view(num_tokens, -1, a.head_size)
        q = heads[:, : a.num_heads]
        k = heads[:, a.num_heads : a.num_heads + a.num_kv_heads]
        v = heads[:, a.num_heads + a.num_kv_heads :]
        if spec.qk_norm:
            kernels.rms_norm_heads(q, block.norms["q"], spec.eps)
            kernels.rms_norm_heads(k, block.norms["k"], spec.eps)
        cos, sin = self.tables[index]
        kernels.rotary(q, k, cos, sin, positions)
        step = metadata[layer.kind]
        layer.backend.write(layer.handle, k, v, step)
        layer.backend.forward(layer.handle, q, step, out.view(num_tokens, a.num_heads, a.head_size_v))
        self._to_residual(block.o, out, residual, block.norms.get("post_attention"))

    def _mlp(self, block: BlockWeights, residual: Tensor) -> None:
        view, num_tokens = self.workspace.view, residual.shape[0]
        normed, gate_up, mlp = view("normed", num_tokens), view("gate_up", num_tokens), view("mlp", num_tokens)
        self.kernels.rms_norm(residual, block.norms["pre_mlp"], self.spec.eps, normed)
        block.gate_up(normed, gate_up)
        self.kernels.gated(gate_up, self.spec.activation, mlp)
        self._to_residual(block.down, mlp, residual, block.norms.get("post_mlp"))

    def _to_residual(self, linear: Linear, x: Tensor, residual: Tensor, norm: Tensor | None) -> None:
        """residual += linear(x), through a norm when the family has one behind each branch."""
        if norm is None:
            linear(x, residual, accumulate=True)
            return
        branch = self.workspace.view("branch", residual.shape[0])
        linear(x, branch)
        self.kernels.rms_norm(branch, norm, self.spec.eps, branch)
        self.kernels.add(branch, residual)

"""Attention over keys and values: project, norm, rotate, store, attend, project.

Owns: the order of these operations and the views that they work on. Never does: know how a backend stores anything.
Called by: the decoder, once a block and step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from core.api.config import CacheConfig
from core.api.specs import AttentionSpec
from core_runtime.contracts import AttentionParams, HeadTurn, LinearKernel, TurnsHeads
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.workspace import Workspace, by_heads
from core_runtime.models.mixers.cached import KeyedMixer
from core_runtime.models.mixers.temperature import temperatures
from core_runtime.models.norm import Norm
from core_runtime.specs.block_spec import HeadsSpec

LOW_RANK = ("low", "low_q", "low_k", "low_v")
"""Roles of the small matrices of a block whose projections are shared; see `HeadsSpec.low_rank`."""
OPENINGS = {"sigmoid": torch.sigmoid, "softplus": softplus}
"""Functions that gates of the output apply; see `HeadsSpec.opening`."""


class AttentionViews:
    """The buffers of one step.

    qkv: [T, Hq * D + gate + Hkv * (D + Dv)], queries, the gate of the output if there is one, keys and values; no keys and
        values in a block that borrows them, whose k and v have no heads.
    q: [T, Hq, D], a part of qkv, or made from the latent.
    k: [T, Hkv, D], a part of qkv.
    v: [T, Hkv, Dv], a part of qkv.
    gate: [T, Hq * Dv or Hq], a part of qkv; None without one.
    q_all: [T, Hq * D], all queries of a token.
    k_all: [T, Hkv * D], all keys of a token. v_all: [T, Hkv * Dv], all its values.
    low: [T, 3 * rank], products of the first small matrices of queries, keys and values, where the block has some.
    latent: [T, rank], the latent of queries, a part of qkv; None: there is none, and q is a part of qkv.
    attention: [T, Hq * Dv], the output of the heads.
    heads_out: [T, Hq, Dv], the same by heads.
    """

    __slots__ = (
        "attention",
        "gate",
        "heads_out",
        "k",
        "k_all",
        "latent",
        "low",
        "q",
        "q_all",
        "qkv",
        "v",
        "v_all",
    )

    def __init__(self, workspace: Workspace, num_tokens: int, spec: AttentionSpec, heads: HeadsSpec) -> None:
        queries = spec.num_heads * spec.head_size
        kv_heads = 0 if heads.borrows else spec.num_kv_heads
        keys = kv_heads * spec.head_size
        values = kv_heads * spec.head_size_v
        width_out = spec.num_heads * spec.head_size_v
        gate_size = {"": 0, "own_heads": 1}.get(heads.gate, spec.head_size_v)
        # A latent of queries lies where the queries would; they have a buffer of their own then.
        latent = heads.query_rank
        first_k = latent or queries + spec.num_heads * gate_size
        first_v = first_k + keys
        self.qkv = workspace.view("qkv", num_tokens, first_v + values)
        self.attention = workspace.view("attention", num_tokens, width_out)
        self.latent: Tensor | None = self.qkv[:, :latent] if latent else None
        self.q_all = workspace.view("latent_q", num_tokens, queries) if latent else self.qkv[:, :queries]
        self.k_all = self.qkv[:, first_k:first_v]
        self.q = by_heads(self.q_all, spec.num_heads)
        self.k = by_heads(self.k_all, kv_heads) if kv_heads else self.q[:, :0]
        self.v_all = self.qkv[:, first_v:]
        self.v = by_heads(self.v_all, kv_heads) if kv_heads else self.q[:, :0]
        self.low = workspace.view("heads_low_rank", num_tokens, 3 * heads.low_rank) if heads.low_rank else self.qkv
        self.gate: Tensor | None = None
        if gate_size:
            self.gate = self.qkv[:, queries:first_k]
        self.heads_out = by_heads(self.attention, spec.num_heads)


class AttentionMixer(KeyedMixer):
    """The attention of one block.

    heads: operations on queries, keys and values around the backend.
    linears: `qkv` and `o`.
    norms: `q`, `k`, `v` and `heads_out` where the family has them.
    sinks: float32 [Hq] or None.

    `attach` and `bind_cache` must be called before the first step.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        heads: HeadsSpec,
        kernels: KernelSet,
        linears: Mapping[str, Linear],
        norms: Mapping[str, Norm],
        sinks: Tensor | None = None,
    ) -> None:
        super().__init__(spec)
        self.spec = spec
        self.heads = heads
        self.kernels = kernels
        self.qkv = linears["qkv"]
        self.o = linears["o"]
        self.q_norm = norms.get("q")
        self.k_norm = norms.get("k")
        self.v_norm = norms.get("v")
        self.out_norm = norms.get("heads_out")
        self.wq = linears.get("wq")
        self.latent_norm = norms.get("q_latent")
        self._low = [linears[role] for role in LOW_RANK if role in linears]
        self.nbytes = self.qkv.nbytes + self.o.nbytes + (0 if self.wq is None else self.wq.nbytes)
        self.nbytes += sum(linear.nbytes for linear in self._low)
        self._sinks = sinks
        self.borrows = bool(heads.borrows)
        self._clip = heads.clip
        self._temperature = heads.temperature
        self._opening = OPENINGS[heads.opening]
        self._norms_late = heads.norm is not None and heads.norm.after_rope
        self._norms_all = heads.norm is not None and heads.norm.over == "all"
        self._tables: tuple[Tensor, Tensor] | None = None
        self._turn: HeadTurn | None = None

    @property
    def linears(self) -> list[LinearKernel]:
        """Return all kernels that a runtime must be able to record."""
        low = [kernel for linear in self._low for kernel in linear.kernels]
        return [*self.qkv.kernels, *([] if self.wq is None else self.wq.kernels), *low, *self.o.kernels]

    @property
    def is_plain(self) -> bool:
        """Whether the mixer consists of kernels and the backend alone."""
        return self.heads.is_plain

    def attach(self, workspace: Workspace, tables: tuple[Tensor, Tensor] | None) -> None:
        """Bind the step's buffers and the (cos, sin) of the rotary embedding; None: no rotary embedding."""
        self._tables = tables
        key = self.spec, self.heads
        self.views = workspace.cached(key, lambda rows: AttentionViews(workspace, rows, self.spec, self.heads))

    def bind_cache(self, backend: Any, cache: CacheConfig, raw: Tensor, learned: AttentionParams | None) -> None:
        """Bind the backend and this layer's blocks, with sinks and slopes added to the layer's scales."""
        slopes = None
        if self.heads.slopes:
            slopes = torch.tensor(self.heads.slopes, dtype=torch.float32, device=raw.device)
        if self._sinks is not None or slopes is not None:
            scales = learned or AttentionParams()
            learned = AttentionParams(scales.k_scale, scales.v_scale, self._sinks, slopes)
        super().bind_cache(backend, cache, raw, learned)

    def bind(self, backend: Any, handle: Any) -> None:
        """Bind the backend, and configure it if it rotates heads itself."""
        super().bind(backend, handle)
        self._turn = self._turn_of(backend)

    def _turn_of(self, backend: Any) -> HeadTurn | None:
        """Return the operations that the backend applies to heads as it stores the keys; None: kernels apply them
        beforehand.
        """
        if self._tables is None or self._norms_late or self._clip is not None or not isinstance(backend, TurnsHeads):
            return None
        if self.borrows:  # a backend turns heads where it stores keys
            return None
        turn = HeadTurn(*self._tables)
        operations = ["rotary"]
        if self.q_norm is not None and self.k_norm is not None and not self._norms_all:
            # The backend's norm divides by the root of the mean square; it subtracts no mean.
            if self.q_norm.is_centred:
                return None
            operations.append("rms_norm_heads")
            turn = HeadTurn(*self._tables, self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        # A backend has the bits of one provider's kernels; with another provider, tokens would depend on the backend.
        if any(self.kernels.provider_of(op) != backend.turns_as for op in operations):
            return None
        return turn

    def __call__(self, x: Tensor, positions: Tensor, metadata: Any, out: Tensor, *, accumulate: bool) -> None:
        """Compute out[T, H] (+)= attention of x [T, H] at positions int64 [T]. metadata: the backend's metadata of this
        step.
        """
        views = self.views(x.shape[0])
        self._project(x, views)
        if self.v_norm is not None:
            self.v_norm.heads(views.v)
        if self._turn is None or self._changes_norms:
            self._turn_heads(views, positions)
            if not self.borrows:
                self.backend.write(self.handle, views.k, views.v, metadata)
        else:
            # A norm over all heads is not the backend's, which sees one head at a time.
            if self._norms_all:
                self._norm(views)
            self.backend.turn_and_write(self.handle, views.q, views.k, views.v, self._turn, positions, metadata)
        # Only now: a backend that turns heads has turned the queries in the call above.
        if self._temperature is not None:
            views.q.mul_(temperatures(self._temperature, positions).to(views.q.dtype))
        self.backend.forward(self.handle, views.q, metadata, views.heads_out)
        if views.gate is not None:
            self._open(views.gate, views)
        if self.out_norm is not None:
            self.out_norm(views.attention, views.attention)
        self.o(views.attention, out, accumulate=accumulate)

    @property
    def _changes_norms(self) -> bool:
        """Whether adapters of the step change a norm that the backend applies, with one weight for all rows. Kernels have its
        bits (see `_turn_of`).
        """
        norms = (self.q_norm, self.k_norm)
        return not self._norms_all and any(norm is not None and norm.is_adapted for norm in norms)

    def _project(self, x: Tensor, views: AttentionViews) -> None:
        """Compute queries, keys and values."""
        self.qkv(x, views.qkv)
        self._add_low_rank(x, views)
        if self.wq is not None:
            assert self.latent_norm is not None and views.latent is not None
            self.latent_norm(views.latent, views.latent)
            self.wq(views.latent, views.q_all)

    def _add_low_rank(self, x: Tensor, views: AttentionViews) -> None:
        """Add the products of small matrices to queries, keys and values."""
        if not self._low:
            return
        first, *others = self._low
        first(x, views.low)
        places = (views.q_all, views.k_all, views.v_all)
        for part, linear, place in zip(views.low.chunk(len(others), dim=1), others, places, strict=True):
            linear(part, place, accumulate=True)

    def _turn_heads(self, views: AttentionViews, positions: Tensor) -> None:
        """Apply norms, bounds and the rotary embedding to queries and keys, in place."""
        if not self._norms_late:
            self._norm(views)
        if self._clip is not None:
            # DBRX bounds queries, keys and values alike, OLMo too.
            views.qkv.clamp_(-self._clip, self._clip)
        if self._tables is not None:
            cos, sin = self._tables
            self.kernels.rotary(views.q, views.k, cos, sin, positions)
        # The norms of Hunyuan and Llama 4 follow the rotary embedding.
        if self._norms_late:
            self._norm(views)

    def _open(self, gate: Tensor, views: AttentionViews) -> None:
        """Multiply the heads' outputs by the activated gate, in place."""
        if self.heads.opening == "sigmoid":
            self.kernels.open_gate(gate, views.attention)
        else:
            views.heads_out.mul_(self._opening(by_heads(gate, self.spec.num_heads)))

    def _norm(self, views: AttentionViews) -> None:
        for norm, every, heads in ((self.q_norm, views.q_all, views.q), (self.k_norm, views.k_all, views.k)):
            if norm is None:
                continue
            if self._norms_all:
                norm(every, every)
            else:
                norm.heads(heads)

"""Attention over keys and values: project, norm, rotate, store, attend, project.

Owns: the order of these operations and the views that they work on. Never does: know how a backend stores anything.
Called by: the decoder, once a block and step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from core.api.specs import AttentionSpec
from core.layers.kernels import KernelSet
from core.layers.linear import Linear
from core.layers.workspace import Workspace
from core.models.mixers.cached import KeyedMixer
from core.plugin.contracts import LinearKernel


class AttentionViews:
    """The buffers of one step.

    qkv: [T, (Hq + Hkv) * D + Hkv * Dv].
    q: [T, Hq, D], a part of qkv.
    k: [T, Hkv, D], a part of qkv.
    v: [T, Hkv, Dv], a part of qkv.
    attention: [T, Hq * Dv], the output of the heads.
    heads_out: [T, Hq, Dv], the same by heads.
    """

    __slots__ = ("attention", "heads_out", "k", "q", "qkv", "v")

    def __init__(self, workspace: Workspace, num_tokens: int, spec: AttentionSpec) -> None:
        first_v = spec.num_heads + spec.num_kv_heads
        values = spec.num_kv_heads * spec.head_size_v
        width = first_v * spec.head_size + values
        width_out = spec.num_heads * spec.head_size_v
        self.qkv = workspace.view("qkv", num_tokens, width)
        self.attention = workspace.view("attention", num_tokens, width_out)
        heads = self.qkv.view(num_tokens, -1, spec.head_size)
        self.q = heads[:, : spec.num_heads]
        self.k = heads[:, spec.num_heads : first_v]
        self.v = heads[:, first_v:]
        self.heads_out = self.attention.view(num_tokens, spec.num_heads, spec.head_size_v)


class AttentionMixer(KeyedMixer):
    """One block's attention.

    linears: `qkv` and `o`.
    norms: `q` and `k` where the family has them.

    `attach` and `bind_cache` must be called before the first step.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        eps: float,
        kernels: KernelSet,
        linears: Mapping[str, Linear],
        norms: Mapping[str, Tensor],
    ) -> None:
        super().__init__(spec)
        self.spec = spec
        self.eps = eps
        self.kernels = kernels
        self.qkv = linears["qkv"]
        self.o = linears["o"]
        self.q_norm = norms.get("q")
        self.k_norm = norms.get("k")
        self.nbytes = self.qkv.nbytes + self.o.nbytes
        self.cos: Tensor
        self.sin: Tensor

    @property
    def linears(self) -> list[LinearKernel]:
        """Everything that a runtime must be able to record."""
        return [*self.qkv.kernels, *self.o.kernels]

    def attach(self, workspace: Workspace, tables: tuple[Tensor, Tensor] | None) -> None:
        """Take the step's buffers, and the (cos, sin) of its rotary embedding."""
        assert tables is not None, "attention needs rotary tables"
        self.cos, self.sin = tables
        self.views = workspace.cached(self.spec, lambda rows: AttentionViews(workspace, rows, self.spec))

    def __call__(self, x: Tensor, positions: Tensor, metadata: Any, out: Tensor, *, accumulate: bool) -> None:
        """out[T, H] (+)= attention of x [T, H] at positions int64 [T]; metadata: what the backend built for this step."""
        views = self.views(x.shape[0])
        kernels = self.kernels
        self.qkv(x, views.qkv)
        if self.q_norm is not None and self.k_norm is not None:
            kernels.rms_norm_heads(views.q, self.q_norm, self.eps)
            kernels.rms_norm_heads(views.k, self.k_norm, self.eps)
        kernels.rotary(views.q, views.k, self.cos, self.sin, positions)
        self.backend.write(self.handle, views.k, views.v, metadata)
        self.backend.forward(self.handle, views.q, metadata, views.heads_out)
        self.o(views.attention, out, accumulate=accumulate)

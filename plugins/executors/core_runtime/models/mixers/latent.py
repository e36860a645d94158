"""Latent attention (MLA; DeepSeek-V2, arXiv 2405.04434), absorbed: queries multiply the cached latents directly.

Owns: the order of its operations, and the products with the two halves of the up-projection around the backend. Never
does: expand a latent into keys and values. Called by: the decoder, once a block and step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from core.api.specs import LatentSpec
from core_runtime.contracts import HeadsKernel, LinearKernel
from core_runtime.layers.adapted_heads import AbsorbedAdapters
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.workspace import Workspace, by_heads
from core_runtime.models.mixers.cached import KeyedMixer
from core_runtime.models.mixers.index import Index
from core_runtime.models.mixers.temperature import temperatures
from core_runtime.models.norm import Norm
from core_runtime.specs.block_spec import TemperatureSpec


class LatentViews:
    """The buffers of one step.

    a: queries (or their latent), followed by c and k_pe.
    c: [T, R], the latents of keys and values.
    k_pe: [T, Dr], the rotary part of the keys.
    k_pe_head: [T, 1, Dr], the same as one head.
    q_a: the queries (or their latent) in a.
    q: [T, H * (Dn + Dr)], the queries.
    q_nope: [T, H, Dn], part of the queries.
    q_pe: [T, H, Dr], part of the queries.
    q_latent: [T, H, R], input of the backend.
    latents: [T, H, R], output of the backend.
    attention: [T, H * Dv], the output of the heads.
    heads: [T, H, Dv], the same by heads.
    q_b: [T, n], output of the projection from the latent of queries: q, and after it the gate, if there is one.
    gate: [T, H * Dv], or None. both: [T, 2 * q_rank], the normed latent of queries and the plain one, or None.
    """

    __slots__ = (
        "a",
        "attention",
        "both",
        "c",
        "gate",
        "heads",
        "k_pe",
        "k_pe_head",
        "latents",
        "q",
        "q_a",
        "q_b",
        "q_latent",
        "q_nope",
        "q_pe",
    )

    def __init__(self, workspace: Workspace, num_tokens: int, spec: LatentSpec, gated: bool = False) -> None:
        heads = spec.num_heads
        head = spec.head_size_nope + spec.rope_size
        first_c = heads * head if spec.q_rank is None else spec.q_rank
        first_k_pe = first_c + spec.rank
        self.a = workspace.view("latent_a", num_tokens, first_k_pe + spec.rope_size)
        self.q_a = self.a[:, :first_c]
        self.c = self.a[:, first_c:first_k_pe]
        self.k_pe = self.a[:, first_k_pe:]
        self.k_pe_head = by_heads(self.k_pe, 1)
        self.q_b = self.q_a
        self.gate: Tensor | None = None
        self.both: Tensor | None = None
        if spec.q_rank is not None:
            values = heads * spec.head_size_v if gated else 0
            self.q_b = workspace.view("latent_q_b", num_tokens, heads * head + values)
        if spec.q_rank is not None and gated:
            self.gate = self.q_b[:, heads * head :]
            self.both = workspace.view("latent_both", num_tokens, 2 * spec.q_rank)
        self.q = self.q_b[:, : heads * head]
        queries = by_heads(self.q, heads)
        self.q_nope = queries[..., : spec.head_size_nope]
        self.q_pe = queries[..., spec.head_size_nope :]
        given = workspace.view("latent_q", num_tokens, heads * spec.rank)
        answered = workspace.view("latent_out", num_tokens, heads * spec.rank)
        self.q_latent = by_heads(given, heads)
        self.latents = by_heads(answered, heads)
        self.attention = workspace.view("attention", num_tokens, heads * spec.head_size_v)
        self.heads = by_heads(self.attention, heads)


class LatentMixer(KeyedMixer):
    """The latent attention of one block.

    linears: `a`, `o` and with a query latent `q_b`.
    norms: `kv_a` and with a query latent `q_a`.
    to_latent: projection of each head, from Dn to R numbers.
    from_latent: projection of each head, from R to Dv numbers.
    temperature: scaling of the queries by their position, or None.
    index: choice of the keys that a query reads; None: it reads all.
    gated: whether `q_b` reads two latents of queries side by side, and has rows for a gate (`HeadsSpec.latent_gate`).

    adapters: adapters of the up-projection; None: the engine has none.

    `attach` and `bind_cache` must be called before the first step.
    """

    def __init__(
        self,
        spec: LatentSpec,
        kernels: KernelSet,
        linears: Mapping[str, Linear],
        heads: tuple[HeadsKernel, HeadsKernel],
        norms: Mapping[str, Norm],
        temperature: TemperatureSpec | None = None,
        index: Index | None = None,
        *,
        gated: bool = False,
    ) -> None:
        super().__init__(spec)
        self._gated = gated
        self.spec = spec
        self.kernels = kernels
        self.a = linears["a"]
        self.o = linears["o"]
        self.q_b = linears.get("q_b")
        self.to_latent, self.from_latent = heads
        self.kv_norm = norms["kv_a"]
        self.q_norm = norms.get("q_a")
        self.nbytes = self.a.nbytes + self.o.nbytes
        self.nbytes += self.to_latent.nbytes + self.from_latent.nbytes
        if self.q_b is not None:
            self.nbytes += self.q_b.nbytes
        self.index = index
        self.nbytes += 0 if index is None else index.nbytes
        self._temperature = temperature
        self.tables: tuple[Tensor, Tensor] | None = None
        self.adapters: AbsorbedAdapters | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the mixer consists of kernels and the backend alone."""
        return self._temperature is None and self.index is None and not self._gated

    @property
    def linears(self) -> list[LinearKernel | HeadsKernel]:
        """Return all kernels that a runtime must be able to record."""
        found: list[LinearKernel | HeadsKernel] = [*self.a.kernels]
        if self.q_b is not None:
            found += self.q_b.kernels
        found += (self.to_latent, self.from_latent)
        found += self.o.kernels
        if self.index is not None:
            found += self.index.linears
        return found

    def attach(self, workspace: Workspace, tables: tuple[Tensor, Tensor] | None) -> None:
        """Bind the step's buffers and the (cos, sin) of the rotary embedding; None: no rotary embedding."""
        self.tables = tables
        key = self.spec, self._gated
        self.views = workspace.cached(key, lambda rows: LatentViews(workspace, rows, self.spec, self._gated))
        if self.index is not None:
            self.index.attach(workspace, tables)

    def __call__(self, x: Tensor, positions: Tensor, metadata: Any, out: Tensor, *, accumulate: bool) -> None:
        """Compute out[T, H] (+)= attention of x [T, H] at positions int64 [T]. metadata: the backend's metadata of this
        step.
        """
        views = self.views(x.shape[0])
        adapters = self.adapters if self.adapters is not None and self.adapters.active else None
        self.a(x, views.a)
        if self.q_b is not None and self.q_norm is not None:
            self._raise_queries(self.q_b, self.q_norm, views)
        # Normed and turned before they are stored, so that no later step does either again.
        self.kv_norm(views.c, views.c)
        if self.tables is not None:
            cos, sin = self.tables
            self.kernels.rotary(views.q_pe, views.k_pe_head, cos, sin, positions)
        if self._temperature is not None:
            views.q.mul_(temperatures(self._temperature, positions).squeeze(-1).to(views.q.dtype))
        self.backend.write_latent(self.handle, views.c, views.k_pe, metadata)
        if self.index is not None:
            self.index(x, views.q_a, positions, self.backend, self.handle, metadata)
        if adapters is not None:
            adapters.scale_queries(views.q_nope)
        self.to_latent(views.q_nope, views.q_latent)
        if adapters is not None:
            adapters.to_latent(views.q_nope, views.q_latent)
        if self.index is None:
            self.backend.forward_latent(self.handle, views.q_latent, views.q_pe, metadata, views.latents)
        else:
            chosen = self.index.chosen(x.shape[0])
            self.backend.forward_chosen(self.handle, views.q_latent, views.q_pe, chosen, metadata, views.latents)
        self.from_latent(views.latents, views.heads)
        if adapters is not None:
            adapters.from_latent(views.latents, views.heads)
        if views.gate is not None:
            self.kernels.open_gate(views.gate, views.attention)
        self.o(views.attention, out, accumulate=accumulate)

    def _raise_queries(self, q_b: Linear, q_norm: Norm, views: LatentViews) -> None:
        """Compute queries from their latent, and the gate where there is one: it reads the latent before its norm, too."""
        if views.both is None:
            q_norm(views.q_a, views.q_a)
            q_b(views.q_a, views.q_b)
            return
        rank = views.q_a.shape[1]
        views.both[:, rank:] = views.q_a
        q_norm(views.q_a, views.q_a)
        views.both[:, :rank] = views.q_a
        q_b(views.both, views.q_b)

"""The index of latent attention, which chooses the keys that each query reads (DeepSeek-V3.2's lightning indexer).

Owns: the projections of its queries, keys and weights, and the buffer of chosen positions, which later layers may reuse. Never
does: score a key, or choose one (the backend does). Called by: the latent mixer, between the storing of a step's keys and
attention.

Numbers are rounded as transformers does: to the dtype of activations, without the Hadamard transform and the fp8 of
DeepSeek's own kernels. The transform changes no product.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from core.api.specs import IndexSpec
from core_runtime.contracts import LinearKernel
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.workspace import ViewCache, Workspace, by_heads
from core_runtime.models.norm import Norm

CHOSEN = "index_chosen"
"""Buffer of the positions that the latest index has chosen."""


class IndexViews:
    """The buffers of one step.

    q: [T, Hi * Di], the queries. q_rotated: [T, Hi, Dr], their rotating part.
    k: [T, Di], the keys. k_rotated: [T, 1, Dr], their rotating part.
    weights: [T, Hi], the weights of heads.
    """

    __slots__ = ("k", "k_rotated", "q", "q_rotated", "weights")

    def __init__(self, workspace: Workspace, rows: int, spec: IndexSpec, rotating: int) -> None:
        self.q = workspace.view("index_q", rows, spec.num_heads * spec.head_size)
        self.k = workspace.view("index_k", rows, spec.head_size)
        self.weights = workspace.view("index_weights", rows, spec.num_heads)
        self.q_rotated = by_heads(self.q, spec.num_heads)[..., :rotating]
        self.k_rotated = by_heads(self.k, 1)[..., :rotating]


class Index:
    """The index of one block; `attach` must be called before the first step.

    spec: its sizes.
    rotating: leading numbers of its queries and keys that rotate.
    linears: `index_q`, `index_k` and `index_weights`; norms: `index_k`. Neither in a block that reuses the choice of an earlier
        one.
    """

    def __init__(
        self,
        spec: IndexSpec,
        rotating: int,
        kernels: KernelSet,
        linears: Mapping[str, Linear],
        norms: Mapping[str, Norm],
    ) -> None:
        self.spec = spec
        self._rotating = rotating
        self._kernels = kernels
        self._parts: tuple[Linear, Linear, Linear, Norm] | None = None
        if not spec.reuses:
            self._parts = (linears["index_q"], linears["index_k"], linears["index_weights"], norms["index_k"])
        self._tables: tuple[Tensor, Tensor] | None = None
        self._workspace: Workspace | None = None
        self._views: ViewCache[IndexViews] | None = None

    @property
    def linears(self) -> list[LinearKernel]:
        """Return the kernels of its matrices."""
        return [] if self._parts is None else [kernel for linear in self._parts[:3] for kernel in linear.kernels]

    @property
    def nbytes(self) -> int:
        """Return the bytes of its matrices."""
        return 0 if self._parts is None else sum(linear.nbytes for linear in self._parts[:3])

    def attach(self, workspace: Workspace, tables: tuple[Tensor, Tensor] | None) -> None:
        """Bind the step's buffers, and the (cos, sin) of the layer's rotary embedding."""
        self._tables = tables
        self._workspace = workspace
        if self._parts is not None:
            key = CHOSEN, self.spec, self._rotating
            self._views = workspace.cached(key, lambda rows: IndexViews(workspace, rows, self.spec, self._rotating))

    def chosen(self, rows: int) -> Tensor:
        """Return the positions that the latest index chose, int32 [rows, top_k]: ascending, then -1."""
        assert self._workspace is not None, "attach comes first"
        return self._workspace.view(CHOSEN, rows, self.spec.top_k)

    def __call__(self, x: Tensor, q_a: Tensor, positions: Tensor, backend: Any, handle: Any, metadata: Any) -> None:
        """Store the keys of x [T, H] in the cache, and choose the keys of its queries.

        q_a: [T, q_rank], the normed latent of the queries. positions: int64 [T].
        backend, handle, metadata: of the layer, see `ChoosesKeys`.
        """
        if self._parts is None or self._views is None:
            return
        to_queries, to_keys, to_weights, norm = self._parts
        views = self._views(x.shape[0])
        to_queries(q_a, views.q)
        to_keys(x, views.k)
        norm(views.k, views.k)
        to_weights(x, views.weights)
        # A factor of the scores, where transformers applies it.
        self._kernels.scale(views.weights, 1.0 / math.sqrt(self.spec.num_heads))
        if self._tables is not None:
            self._kernels.rotary(views.q_rotated, views.k_rotated, *self._tables, positions)
        backend.write_index(handle, views.k, metadata)
        queries = by_heads(views.q, self.spec.num_heads)
        backend.choose(handle, queries, views.weights, metadata, self.chosen(x.shape[0]))


def reserve_chosen(workspace: Workspace, rows: int, top_k: int) -> None:
    """Reserve the buffer of chosen positions; only while a model is built."""
    workspace.reserve(CHOSEN, rows, top_k, torch.int32)

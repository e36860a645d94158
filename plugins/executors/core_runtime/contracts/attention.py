"""The contracts of attention: a backend's view of a step, and the backends of each kind of layer.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from core.api.specs import AttentionSpec, KVLayout, LatentSpec, StateSpec

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class BatchView:
    """One step's sequences, as attention sees them. All tensors are on the device; lists are the same values on the host.

    cu_seqlens_q: int32 [B+1], start of each sequence's rows.
    seq_lens: int32 [B], tokens with keys and values after this step.
    block_table: int32 [B, M], entries past a sequence's blocks are 0. For a layer with a state: the blocks of the state, to
        which the step writes it, and after these others.
    slot_mapping: int64 [T], block * block_size + offset.
    positions: int64 [T].
    sees_to: int32 [T], last position that each row sees: its own, or a later one of the same step, never falling within a
        sequence; None: its own. Only backends with the capability `spans` get it, for layers of kind `full` and `sliding`.
    rotary: int64 [T], rows of the rotary tables, where they differ from the positions; attention does not read it.
    state_sources: int32 [B, n], for a layer with a state: blocks in which the step reads the state; None: those in which it
        writes it. A part of the rows of `block_table`, with other blocks than those only for `MovesStates`.

    **Padding.** For backends with the capability `padding`, a step may have more rows and sequences than it needs, after its
    own ones:

    - a padded sequence has `seq_lens` 0 and no rows (`cu_seqlens_q` repeats the number of live rows), even if each live
      sequence has one row; its row of the block table is meaningless, and no state of it is written;
    - a padded row has the slot -1, which is not written, and belongs to no sequence; its q, k, v (or inputs) may contain
      anything, NaN included, and so may its output, which is ignored.

    **Trees.** Each row of a draft tree is a sequence of one row, with the block table of the sequence that it drafts
    for. A row sees its own position and earlier ones, but its last keys may be in other slots than the table says. Only
    backends with the capability `tree` (`MovesKeys`) get such a step.

    tails: int32 [B, depth], slots (block * block_size + offset) of the keys at the last `depth` positions of each sequence,
    the row's own key last; -1: as in the block table. None: all are as in the table.

    **Recorded for a fixed size** (`CapturesSizes`), a step is described by its tensors alone, whose values change from one
    replay to the next. The lists are then empty, and `max_query_len` and `max_seq_len` are upper limits.
    """

    num_tokens: int
    num_seqs: int
    block_size: int
    max_query_len: int
    max_seq_len: int
    query_lens: list[int]
    seq_lens_list: list[int]
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    positions: Tensor
    tails: Tensor | None = None
    state_sources: Tensor | None = None
    rotary: Tensor | None = None
    sees_to: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """Parameters of a layer's attention beyond its shape.

    k_scale, v_scale: factors that turn the values of an 8-bit cache without scales of its own into K and V.
    sinks: float32 [Hq], an additional learned logit in the softmax of each head (as in gpt-oss), or None.
    slopes: float32 [Hq], adds slope * (key position - query position) to a score (ALiBi, Press et al. 2021), or None.
    """

    k_scale: float = 1.0
    v_scale: float = 1.0
    sinks: Tensor | None = None
    slopes: Tensor | None = None


@runtime_checkable
class AttentionBackend(Protocol):
    """Kind `attention`, layers of kind `full` and `sliding`: K and V are written first, then attention reads only the cache.
    A block table may name blocks that another sequence of the same step writes, if they share a prefix. A layer that reads the
    keys of an earlier one binds that layer's cache again, and calls `forward` alone; a step may then have the last rows of its
    sequences alone.

    A backend that declares neither `sinks` nor `alibi` nor an 8-bit KV dtype never gets `params`. Optional parts:
    `RecordableBackend`, `MovesKeys`, `TurnsHeads`, `SumsParts`.
    """

    name: str
    numerics: str

    def kv_layout(self, spec: AttentionSpec, block_size: int, dtype: str) -> KVLayout:
        """Return the layout of one block of one layer, with its bytes."""
        ...

    def bind(
        self, spec: AttentionSpec, block_size: int, dtype: str, raw: Tensor, params: AttentionParams | None = None
    ) -> Any:
        """Bind a layer and return its handle. raw: the layer's cache, uint8 [num_blocks, block_bytes], zeroed."""
        ...

    def build(self, view: BatchView) -> Any:
        """Build a step's metadata for `write` and `forward`, shared by all layers bound to this backend."""
        ...

    def write(self, handle: Any, k: Tensor, v: Tensor, metadata: Any) -> None:
        """Store k, v [T, Hkv, D] at the step's slot mapping."""
        ...

    def forward(self, handle: Any, q: Tensor, metadata: Any, out: Tensor) -> None:
        """Compute out[T, Hq, D], causal attention of q [T, Hq, D] over the cache."""
        ...


@dataclass(frozen=True, slots=True)
class HeadTurn:
    """Operations on a layer's queries and keys before the keys are stored: norms by head, then the rotary embedding.

    cos, sin: float32 [positions, R/2], see `Kernels.rotary`; R may be less than D.
    q_weight, k_weight: float32 [D], or [H, D] with one row per head, see `Kernels.rms_norm_heads`; None: no norm.
    eps: epsilon of the norms.
    """

    cos: Tensor
    sin: Tensor
    q_weight: Tensor | None = None
    k_weight: Tensor | None = None
    eps: float = 0.0


@runtime_checkable
class TurnsHeads(Protocol):
    """Optional part of an `AttentionBackend`: it norms and rotates heads in the call that stores the keys.

    turns_as: name of the kernel provider whose `rms_norm_heads` and `rotary` it reproduces. It is used if that provider
        serves these operations; otherwise they run by themselves, followed by `write`.
    """

    turns_as: str

    def turn_and_write(
        self, handle: Any, q: Tensor, k: Tensor, v: Tensor, turn: HeadTurn, positions: Tensor, metadata: Any
    ) -> None:
        """Norm and rotate q [T, Hq, D] in place; store k [T, Hkv, D], normed and rotated, and v as `write` does.

        positions: int64 [T]. The contents of k afterwards are undefined.
        """
        ...


@runtime_checkable
class MovesKeys(Protocol):
    """A backend with the capability `tree`: it follows `BatchView.tails`, and moves the keys of accepted drafts."""

    def move(self, handle: Any, sources: Tensor, targets: Tensor) -> None:
        """Copy K and V (or latents and keys) from slots to slots of one layer's cache, to the bit.

        sources, targets: int64 [n] on the device; all are read before any is written.
        """
        ...


@runtime_checkable
class SumsParts(Protocol):
    """Optional part of a backend for attention and latents: it sums over a part of the keys, and joins such sums.

    A record is what it knows of one query and head over one span of `span_keys` keys. Joined in the order of spans, records
    give the bits of `forward`.
    """

    span_keys: int

    def record_floats(self, handle: Any) -> int:
        """Return the float32 numbers of a record; 0 for a layer whose keys must be summed together."""
        ...

    def attend_records(self, handle: Any, queries: Sequence[Tensor], metadata: Any, bases: Tensor, out: Tensor) -> None:
        """Write records of the queries of G ranks to out, float32 [G, part].

        queries: [G, T, Hq, D]; for latents [G, T, H, R] and [G, T, H, Dr].
        metadata: of a step with the keys of this rank alone, `sees_to` included.
        bases: int64 [B], where a sequence's records begin in a part: for each of its spans, [Hkv, rows of a head] records.
        """
        ...

    def join_records(self, handle: Any, records: Tensor, metadata: Any, bases: Tensor, piece: int, out: Tensor) -> None:
        """Compute out [T, Hq, D_v] (latents: [T, H, R]) from records, float32 [R, part], of R ranks in the order of their keys.

        metadata: of the step with the keys of all ranks. piece: successive spans of a rank.
        """
        ...


@runtime_checkable
class LatentBackend(Protocol):
    """Kind `attention`, layers of kind `latent` (one of the `layer_kinds` that the plugin declares).

    R is the latent's rank, Dr the size of the rotated key. The core multiplies by both halves of the up-projection:
    queries and outputs are in the latent's own space. An object may serve other kinds of layers as well; for
    recording and `params` see `AttentionBackend` (`k_scale` applies to both the latent and the key).
    """

    name: str
    numerics: str

    def kv_layout(self, spec: LatentSpec, block_size: int, dtype: str) -> KVLayout:
        """Return the layout of one block of one layer, with its bytes."""
        ...

    def bind(
        self, spec: LatentSpec, block_size: int, dtype: str, raw: Tensor, params: AttentionParams | None = None
    ) -> Any:
        """Bind a layer and return its handle. raw: the layer's cache, uint8 [num_blocks, block_bytes], zeroed."""
        ...

    def build(self, view: BatchView) -> Any:
        """Build a step's metadata for `write_latent` and `forward_latent`, shared by all layers bound to this backend."""
        ...

    def write_latent(self, handle: Any, c: Tensor, k_pe: Tensor, metadata: Any) -> None:
        """Store latents c [T, R] (normed) and keys k_pe [T, Dr] (rotated) at the step's slot mapping."""
        ...

    def forward_latent(self, handle: Any, q_latent: Tensor, q_pe: Tensor, metadata: Any, out: Tensor) -> None:
        """Compute out[T, H, R] = softmax(scale * (q_latent · c + q_pe · k_pe)) · c, causal, over the cache.

        q_latent [T, H, R], q_pe [T, H, Dr]. Rows and heads of every tensor may be strided, here and in `write_latent`.
        """
        ...


@runtime_checkable
class ChoosesKeys(Protocol):
    """A latent backend with the capability `sparse`: it serves layers with a `LatentSpec.index`. Such a layer calls
    `write_latent`, `write_index`, `choose` and `forward_chosen`, in this order; one that reuses a choice calls the first and
    the last.

    A row's choice depends on its own scores alone: of equal scores the earlier key wins, and NaN is the worst. A row with at
    most `top_k` keys reads all of them. Where this holds for every row of a step, `choose` need not write.
    """

    def write_index(self, handle: Any, k: Tensor, metadata: Any) -> None:
        """Store the index's keys k [T, Di] (normed and rotated) at the step's slot mapping."""
        ...

    def choose(self, handle: Any, q: Tensor, weights: Tensor, metadata: Any, out: Tensor) -> None:
        """Write the positions of the chosen keys of each row to out, int32 [T, top_k]: ascending, then -1.

        q: [T, Hi, Di], rotated. weights: [T, Hi], see `IndexSpec`.
        """
        ...

    def forward_chosen(
        self, handle: Any, q_latent: Tensor, q_pe: Tensor, chosen: Tensor, metadata: Any, out: Tensor
    ) -> None:
        """Compute `forward_latent` over the chosen keys alone."""
        ...


@runtime_checkable
class StateBackend(Protocol):
    """Kind `attention`, for layers with a state (`StateSpec`): a recurrence along each sequence.

    Its plugin declares the kind `state` among its `layer_kinds`, and its `state_ops`; the object may serve other kinds of
    layers as well. An update of a state cannot be repeated, so `forward_state` is called once for each token of a
    sequence, in order, one step after the other. Between steps the core may copy the bytes of a state to other blocks, or
    restore earlier ones, so a backend keeps nothing of a sequence outside of them. Optional parts: `RecordableBackend`,
    `MovesStates`, `HasExampleState`.
    """

    name: str
    numerics: str

    def state_layout(self, spec: StateSpec, dtype: str) -> int:
        """Return the bytes of one sequence's state in one layer, at most `spec.bytes_in(dtype)`."""
        ...

    def bind_state(self, spec: StateSpec, dtype: str, raw: Tensor, params: Mapping[str, Tensor]) -> Any:
        """Bind a layer and return its handle.

        For each adapter that has other `params` a layer is bound once more, to the same blocks, which are in use then. Binding
        changes no state, and a handle keeps none.

        raw: uint8 [num_blocks, block_bytes], at first zeroed. A state occupies the first blocks in its row of the block table,
            as many as it needs, in order; they need not be adjacent.
        params: by name, as `spec.params` says, float32 on the device.
        dtype: storage type, `float32` unless the backend's plugin declares others (`state_dtypes`), see
            `core.api.specs.STATE_TYPES`. Numbers are rounded after every token, so that no cut changes a bit.
        """
        ...

    def build_state(self, view: BatchView) -> Any:
        """Build a step's metadata for `forward_state`, shared by all layers of one KV group bound to this backend.

        Where adapters have other `params`, it is also called for the sequences of each of them alone.

        view.block_table: blocks of each state. A sequence whose `seq_lens` is its query length begins in this step:
        its blocks still contain other data. view.slot_mapping has no meaning.
        """
        ...

    def forward_state(self, handle: Any, inputs: Tensor, metadata: Any, out: Tensor) -> None:
        """Compute out [T, output_size] from inputs [T, input_size] and the states, advancing each to its sequence's
        last token.

        The rows of both may be strided.
        """
        ...


@runtime_checkable
class MovesStates(Protocol):
    """Optional part of a backend for layers with a state: it reads the states of a step in `BatchView.state_sources`, which may
    be other blocks than those to which it writes them, and leaves these as they are. For other backends the engine copies a
    state before the step.
    """

    moves_states: bool


@runtime_checkable
class FillsStates(Protocol):
    """Optional part of a backend with the op `cross_attention`, whose states an encoder's rows give."""

    def fill_state(self, handle: Any, blocks: Tensor, rows: Tensor) -> None:
        """Write a sequence's whole state, before its first token.

        blocks: int64 [n], those of the state, in order. rows: float32 [S, W] on the host.
        """
        ...


@runtime_checkable
class HasExampleState(Protocol):
    """Optional part of a backend for ops that the core does not describe: an example for `core plugins check`."""

    def example_state(self, op: str) -> StateSpec:
        """Return a small layer with the op."""
        ...

"""The contracts: what the object returned by `core_load` must offer, one Protocol a kind.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).

T tokens, B sequences, Hq/Hkv query and key-value heads, D head size, N outputs, K inputs. Tensors between layers have the
platform's activation dtype; outputs are given by the caller; a kernel never allocates what it returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from core.api.checkpoint import CheckpointManifest
from core.api.reason import Reason
from core.api.specs import (
    Activation,
    AttentionSpec,
    DensePlan,
    KernelQuery,
    KVLayout,
    LatentSpec,
    LayerSpec,
    PartPlan,
    RoutingSpec,
    StateSpec,
    Unsupported,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from core.models.spec import DecoderSpec
    from core.weights.formats import CanonicalWeight


@runtime_checkable
class Loader(Protocol):
    """Kind `loader`. `resolve` must not import torch; the command line calls it."""

    def resolve(self, ref: str) -> CheckpointManifest:
        """Read names, shapes, configuration and tokenizer source. Raises CheckpointError."""
        ...

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield (canonical name, tensor on the CPU) for each of `reads`, in an order that suits the files.

        Packed types come as uint8 [N, bytes a row]; plain types in their own dtype and logical shape. A tensor is valid
        until the next one is drawn.
        """
        ...


@runtime_checkable
class QuantizationMethod(Protocol):
    """Kind `quantization`: translates a checkpoint's parts into canonical formats."""

    def plan(self, spec: LayerSpec) -> DensePlan | PartPlan | Unsupported:
        """How the part would be held; torch-free and cheap (the memory plan calls it for every layer)."""
        ...

    def pack(self, spec: LayerSpec, tensors: dict[str, Tensor]) -> CanonicalWeight:
        """Translate the tensors that the plan reads. They may be views of a file: copy what is kept."""
        ...


class LinearKernel(Protocol):
    """A prepared weight of shape (N, K). One that the runtime's `capture` can record has `capturable = True`.

    One may also have `gated`: a `GatedLinear`, or None where its shape does not allow it.
    """

    shape: tuple[int, int]
    nbytes: int

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`."""
        ...

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """out[T, K] = W[ids], ids int64 [T]: the embedding."""
        ...


class GatedLinear(Protocol):
    """A linear kernel's product and the gated activation behind it, in one call."""

    def __call__(self, x: Tensor, activation: str, out: Tensor) -> None:
        """out[T, N/2] = act(y[:, :N/2]) * y[:, N/2:], y = x @ W.T (+ bias): the bits of the product, then `Kernels.gated`."""
        ...


class RaceKernel(Protocol):
    """Sampling of rows of logits with the keyed noise and the filters of `core.sampling`, to the bit."""

    def __call__(
        self,
        logits: Tensor,
        which: Tensor,
        keys: Tensor,
        temperatures: Tensor,
        out: Tensor,
        filters: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> None:
        """out[i] = argmax of z − ln E, z = (logit − largest) / T, over the row which[i], the lowest id on ties.

        logits float32 [R, V], rows may be strided, -inf takes an entry out; which int64 [S]; keys int64 [S, 5], 32-bit
        words: seed (low, high), output index, choice, purpose; temperatures float32 [S], 0: the largest logit wins.
        filters: top-k int64 [S] (0: off), top-p float64 [S] (1: off), smallest z that min-p leaves float32 [S].
        out int64 [S]: −1 where a logit is NaN or infinite, or every one is −inf.
        """
        ...


class LogprobsKernel(Protocol):
    """Log-probabilities of raw logits: `core.sampling.logprobs`, for many rows at once."""

    def __call__(
        self, logits: Tensor, which: Tensor, chosen: Tensor, counts: Tensor, ids: Tensor, values: Tensor, ranks: Tensor
    ) -> None:
        """Of row which[i] (int64 [S]) of logits float32 [R, V]: the token chosen[i] and the counts[i] most likely ones.

        ids int64 and values float64 [S, W], W > every count: the chosen token first, the others falling; ranks int64 [S]
        of the chosen ones: 1 + number of larger logits.
        """
        ...


class RouteKernel(Protocol):
    """The choice of experts for each token."""

    def __call__(self, logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        """ids int64 [T, k] and weights float32 [T, k] from logits [T, E]; bias float32 [E] counts in the choice alone.

        The lowest id wins a tie; ids are valid and different whatever the logits are.
        """
        ...


class ExpertsKernel(Protocol):
    """The prepared experts of one layer, each H → 2 · I → H with a gated activation."""

    nbytes: int

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """out[T, H] = Σ_j weights[t, j] · expert ids[t, j] of x [T, H], or += with `accumulate`; j in ascending order.

        ids int64 [T, k], weights float32 [T, k]. No token is dropped for capacity.
        """
        ...


class HeadsKernel(Protocol):
    """One prepared matrix for each head. One that the runtime's `capture` can record has `capturable = True`."""

    nbytes: int

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """out[T, H, N] = x[T, H, K] @ W[H, N, K].T, each head with its own; rows and heads may be strided."""
        ...


@runtime_checkable
class Kernels(Protocol):
    """Kind `kernels`: the operations of a forward pass on one device.

    A provider may also have `soft_cap(x, cap)` (x = cap * tanh(x / cap)), `take_rows(x, rows, out)` (out[R, H] = x[rows],
    rows int64 [R]), `race` (a `RaceKernel`), `logprobs` (a `LogprobsKernel`), `route` (a `RouteKernel`),
    `experts(gate_up, down, activation) -> ExpertsKernel | None` with one of the provider's own linear kernels an expert in
    each list (None: it cannot run these together), and `heads(weight, activation) -> HeadsKernel` with a dense weight
    [H, N, K] of a type whose linear kernels it prepares; each is used when `supports` has no reason against the operation
    of that name, and the reference operations serve where no provider does (the sampler does without `race` and
    `logprobs`; without `heads` there is a linear kernel for each head).
    A provider whose calls the runtime's `capture` can record has `capturable = True`.
    """

    name: str
    numerics: str

    def supports(self, query: KernelQuery) -> list[Reason]:
        """What is missing for the operation; empty means supported."""
        ...

    def linear(self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None) -> LinearKernel:
        """Repack once; the caller then drops `weight`. activation: precision to which x is rounded before the product."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """out[T, H] = x / sqrt(mean(x²) + eps) * weight."""
        ...

    def rms_norm_heads(self, x: Tensor, weight: Tensor, eps: float) -> None:
        """In place over the last axis of x [T, H, D] (rows may be strided)."""
        ...

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
        """In place on q [T, Hq, D] and k [T, Hkv, D], half-split pairs (i, i + D/2); cos, sin [max_len, D/2] float32."""
        ...

    def gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """out[T, I] = act(x[:, :I]) * x[:, I:], activation `silu` or `gelu_tanh`."""
        ...

    def add(self, x: Tensor, residual: Tensor) -> None:
        """residual += x."""
        ...

    def scale(self, x: Tensor, factor: float) -> None:
        """x *= factor."""
        ...


@dataclass(slots=True)
class BatchView:
    """One step's sequences, for attention. All tensors live on the device; lists are the same values on the host.

    cu_seqlens_q: int32 [B+1], seq_lens: int32 [B] (tokens with KV after this step), block_table: int32 [B, M] (entries past
    a sequence's blocks are 0), slot_mapping: int64 [T] (block * block_size + offset), positions: int64 [T].
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


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """What a layer brings to its attention beside its shape.

    k_scale, v_scale: what an 8-bit cache without scales of its own holds, times these, is K and V.
    sinks: float32 [Hq], one more logit in the softmax of each head (a learned one, as in gpt-oss), or None.
    slopes: float32 [Hq], a score gets slope * (key position - query position) (ALiBi, Press et al. 2021), or None.
    """

    k_scale: float = 1.0
    v_scale: float = 1.0
    sinks: Tensor | None = None
    slopes: Tensor | None = None


@runtime_checkable
class AttentionBackend(Protocol):
    """Kind `attention`, layers of kind `full` and `sliding`: K and V are written first, then attention reads only the cache.
    A block table may name blocks that another sequence of the same step writes: they share a prefix.

    A backend whose calls the runtime's `capture` can record, and whose metadata is then good for every later step in the
    same buffers, has `capture = "any"`. One that declares neither `sinks` nor `alibi` nor an 8-bit KV dtype is never given
    `params`.
    """

    name: str
    numerics: str

    def kv_layout(self, spec: AttentionSpec, block_size: int, dtype: str) -> KVLayout:
        """Bytes of one block of one layer."""
        ...

    def bind(
        self, spec: AttentionSpec, block_size: int, dtype: str, raw: Tensor, params: AttentionParams | None = None
    ) -> Any:
        """Once a layer: `raw` is the layer's cache, uint8 [num_blocks, block_bytes], zeroed. Returns the layer's handle."""
        ...

    def build(self, view: BatchView) -> Any:
        """Once a step: metadata for `write` and `forward`, shared by all layers bound to this backend."""
        ...

    def write(self, handle: Any, k: Tensor, v: Tensor, metadata: Any) -> None:
        """Store k, v [T, Hkv, D] at the step's slot mapping."""
        ...

    def forward(self, handle: Any, q: Tensor, metadata: Any, out: Tensor) -> None:
        """out[T, Hq, D] = causal attention of q [T, Hq, D] over the cache."""
        ...


@runtime_checkable
class LatentBackend(Protocol):
    """Kind `attention`, layers of kind `latent` (one of the `layer_kinds` that the plugin declares).

    R is the latent's rank, Dr the size of the rotated key. The core multiplies with both halves of the up-projection:
    queries come, and outputs leave, in the latent's own space. An object may serve other kinds of layers as well; for
    `capture` and `params` see `AttentionBackend` (`k_scale` serves the latent and the key alike).
    """

    name: str
    numerics: str

    def kv_layout(self, spec: LatentSpec, block_size: int, dtype: str) -> KVLayout:
        """Bytes of one block of one layer."""
        ...

    def bind(
        self, spec: LatentSpec, block_size: int, dtype: str, raw: Tensor, params: AttentionParams | None = None
    ) -> Any:
        """Once a layer: `raw` is the layer's cache, uint8 [num_blocks, block_bytes], zeroed. Returns the layer's handle."""
        ...

    def build(self, view: BatchView) -> Any:
        """Once a step: metadata for `write_latent` and `forward_latent`, shared by all layers bound to this backend."""
        ...

    def write_latent(self, handle: Any, c: Tensor, k_pe: Tensor, metadata: Any) -> None:
        """Store latents c [T, R] (normed) and keys k_pe [T, Dr] (rotated) at the step's slot mapping."""
        ...

    def forward_latent(self, handle: Any, q_latent: Tensor, q_pe: Tensor, metadata: Any, out: Tensor) -> None:
        """out[T, H, R] = softmax(scale * (q_latent · c + q_pe · k_pe)) · c, causal, over the cache.

        q_latent [T, H, R], q_pe [T, H, Dr]. Rows and heads of every tensor may be strided, here and in `write_latent`.
        """
        ...


@runtime_checkable
class StateBackend(Protocol):
    """Kind `attention`, for layers with a state (`StateSpec`): a recurrence along each sequence.

    Its plugin declares the kind `state` among its `layer_kinds`, and its `state_ops`; the object may serve other kinds of
    layers as well. An update of a state cannot be repeated, so `forward_state` is called once for each token of a
    sequence, in order, one step after the other; a sequence that must be computed again starts over. `capture`: see
    `AttentionBackend`.

    For ops that the core does not describe, `example_state(op) -> StateSpec` is a small layer for `core plugins check`.
    """

    name: str
    numerics: str

    def state_layout(self, spec: StateSpec, dtype: str) -> int:
        """Bytes of one sequence's state in one layer, at most `spec.state_bytes`."""
        ...

    def bind_state(self, spec: StateSpec, dtype: str, raw: Tensor, params: Mapping[str, Tensor]) -> Any:
        """Once a layer. Returns the layer's handle.

        raw: uint8 [num_blocks, block_bytes], zeroed. A state is the bytes, one after another, of as many blocks as hold
        it: the first ones in its row of the block table, wherever they lie. params: by name, as `spec.params` says,
        float32 on the device.
        """
        ...

    def build_state(self, view: BatchView) -> Any:
        """Once a step: metadata for `forward_state`, shared by all layers of one KV group bound to this backend.

        view.block_table: the blocks of each state. A sequence whose `seq_lens` is its query length begins in this step:
        what its blocks hold is not its own. view.slot_mapping has no meaning.
        """
        ...

    def forward_state(self, handle: Any, inputs: Tensor, metadata: Any, out: Tensor) -> None:
        """out [T, output_size] of inputs [T, input_size] and the states, which move on to each sequence's last token.

        Rows of both may be strided.
        """
        ...


class CapturedCalls(Protocol):
    """Recorded kernel calls."""

    def __call__(self, num_rows: int, num_seqs: int) -> None:
        """Run them again with the first `num_rows` rows and `num_seqs` sequences of the same buffers."""
        ...


@runtime_checkable
class Runtime(Protocol):
    """An opened device.

    A runtime may also have `capture(run, num_rows, num_seqs) -> CapturedCalls | None`: call `run()` once, which computes on
    that many rows, and record what it called; None when that cannot be replayed for other sizes.
    """

    device: torch.device
    kernels: Kernels
    num_threads: int

    def activation_dtype(self, dtype: str) -> torch.dtype:
        """dtype of tensors between layers when the model runs in `dtype`."""
        ...

    def available_memory(self) -> int:
        """Bytes that could be allocated now."""
        ...

    def allocate(self, nbytes: int) -> Tensor:
        """Zeroed uint8 [nbytes] on the device."""
        ...

    def close(self) -> None:
        """Give threads and memory back."""
        ...


@runtime_checkable
class Platform(Protocol):
    """Kind `platform`. num_threads: compute threads that kernel providers are loaded with."""

    num_threads: int

    def open(self, device: str, kernels: Sequence[Kernels]) -> Runtime:
        """Open a device with the loaded kernel providers, best first (the reference operations come last by themselves)."""
        ...


@dataclass(slots=True)
class ProposerInput:
    """What a proposer sees after a step, for the sequences that may have drafts in the next one.

    keys: sequences. token_deltas: tokens accepted in this step. budget: most drafts wanted for each.
    hidden: [B, H], the residual stream (before the last norm) from which the newest token of each sequence was sampled,
    in the platform's activation dtype; valid during the call. None unless the proposer has `needs_hidden = True`.
    """

    keys: list[tuple[str, int]]
    token_deltas: list[list[int]]
    budget: list[int]
    hidden: Tensor | None = None


@runtime_checkable
class Proposer(Protocol):
    """Kind `speculative`. The scheduler owns the budget, the core owns verification.

    `core_load` finds the model's own matrices in `context.options`: `embedding` and `head` (LinearKernel) and `norm`
    (float32 [H], the last norm's weight). A proposer with an attribute `needs_hidden = True` is given hidden states.
    """

    def on_start(self, key: tuple[str, int], token_ids: list[int]) -> None:
        """A sequence enters the batch with all its known tokens (again after a preemption)."""
        ...

    def propose(self, batch: ProposerInput) -> list[list[int]]:
        """Drafts for each sequence of `batch`, each list at most its budget long, maybe empty."""
        ...

    def on_finished(self, key: tuple[str, int]) -> None:
        """The sequence left the batch."""
        ...


@runtime_checkable
class ModelFamily(Protocol):
    """Kind `model`: reads the configurations of a family that the engine's own table does not know. Torch-free."""

    def decoder_spec(self, hf_config: Mapping[str, Any]) -> DecoderSpec:
        """The model's shape. Raises UserError for missing or impossible values."""
        ...

    def canonical_name(self, name: str) -> str:
        """The canonical (Hugging Face llama's) name of a checkpoint's tensor; names that it does not know stay."""
        ...

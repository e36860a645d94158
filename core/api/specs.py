"""Descriptions of a model's parts, without tensors, as plugins receive them.

Owns: the specs that cross the plugin contracts, and the small answers to them. Never does: hold a tensor or import torch.
Called by: models (they describe their layers), config (memory plan, selection), quantization, attention and kernel plugins.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

Role = Literal["linear", "experts", "embedding", "head", "attention"]
LayerKind = Literal["full", "sliding", "latent", "state"]
Activation = Literal["none", "bf16", "int8", "int8_row", "fp8_row"]  # int8: a scale a row and group; int8_row: a row
ACTIVATIONS: Final[tuple[Activation, ...]] = ("none", "bf16", "int8", "int8_row", "fp8_row")

STATE_DTYPE: Final = "float32"
STATE_TYPES: Final = MappingProxyType({STATE_DTYPE: 4, **dict.fromkeys(("bfloat16", "float16", "float16:chance"), 2)})
"""Bytes of a number by storage type of states. `A+B`: A for the window of `StateSpec`, B for the rest. A cut changes no bit,
because numbers of 16 bits are rounded after every token: to the nearest one, or by a chance that depends on its position."""


class LayerSpec(msgspec.Struct, frozen=True):
    """One checkpoint part of a layer, such as `model.layers.0.self_attn.q_proj`: the whole part, not one rank's share.

    name:  module name in the canonical (Hugging Face) naming, without `.weight`.
    shape: (N, K), or (E, N, K) for experts.
    bias:  whether the model has a bias here.
    summed: whether the inputs may be divided among ranks, whose partial sums are then added.
    sections: numbers of rows of the sections that are stacked in the part, such as queries, keys and values; each is divided
        among ranks on its own. Empty: there is one section.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    bias: bool = False
    summed: bool = False
    sections: tuple[int, ...] = ()


class DensePlan(msgspec.Struct, frozen=True):
    """A plan for a part that is a plain matrix in the checkpoint: the core loads it itself. reads: the checkpoint tensors."""

    reads: tuple[str, ...]


class PartPlan(msgspec.Struct, frozen=True):
    """A quantization method's plan to store one part.

    reads:          checkpoint tensors that it needs.
    format:         canonical format name, such as `int4_groups`.
    activation:     precision to which inputs are rounded before the product.
    fuse_key:       parts with equal keys may be concatenated along N.
    nbytes:         bytes of the canonical weight.
    shard_multiple: when ranks divide the inputs, the number of inputs of each rank is a multiple of this.
    ordered:        whether its inputs may have an order of their own (act-order), known only from its tensors: experts of such
                    a layer are not stacked to one weight.
    """

    reads: tuple[str, ...]
    format: str
    activation: Activation
    fuse_key: str
    nbytes: int
    shard_multiple: int = 1
    ordered: bool = False


class Unsupported(msgspec.Struct, frozen=True):
    """The answer of a quantization method that cannot serve a part; `reason` is a sentence."""

    reason: str


class RotaryPairs(msgspec.Struct, frozen=True, tag=True):
    """A reordering of rows from rotary pairs (2i, 2i + 1) to (i, i + count / 2), the pairs that kernels rotate.

    head: rows of a head. first: first rotating row of a head. count: number of rotating rows of a head.
    start, stop: range of the rows that belong to heads; stop None: to the end.
    """

    head: int
    first: int
    count: int
    start: int = 0
    stop: int | None = None


class Groups(msgspec.Struct, frozen=True, tag=True):
    """A reordering of rows from group by group to part by part: each of `groups` has the same parts, of `sizes` rows.

    order: order of the parts in the result; empty: their order within a group.
    """

    groups: int
    sizes: tuple[int, ...]
    order: tuple[int, ...] = ()


RowOrder = RotaryPairs | Groups
"""A reordering of the rows of a matrix, of its bias or of a norm's weights to the engine's order."""


class AttentionSpec(msgspec.Struct, frozen=True, tag=True):
    """One attention layer. window: keys a query sees, itself included, or None. cap: logit soft cap or None.

    sinks: each head has a learned logit that joins its softmax. alibi: scores decrease with the distance (ALiBi).
    chunked: the window is the query's own chunk of `window` positions, up to the query (Llama 4).
    causal: False: a query also sees later keys (encoders), so a sequence must be computed in one step. It sees every key of
        its sequence or, with a window, those at distances up to window // 2 on both sides: `window` keys if it is odd.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    scale: float
    window: int | None = None
    cap: float | None = None
    sinks: bool = False
    alibi: bool = False
    chunked: bool = False
    causal: bool = True

    def first_key(self, position: int) -> int:
        """Return the first position that a query at `position` sees; for encoders with a window, a lower bound of it."""
        if self.window is None:
            return 0
        if self.chunked:
            return position - position % self.window
        return max(0, position - self.window + 1)

    @property
    def kind(self) -> LayerKind:
        """The kind of the layer: `sliding` with a window, else `full`."""
        return "full" if self.window is None else "sliding"

    @property
    def cached(self) -> tuple[int, int, int]:
        """(heads, numbers of K per head, numbers of V per head) that the cache stores for a token."""
        return self.num_kv_heads, self.head_size, self.head_size_v


class IndexSpec(msgspec.Struct, frozen=True):
    """The choice of the keys of latent attention by an index (DeepSeek-V3.2): each query reads only the `top_k` best ones.

    The score of a key is the sum over `num_heads` of weight * max(0, query · key / sqrt(head_size)), in float32; of equal
    scores the earlier key is better. Each token has one key of `head_size` numbers in the cache, of at least 16 bits each.
    reuses: the layer has no index, and reads the keys that the nearest earlier layer with one has chosen.
    """

    num_heads: int
    head_size: int
    top_k: int
    reuses: bool = False


class LatentSpec(msgspec.Struct, frozen=True, tag=True):
    """One layer of latent attention (MLA; DeepSeek-V2, arXiv 2405.04434).

    For each token, the cache stores one latent of `rank` numbers and one rotated key of `rope_size` numbers for all heads.
    head_size_nope: size of the part of a query that does not rotate; head_size_v: size of a head's value. Both are projections
    of the latent, which the core multiplies with queries and outputs. q_rank: size of the queries' own latent, None without
    one. scale: factor of the scores. index: chooses the keys that a query reads; None: it reads all.
    """

    num_heads: int
    rank: int
    rope_size: int
    head_size_nope: int
    head_size_v: int
    scale: float
    q_rank: int | None = None
    index: IndexSpec | None = None

    @property
    def kind(self) -> LayerKind:
        """The kind of the layer: always `latent`."""
        return "latent"

    @property
    def index_size(self) -> int:
        """Numbers of the index's key of a token in the cache; 0 without keys of an index."""
        return 0 if self.index is None or self.index.reuses else self.index.head_size

    @property
    def window(self) -> None:
        """Always None: every query sees all earlier keys."""
        return None

    @property
    def cached(self) -> tuple[int, int, int]:
        """(heads, numbers of K per head, numbers of V per head): latent and rotated key together, and no V."""
        return 1, self.rank + self.rope_size, 0


class StateSpec(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One layer that carries a state of fixed size from token to token, instead of keys and values.

    The core computes the input and output projections; a backend owns the operation between them.

    op:          operation that a backend must implement, such as `short_conv` (below); the others are described in
                 `core_runtime.models.state_ops`.
    inputs:      projections of the layer's input, name → outputs; concatenated in this order, they are the op's input.
    output_size: numbers that the op returns for a token, the input of `out_proj`.
    state_size:  numbers that the op stores per sequence.
    sizes:       integer parameters of the op.
    numbers:     real parameters of the op. The op's description says what an absent one means.
    choices:     variants of the op, by word.
    params:      the op's own tensors, name in the layer → shape.
    bias:        whether the projections have a bias.
    orders:      order of an input's rows in the checkpoint, where it differs from the op's, by input.
    output_bias: whether `out_proj` has a bias, where that differs from `bias`.

    `short_conv` (LFM2, Liquid AI 2025): inputs B, C and x of `channels` each; y = C * causal depthwise convolution of B * x
    over `kernel` tokens, the newest last, with params `conv.weight` [channels, 1, kernel] and, if there is one,
    `conv.bias` [channels]. The state is B * x of the last `kernel` - 1 tokens.
    """

    op: str
    inputs: dict[str, int]
    output_size: int
    state_size: int
    sizes: dict[str, int] = {}
    numbers: dict[str, float] = {}
    choices: dict[str, str] = {}
    params: dict[str, tuple[int, ...]] = {}
    bias: bool = False
    output_bias: bool | None = None
    orders: dict[str, Groups] = {}

    @property
    def kind(self) -> LayerKind:
        """The kind of the layer: always `state`."""
        return "state"

    @property
    def input_size(self) -> int:
        """Total width of the concatenated inputs."""
        return sum(self.inputs.values())

    @property
    def window_size(self) -> int:
        """Numbers of a state that are earlier inputs of the op's convolution; they come first."""
        taps = [shape for name, shape in self.params.items() if name.endswith(("conv.weight", "conv1d.weight"))]
        return sum(channels * (kernel - 1) for channels, _, kernel in taps)

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's state, in `STATE_DTYPE`."""
        return self.bytes_in(STATE_DTYPE)

    def bytes_in(self, dtype: str) -> int:
        """Bytes of one sequence's state in a storage type, see `STATE_TYPES`. The rest begins at a multiple of 4 bytes."""
        window, _, rest = dtype.partition("+")
        start = -(-self.window_size * STATE_TYPES[window] // 4) * 4
        return max(start + (self.state_size - self.window_size) * STATE_TYPES[rest or window], 4)


MixerSpec = AttentionSpec | LatentSpec | StateSpec
"""A layer through which a token sees the tokens before it."""


class KVGroup(msgspec.Struct, frozen=True):
    """Layers that share one block table. All groups take equal blocks from one pool.

    layers: indices of the layers; the i-th layer of every group is stored in the i-th buffer of the cache.
    window: keys that a query of a `sliding` group sees, itself included; blocks that have left the window are freed.
    num_state_blocks: blocks that hold the whole state of a sequence in a `state` group, in the order of its table.
    num_spare_blocks: blocks after these for a copy of the state from before the verification of drafts: 0, or
        `num_state_blocks`.
    """

    kind: Literal["full", "sliding", "state"]
    layers: tuple[int, ...]
    window: int | None = None
    num_state_blocks: int = 0
    num_spare_blocks: int = 0


class AttentionQuery(msgspec.Struct, frozen=True):
    """The question whether a backend can serve one layer kind on one device.

    dtype: storage type of the KV cache.
    profile: the platform's own name for the class of the device, such as `sm_90`; empty when unknown.
    spans: whether rows may see later rows of a step, see `EngineRequest.spans`.
    """

    spec: AttentionSpec | LatentSpec
    device: str
    dtype: str
    block_size: int
    role: str = "decoder"
    profile: str = ""
    spans: bool = False


class StateQuery(msgspec.Struct, frozen=True):
    """The question whether a backend that declares the op can serve layers with a state on one device.

    dtype: storage type of the states.
    """

    spec: StateSpec
    device: str
    dtype: str = STATE_DTYPE


class KernelQuery(msgspec.Struct, frozen=True):
    """The question whether a provider has a kernel. op: `linear`, `rms_norm`, ...; format: canonical format or empty."""

    op: str
    device: str
    format: str = ""
    activation: Activation = "none"
    shape: tuple[int, ...] = ()
    attributes: dict[str, Any] = {}


class KVType(msgspec.Struct, frozen=True):
    """A storage type of KV caches.

    item_bytes: bytes per number. scaled: whether each token and head has a float32 scale for K and one for V (in a latent
    layer: for the latent and for the rotated key). packed: numbers of V in `item_bytes`. group: numbers of a latent that share
    a float32 scale, where rotated keys have 16 bits; 0: there are no such groups.
    """

    item_bytes: int
    scaled: bool = False
    packed: int = 1
    group: int = 0

    def token_bytes(self, spec: AttentionSpec | LatentSpec) -> int:
        """Return the bytes of one token in one layer, scales included."""
        heads, keys, values = spec.cached
        index = spec.index_size * max(self.item_bytes, 2) if isinstance(spec, LatentSpec) else 0
        if self.group and isinstance(spec, LatentSpec):
            return index + spec.rank * self.item_bytes + 4 * (spec.rank // self.group) + 2 * spec.rope_size
        return index + heads * (
            keys * self.item_bytes + values * self.item_bytes // self.packed + (8 if self.scaled else 0)
        )


KV_TYPES: Final = MappingProxyType(
    {
        "float32": KVType(4),
        "bfloat16": KVType(2),
        "float16": KVType(2),
        "fp8_e4m3": KVType(1),
        "fp8_e5m2": KVType(1),
        "fp8_per_token_head": KVType(1, scaled=True),
        "int8_per_token_head": KVType(1, scaled=True),
        "k8v4_per_token_head": KVType(1, scaled=True, packed=2),
        "fp8_ds_mla": KVType(1, scaled=True, group=128),
    }
)
"""The storage types to which `--kv-cache-dtype` can resolve. 8-bit types that are not `scaled` have one scale for a whole layer
(see `AttentionParams`)."""


class KVLayout(msgspec.Struct, frozen=True):
    """Memory of one layer's KV cache: [num_blocks, block_bytes] bytes, whose inner layout the backend chooses."""

    block_bytes: int

"""Descriptions of a model's parts, without tensors: what plugins are asked about.

Owns: the specs that cross the plugin contracts, and the small answers to them. Never does: hold a tensor or import torch.
Called by: models (they describe their layers), config (memory plan, selection), quantization, attention and kernel plugins.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

Role = Literal["linear", "experts", "embedding", "head", "attention"]
LayerKind = Literal["full", "sliding", "latent", "state"]
Activation = Literal["none", "bf16", "int8", "int8_row"]  # int8: a scale a row and group; int8_row: a scale a row
ACTIVATIONS: Final[tuple[Activation, ...]] = ("none", "bf16", "int8", "int8_row")

STATE_DTYPE: Final = "float32"
"""How states are kept: what a chunk leaves behind is then what the next one would have had without a cut."""


class LayerSpec(msgspec.Struct, frozen=True):
    """One checkpoint part of a layer, such as `model.layers.0.self_attn.q_proj`: whole, whatever a rank holds of it.

    name:  module name in the canonical (Hugging Face) naming, without `.weight`.
    shape: (N, K), or (E, N, K) for experts.
    bias:  whether the model has a bias here.
    summed: whether ranks may divide its inputs, so that their partial sums are added.
    sections: rows of each thing that lies in it one after another, such as queries, keys and values; each is divided
        among ranks on its own. Empty: it holds one thing.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    bias: bool = False
    summed: bool = False
    sections: tuple[int, ...] = ()


class DensePlan(msgspec.Struct, frozen=True):
    """The part is a plain matrix in the checkpoint: the core loads it itself."""

    reads: tuple[str, ...]


class PartPlan(msgspec.Struct, frozen=True):
    """How a quantization method will hold one part.

    reads:          checkpoint tensors it needs.
    format:         canonical format name, such as `int4_groups`.
    activation:     precision to which inputs are rounded before the product.
    fuse_key:       parts with equal keys may be concatenated along N.
    nbytes:         bytes of the canonical weight.
    shard_multiple: ranks that divide the inputs hold a multiple of so many of them.
    ordered:        its inputs may come in an order of their own (act-order), which only its tensors tell: experts of such a
                    layer are not put together to one weight.
    """

    reads: tuple[str, ...]
    format: str
    activation: Activation
    fuse_key: str
    nbytes: int
    shard_multiple: int = 1
    ordered: bool = False


class Unsupported(msgspec.Struct, frozen=True):
    """The method cannot serve the part; `reason` is a sentence."""

    reason: str


class RotaryPairs(msgspec.Struct, frozen=True, tag=True):
    """Rows in rotary pairs (2i, 2i + 1) that become (i, i + count / 2), as kernels rotate.

    head: rows of a head. first: where a head's rotating rows begin. count: of them.
    start, stop: the rows that are heads; stop None: to the end.
    """

    head: int
    first: int
    count: int
    start: int = 0
    stop: int | None = None


class Groups(msgspec.Struct, frozen=True, tag=True):
    """Rows that lie group by group, in each of `groups` the same parts of `sizes` rows; all of a part then lie together.

    order: of the parts, then; empty: as they lie in a group.
    """

    groups: int
    sizes: tuple[int, ...]
    order: tuple[int, ...] = ()


RowOrder = RotaryPairs | Groups
"""How the rows of a matrix, of its bias or of a norm's weights are put in the order of the engine."""


class AttentionSpec(msgspec.Struct, frozen=True, tag=True):
    """One attention layer. window: keys a query sees, itself included, or None. cap: logit soft cap or None.

    sinks: each head has a learned logit that joins its softmax. alibi: scores fall with the distance (ALiBi).
    chunked: the window is the query's own chunk of `window` positions, up to the query (Llama 4).
    causal: False: a query sees keys behind it, too (encoders), so a sequence must be computed in one step: every key of
        its sequence, or with a window those at distances up to window // 2 to both sides, `window` of them if it is odd.
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
        """The first position that a query at `position` sees; of encoders, too."""
        if self.window is None:
            return 0
        if self.chunked:
            return position - position % self.window
        return max(0, position - self.window + 1)

    @property
    def kind(self) -> LayerKind:
        """`sliding` with a window, else `full`."""
        return "full" if self.window is None else "sliding"

    @property
    def cached(self) -> tuple[int, int]:
        """Heads, and numbers of each, that the cache holds of a token: K and V together."""
        return self.num_kv_heads, self.head_size + self.head_size_v


class LatentSpec(msgspec.Struct, frozen=True, tag=True):
    """One layer of latent attention (MLA; DeepSeek-V2, arXiv 2405.04434).

    The cache holds, of each token, one latent of `rank` numbers and one rotated key of `rope_size` numbers for all heads.
    head_size_nope: of the part of a query that does not rotate; head_size_v: of a head's value; both are projections of
    the latent, which the core multiplies with queries and outputs. q_rank: of the queries' own latent, or None without.
    scale: of the scores.
    """

    num_heads: int
    rank: int
    rope_size: int
    head_size_nope: int
    head_size_v: int
    scale: float
    q_rank: int | None = None

    @property
    def kind(self) -> LayerKind:
        """Always `latent`."""
        return "latent"

    @property
    def window(self) -> None:
        """Every query sees all keys before it."""
        return None

    @property
    def cached(self) -> tuple[int, int]:
        """Heads, and numbers of each, that the cache holds of a token: latent and rotated key together."""
        return 1, self.rank + self.rope_size


class StateSpec(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One layer that carries a state of fixed size from token to token, in place of keys and values.

    The core multiplies with the projections in front and behind; a backend owns what lies between them.

    op:          what a backend must know, such as `short_conv` (below); the others are described in
    `core_runtime.models.state_ops`.
    inputs:      projections of the layer's input, name → outputs; side by side, in this order, they are the op's input.
    output_size: numbers that the op gives for a token; `out_proj` takes them.
    state_size:  numbers that the op keeps of a sequence.
    sizes:       whole numbers that the op is made of.
    numbers:     real numbers that it is made of. An absent one means what the op's description says.
    choices:     variants of it, by word.
    params:      tensors of its own, name in the layer → shape.
    bias:        whether the projections have one.
    orders:      how rows of an input lie in the checkpoint, where not as the op wants them, by input.
    output_bias: whether `out_proj` has one, where that differs.

    `short_conv` (LFM2, Liquid AI 2025): inputs B, C and x of `channels` each; y = C * causal depthwise convolution of B * x
    over `kernel` tokens, the newest last, with params `conv.weight` [channels, 1, kernel] and, if there is one,
    `conv.bias` [channels]. It keeps B * x of the last `kernel` - 1 tokens.
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
        """Always `state`."""
        return "state"

    @property
    def input_size(self) -> int:
        """Width of all inputs side by side."""
        return sum(self.inputs.values())

    @property
    def state_bytes(self) -> int:
        """Of one sequence, in `STATE_DTYPE`."""
        return 4 * max(self.state_size, 1)


MixerSpec = AttentionSpec | LatentSpec | StateSpec
"""Everything that lets a token see the tokens before it."""


class RopeSpec(msgspec.Struct, frozen=True):
    """Rotary embedding of one layer.

    rope_type: `default`, `linear` (uses factor), `llama3` (uses factor to original_max_position), `yarn` (uses factor,
        original_max_position and what follows it), or `longrope` (each pair's frequency is divided by its number in
        `long_factors` where the engine's longest sequence is beyond original_max_position, else in `short_factors`).
    interleaved: pairs are (2i, 2i + 1) in the checkpoint; their rows are put in the order of the kernels' pairs,
        (i, i + D/2), when weights are loaded.
    attention_factor: multiplies cos and sin.
    size: numbers of a head that rotate, its first ones; None: the whole head.
    backwards: pairs turn in the other direction.
    """

    theta: float
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    interleaved: bool = False
    size: int | None = None
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    backwards: bool = False


class RoutingSpec(msgspec.Struct, frozen=True):
    """How a router chooses `top_k` of E experts for a token.

    scores:      of the logits: `softmax` over all experts, `sigmoid` of each, or `sparse_mixer` (below).
    renormalize: the chosen scores are divided by their sum and `epsilon`: those of a softmax are then the softmax over the
                 chosen logits. factor: multiplies the weights last.
    groups:      E experts in as many equal groups, of which only the `top_groups` best take part (1: no limit).
    group_rank:  what a group counts: its best choice (`best`), or the sum of its two best (`best_two`).

    `sparse_mixer` (SparseMixer-v2, Liu et al. 2024, arXiv 2409.12136, as Phi-3.5-MoE infers) chooses the largest logits one
    after the other. The weight of one is its share in the softmax over those not chosen before it, without any whose
    distance from it, divided by the larger of it and their size, exceeds 2 * `jitter`. It has neither groups nor a bias,
    and nothing is divided.
    """

    top_k: int
    scores: Literal["softmax", "sigmoid", "sparse_mixer"] = "softmax"
    renormalize: bool = True
    factor: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_rank: Literal["best", "best_two"] = "best"
    epsilon: float = 0.0
    jitter: float = 0.0

    def problem(self, biased: bool) -> str | None:
        """Why its parts contradict each other, as a sentence, or None. biased: whether a bias counts in the choice."""
        plain = self.groups == 1 and not self.renormalize and not biased
        if self.scores == "sparse_mixer" and not plain:
            return f"{self}: a sparse mixer has no groups, no bias and no renormalization"
        return None


class KVGroup(msgspec.Struct, frozen=True):
    """Layers that share one block table. All groups take equal blocks from one pool.

    layers: their indices; the i-th layer of every group lies in the i-th buffer of the cache.
    window: keys a query of a `sliding` group sees, itself included; blocks behind it are given back.
    num_state_blocks: blocks that hold the whole state of a sequence in a `state` group, in the order of its table.
    num_spare_blocks: behind them, for a copy of the state before drafts were verified: 0, or as many.
    """

    kind: Literal["full", "sliding", "state"]
    layers: tuple[int, ...]
    window: int | None = None
    num_state_blocks: int = 0
    num_spare_blocks: int = 0


class AttentionQuery(msgspec.Struct, frozen=True):
    """What a backend is asked to serve: one layer kind on one device.

    dtype: of the KV cache.
    profile: the platform's own word for the class of the device, such as `sm_90`; empty where it is not known.
    """

    spec: AttentionSpec | LatentSpec
    device: str
    dtype: str
    block_size: int
    role: str = "decoder"
    profile: str = ""


class StateQuery(msgspec.Struct, frozen=True):
    """What a backend that declares the op is asked to serve: layers with a state on one device. dtype: of the states."""

    spec: StateSpec
    device: str
    dtype: str = STATE_DTYPE


class KernelQuery(msgspec.Struct, frozen=True):
    """What a kernel is asked to serve. op: `linear`, `rms_norm`, ...; format: canonical format or empty."""

    op: str
    device: str
    format: str = ""
    activation: Activation = "none"
    shape: tuple[int, ...] = ()
    attributes: dict[str, Any] = {}


class KVType(msgspec.Struct, frozen=True):
    """How a KV cache holds numbers. scaled: with a float32 scale for each token and head of K and of V (for a latent
    layer: of the latent and of the rotated key)."""

    item_bytes: int
    scaled: bool = False

    def token_bytes(self, spec: AttentionSpec | LatentSpec) -> int:
        """Of one token in one layer."""
        heads, numbers = spec.cached
        return heads * (numbers * self.item_bytes + (8 if self.scaled else 0))


KV_TYPES: Final = MappingProxyType(
    {
        "float32": KVType(4),
        "bfloat16": KVType(2),
        "float16": KVType(2),
        "fp8_e4m3": KVType(1),
        "fp8_e5m2": KVType(1),
        "fp8_per_token_head": KVType(1, scaled=True),
        "int8_per_token_head": KVType(1, scaled=True),
    }
)
"""What `--kv-cache-dtype` may come to. Without scales of their own, 8-bit types have one for a whole layer (see
`AttentionParams`)."""


class KVLayout(msgspec.Struct, frozen=True):
    """Memory of one layer's KV cache: [num_blocks, block_bytes] bytes, viewed by the backend as it likes."""

    block_bytes: int

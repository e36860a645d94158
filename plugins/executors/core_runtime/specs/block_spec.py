"""The shape of one block of a decoder. Torch-free.

Owns: the parts of `BlockSpec`. Never does: name tensors (`core.api.block_tensors` does) or hold weights.
Called by: `DecoderSpec`, families (they describe their blocks), the decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from core.api.specs import LatentSpec, MixerSpec, StateSpec
from core_runtime.specs.expert_placement import HeldExperts
from core_runtime.specs.rope_spec import RopeSpec
from core_runtime.specs.routing_spec import RoutingSpec

BlockOrder = Literal["pre", "sandwich", "post", "residual_post", "parallel", "parallel_two"]
"""Placement of norms around mixer and MLP, see `DecoderSpec.order`."""


class NormSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The kind and options of a normalization.

    kind: `rms` divides by the root of the mean square (arXiv 1910.07467), `layer` subtracts the mean first
        (arXiv 1607.06450).
    eps: added to the mean square.
    offset: added to the weights.
    scale: factor of the weights, offset included.
    weighted: whether there are weights.
    bias: whether there is a bias.
    """

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    offset: float = 0.0
    scale: float = 1.0
    weighted: bool = True
    bias: bool = False


class HeadNormSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The normalization of queries and keys.

    norm: the normalization.
    over: `head` normalizes each head with weights shared by all, `heads` each head with weights of its own, and `all` the
        numbers of all heads as one vector.
    after_rope: whether it comes after the rotary embedding.
    """

    norm: NormSpec
    over: Literal["head", "heads", "all"] = "head"
    after_rope: bool = False


class TemperatureSpec(msgspec.Struct, frozen=True):
    """Scaling of queries by their position p: times 1 + scale * log(1 + floor((p + shift) / interval)).

    Llama 4 counts positions from 1 (shift 1), Ministral 3 from 0.
    """

    scale: float
    interval: int
    shift: int = 0


class HeadsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Options around a block's attention: how queries, keys and values are computed, and what happens to the output.

    norm: normalization of queries and keys, or None.
    value_norm: normalization of each head's values, or None.
    query_bias, key_bias, value_bias, out_bias: whether each projection has a bias.
    fused: the checkpoint's projection is one matrix, `qkv_proj`: all queries, then all keys, then all values (`rows`),
        or for each key head its queries, its key and its value (`groups`), or four parts of all heads, each with queries,
        values and keys (`quarters`, CodeGen). Empty: three matrices.
    gate: gate of the heads' output, which is multiplied by the `opening` of a further projection: `own` of a matrix
        `gate_proj`, one number for each number of the output, `own_heads` one for each head, `query` of rows after each
        head's in `q_proj`.
    opening: function of a gate's projection: `sigmoid`, or `softplus` (log(1 + exp(x))).
    out_norm: norm of the output of all heads as one vector, before its projection, or None.
    clip: limit to which queries, keys and values are clamped, or None.
    temperature: scaling of the queries, or None.
    latent_scales: factors of the normalized latents of queries and of keys, in latent attention.
    latent_eps: epsilon of the norms of these latents.
    lends, borrows: name of the keys and values that a block stores for later blocks as well, and under which such a block
        reads them. It has no projections for keys and values, and no place in the cache.
    latent_gate: whether queries with a latent are computed from two latents side by side, the normed and the plain one, by a
        matrix that also has rows for a gate of the heads' output after each head's (A.X K2).
    index_pairs: whether the rotating numbers of an index's queries and keys are neighbouring pairs in the checkpoint.
    slopes: slope of each head with ALiBi (arXiv 2108.12409), where scores fall with the distance; empty: no ALiBi.
    query_rank: size of a latent that is normalized and from which a further matrix, `wq`, computes the queries (Step 3); 0:
        queries have a projection of their own.
    low_rank: rank of two small matrices for each of queries, keys and values, whose product is added to its projection
        (Zamba 2, whose blocks share the projections); 0: there are none.
    """

    norm: HeadNormSpec | None = None
    value_norm: NormSpec | None = None
    query_bias: bool = False
    key_bias: bool = False
    value_bias: bool = False
    out_bias: bool = False
    fused: Literal["", "rows", "groups", "quarters"] = ""
    gate: Literal["", "own", "own_heads", "query"] = ""
    opening: Literal["sigmoid", "softplus"] = "sigmoid"
    out_norm: NormSpec | None = None
    clip: float | None = None
    temperature: TemperatureSpec | None = None
    latent_scales: tuple[float, float] = (1.0, 1.0)
    latent_eps: float = 1e-6
    lends: str = ""
    borrows: str = ""
    latent_gate: bool = False
    index_pairs: bool = False
    slopes: tuple[float, ...] = ()
    query_rank: int = 0
    low_rank: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether there are kernels for all operations around the backend."""
        opens = not self.gate or self.opening == "sigmoid"
        return opens and self.clip is None and self.temperature is None


class MLPSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The MLP of a block: down(act(gate(x)) * up(x)), or down(act(up(x))).

    size: inner size.
    activation: a name of `core_runtime.layers.activations`.
    activation_tensors: name in the MLP's module and shape of tensors, of one item each, that the activation's numbers are
        made from (`core_runtime.layers.activations.learned`); the name has no numbers then.
    gated: whether there is a gate.
    bias: whether gate and up have biases. down_bias: whether down has one.
    fused: whether the checkpoint has gate and up as one matrix, `gate_up_proj`: all of the gate, then all of up.
    inner_norm: norm of the inner numbers, before down, or None.
    sparsity: share of the gate's numbers that become zero: those below the quantile of a normal distribution with their mean
        and standard deviation, which is subtracted from the others (Gemma 3n); 0: none.
    low_rank: rank of two small matrices whose product is added to gate and up; 0: there are none.
    gate_scale: factor of the gate before the activation. out_scale: factor of the MLP's output, before the bias
        of down.
    """

    size: int
    activation: str = "silu"
    activation_tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    gated: bool = True
    bias: bool = False
    down_bias: bool = False
    fused: bool = False
    inner_norm: NormSpec | None = None
    sparsity: float = 0.0
    low_rank: int = 0
    gate_scale: float = 1.0
    out_scale: float = 1.0


class ExpertsSpec(msgspec.Struct, frozen=True):
    """The experts of a block.

    count: number of experts that the router chooses from.
    names: names of their module in the block, and of an expert's gate, up and down.
    shared_intermediate_size: inner size of an expert that every token uses, 0 for none.
    correction: whether the router has a bias per expert that affects the choice only
        (`gate.e_score_correction_bias`, DeepSeek-V3, arXiv 2412.19437).
    held: the experts that this part of the model holds; None: all.
    activation: activation of the experts; None: the model's.
    gated: whether experts have a gate.
    bias: whether the matrices of experts have biases.
    router_bias: whether the router has a bias that affects choice and weights.
    shared_gate: whether the shared expert is multiplied by the sigmoid of a projection to one number, `shared_expert_gate`.
    weight_inputs: whether the router's weights multiply the experts' inputs, not their outputs (Llama 4).
    identities: number of further choices of the router that return their input, after the experts (LongCat Flash).
    late: whether the output of the chosen experts is added after the next block, and only that of the shared expert at
        once. The next block then has a plain MLP.
    beside: whether the shared expert is the block's MLP, and router and experts read the residual stream with norms of
        their own (Gemma 4). The weights of chosen experts have factors in the checkpoint (`gate.per_expert_scale`).
    """

    count: int
    intermediate_size: int
    routing: RoutingSpec
    names: tuple[str, str, str, str]
    shared_intermediate_size: int = 0
    correction: bool = False
    held: HeldExperts | None = None
    activation: str | None = None
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    weight_inputs: bool = False
    identities: int = 0
    late: bool = False
    beside: bool = False

    @property
    def choices(self) -> int:
        """Number of rows of the router: experts, and choices that return their input."""
        return self.count + self.identities

    @property
    def held_ids(self) -> Sequence[int]:
        """Ids of the experts that this part holds."""
        return range(self.count) if self.held is None else self.held.ids


class BlockSpec(msgspec.Struct, frozen=True):
    """The shape of one decoder layer.

    mixer: how a token sees earlier ones; None: the block has an MLP alone.
    rope: None for layers without rotary embedding.
    experts: experts instead of an MLP, or None.
    mlp: the block's MLP; None: the model's usual one.
    has_mlp: False: the block has a mixer alone.
    heads: options of its attention; None: the model's usual ones.
    input_norm: False: there is no norm before the mixer, even if the model's order has one.
    beside: a second mixer of the same input, whose output is added, or None.
    mixer_scale, beside_scale: factors of the outputs of the two mixers. mlp_scale: factor of the output of MLP or experts.
    mixer_keeps, mlp_keeps: factors of the residual stream to which these outputs are added.
    norm_behind_mlp: whether the output of MLP or experts is normalized, whatever the model's order says.
    order: one of `pre`, `sandwich` and `post`, in a model of one of these; None: the model's.
    layer_scalar: whether the residual stream is multiplied by one number of the checkpoint after the block.
    wide: whether the mixer reads embedding and hidden state concatenated, see `DraftInput`.
    behind_offsets: offsets of the norms after mixer and after MLP; None: that of the model's other norms.
    keeps_as: names under which the residual stream at the entry of the block is kept for later blocks.
    aside: whether the block reads the residual stream and the embeddings side by side, and its MLP what the mixer gives,
        and a projection of the result is not added to the stream, but to the input of the next block's mixer (Zamba 2).
    takes_aside: whether the block's mixer reads the sum of the stream and what the block before has put aside.
    blends: name of a kept stream → its share of the residual stream at the entry of the block; the current stream has the
        rest. What the block keeps is kept first.
    gated_norms: roles of norms whose output is multiplied by the sigmoid of a small MLP of itself: `gate_out` of silu of
        `gate_in`, in the norm's module (A.X K2). gate_rank: inner size of these MLPs.
    """

    mixer: MixerSpec | None
    rope: RopeSpec | None = None
    experts: ExpertsSpec | None = None
    mlp: MLPSpec | None = None
    has_mlp: bool = True
    heads: HeadsSpec | None = None
    beside: MixerSpec | None = None
    mixer_scale: float = 1.0
    beside_scale: float = 1.0
    mlp_scale: float = 1.0
    mixer_keeps: float = 1.0
    mlp_keeps: float = 1.0
    norm_behind_mlp: bool = False
    input_norm: bool = True
    order: BlockOrder | None = None
    layer_scalar: bool = False
    wide: bool = False
    behind_offsets: tuple[float, float] | None = None
    aside: bool = False
    takes_aside: bool = False
    keeps_as: tuple[str, ...] = ()
    blends: tuple[tuple[str, float], ...] = ()
    gated_norms: tuple[str, ...] = ()
    gate_rank: int = 0

    @property
    def mixers(self) -> tuple[MixerSpec, ...]:
        """The block's mixers, up to two; each has a place of its own in the cache."""
        both = (self.mixer, self.beside)
        return tuple(mixer for mixer in both if mixer is not None)

    @property
    def rotary_size(self) -> int:
        """Number of values in a head that rotate with the position."""
        if self.rope is None or self.mixer is None or isinstance(self.mixer, StateSpec):
            return 0
        if isinstance(self.mixer, LatentSpec):
            return self.mixer.rope_size
        return self.mixer.head_size if self.rope.size is None else self.rope.size


class PositionsSpec(msgspec.Struct, frozen=True):
    """Positions that are added to the embeddings: a table has `count` rows and `offset` more; position p uses row
    p + offset.

    computed: whether the table is not `model.embed_positions` of the checkpoint, but sines and then cosines of the
        row's number times frequencies that fall from 1 to 1 / 10000 (as tensor2tensor computes them).
    """

    count: int
    offset: int = 0
    computed: bool = False

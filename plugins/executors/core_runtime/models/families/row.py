"""A row of the table of model families: how an architecture differs from llama, as data.

Owns: the vocabulary of rows. Never does: read a configuration (`build` does) or hold weights.
Called by: the table, plugins that add families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from core.api.specs import StateSpec
from core_runtime.models.families.class_heads import OF_DECODERS, Heads
from core_runtime.models.weight_rules import WeightRule
from core_runtime.specs.block_spec import BlockSpec, HeadsSpec
from core_runtime.specs.decoder_spec import BlockOrder, DecoderSpec
from core_runtime.specs.routing_spec import RoutingSpec

Keys = str | tuple[str, ...]

EXPERTS = ("mlp", "gate_proj", "up_proj", "down_proj")
"""`expert_names` of most families."""
NEVER = 1 << 30
"""`full_every` of a family in which all layers slide when the configuration has a window."""


class HeadNorm(msgspec.Struct, frozen=True, kw_only=True):
    """The norm of queries and keys in a family. For `over` and `after_rope` see `HeadNormSpec`.

    kind: type of the norm; None: the type of the family's other norms.
    key: configuration key that turns the norm on; empty: it is always on.
    eps: None: the epsilon of the family's other norms.
    """

    kind: Literal["rms", "layer"] | None = None
    over: Literal["head", "heads", "all"] = "head"
    after_rope: bool = False
    weighted: bool = True
    bias: bool = False
    key: str = ""
    eps: float | None = None


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A row: the ways in which a family differs from llama.

    Names and values
    name: value of `DecoderSpec.family`.
    model_types, architectures: the values in a configuration that select this family.
    wrappers: model types of multimodal models whose text model is of this family.
    keys: usual name → own name of a configuration's key, in addition to those that transformers' class maps.
    fixed: values under usual names that the architecture has regardless of its configuration.
    defaults: values under usual names for absent keys, in addition to those of transformers' class.
    neutral: keys that change nothing for this family, and why; see `neutral.txt`.
    usual: function that returns a configuration under the usual names, where `keys` cannot express it.
    tied_by_default: whether the head is the embedding, unless the configuration says otherwise.

    Norms
    norm: type of the norms. norm_bias: whether they have a bias. norm_weighted: whether they have weights.
    norm_offset: number that is added to their weights.
    eps_default: default epsilon of norms.
    order: see `DecoderSpec.order`; None: `sandwich` with sandwich_norms, else `pre`.
    sandwich_norms: whether the outputs of attention and MLP are normalized too, or the key that says so.
    qk_norm: whether and how queries and keys are normalized.
    inner_norms: whether the output of the heads and the inner numbers of MLPs are normalized.
    final_norm: whether a norm precedes the head.

    Embedding and head
    scale_embedding: whether embeddings are multiplied with the root of the hidden size.
    embed_norm: whether embeddings are normalized.
    learned_positions: the first row of the table of positions that a token takes; None: there is no such table.
    token_types: key with the number of rows of the segment embedding, which is added to each token; empty: there is
        none.
    encoder: every token sees its whole sequence, and the model has no head: its result is the last hidden state.
    class_heads: classification heads by the ending of the architecture's name.

    Biases and scalars
    qkv_bias: whether queries, keys and values have a bias, unless `attention_bias` says otherwise.
    biases: bias → key of the configuration, or whether the bias exists: `query`, `key`, `value`, `out`, `mlp`, `down`,
        `head`. Default: `attention_bias` for the first four, `mlp_bias` for the MLP, none for the head.
    scalars: scalar → key of the configuration: `embed`, `residual`, `attention` (replaces 1/sqrt(head size)), `logits`;
        `1/key` divides.

    Attention
    heads: other operations around attention, as a template; norms and biases come from the fields here.
    clip: key with the number c such that queries, keys and values are clamped to -c..c; empty: there is no such key.
    rotary: whether queries and keys have a rotary embedding. interleaved: whether the numbers of a rotated pair are
        neighbours.
    unrotated: layers without rotary embedding: `full`: full-attention layers of a model in which other layers slide;
        `list`: layers with 0 in `no_rope_layers`; empty: none.
    full_every: when the configuration has no layer pattern, every n-th layer sees everything and the others slide; 0:
        none slides.
    first_full: the first layer is a full-attention layer.
    windowed: key that must be true for layers to slide; empty: there is no such key.
    sinks: whether every head has a learned logit that joins its softmax, see `AttentionSpec`.
    temperature: key of `rope_parameters` with the growth of queries beyond `original_max_position_embeddings`.
    latent: whether attention is latent (MLA).
    state: function that returns the state of a layer, None for a layer with attention.
    side_by_side: layers with a state also have attention, on the same input.

    MLP and experts
    activation_tensors: see `MLPSpec`.
    has_mlp: whether layers have one; without it, a layer is its mixer alone.
    gated: whether MLPs have a gate. fused_gate_up: whether the checkpoint stores gate and up as one matrix.
    expert_names: see `ExpertsSpec`; None: no experts.
    renormalize: whether expert weights add up to one, unless the configuration says otherwise.
    routing: routing of the experts, see `families.experts._routing`; or a function of configuration, number of experts and
        experts a token.
    experts: further fields of `ExpertsSpec` (`shared_gate`, `bias`, `router_bias`, ...).

    Where data does not suffice
    weights: names and layout of tensors in checkpoints; or a function of configuration and model.
    names: parts of tensor names in checkpoints, and their canonical forms (older than `weights`).
    block: function that returns the block of a layer, from the one that the fields above give.
    adjust: function that returns the model, from the one that everything above gives.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    wrappers: tuple[str, ...] = ()
    keys: Mapping[str, Keys] = {}
    fixed: Mapping[str, Any] = {}
    defaults: Mapping[str, Any] = {}
    neutral: Mapping[str, str] = {}
    usual: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    tied_by_default: bool = False

    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    norm_weighted: bool = True
    norm_offset: float = 0.0
    eps_default: float = 1e-6
    order: BlockOrder | None = None
    sandwich_norms: bool | str = False
    qk_norm: bool | HeadNorm = False
    inner_norms: bool = False
    final_norm: bool = True

    scale_embedding: bool = False
    embed_norm: bool = False
    learned_positions: int | None = None
    token_types: str = ""
    encoder: bool = False
    class_heads: Heads = OF_DECODERS

    qkv_bias: bool = False
    biases: Mapping[str, str | bool] = {}
    scalars: Mapping[str, str] = {}

    heads: HeadsSpec = HeadsSpec()
    clip: str = ""
    rotary: bool = True
    interleaved: bool = False
    unrotated: Literal["", "full", "list"] = ""
    full_every: int = 0
    first_full: bool = False
    windowed: str = ""
    sinks: bool = False
    temperature: str = ""
    latent: bool = False
    state: Callable[[Mapping[str, Any], int], StateSpec | None] | None = None
    side_by_side: bool = False

    activation_tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    has_mlp: bool = True
    gated: bool = True
    fused_gate_up: bool = False
    expert_names: tuple[str, str, str, str] | None = None
    renormalize: bool = True
    routing: str | Callable[[Mapping[str, Any], int, int], RoutingSpec] = "softmax"
    experts: Mapping[str, Any] = {}

    weights: tuple[WeightRule, ...] | Callable[[Mapping[str, Any], DecoderSpec], tuple[WeightRule, ...]] = ()
    names: tuple[tuple[str, str], ...] = ()
    block: Callable[[Mapping[str, Any], int, BlockSpec], BlockSpec] | None = None
    adjust: Callable[[Mapping[str, Any], DecoderSpec], DecoderSpec] | None = None

"""The table of model families, and how a configuration becomes a `DecoderSpec`. Torch-free.

Owns: one row a family; the reading of Hugging Face style configurations. Never does: hold weights or run anything.
Called by: config (facts, selection, memory plan), models, the dummy loader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from core.api.checkpoint import CheckpointManifest, TensorInfo
from core.api.decoder_spec import BlockSpec, DecoderSpec, ExpertsSpec
from core.api.errors import UserError, nearest
from core.api.specs import AttentionSpec, LatentSpec, LayerSpec, RoutingSpec, StateSpec
from core.models import lfm2
from core.models.configuration import positive as _positive
from core.models.rope import rope_spec, score_stretch

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


NEVER = 1 << 30
"""`full_every` of a family whose layers all slide when the configuration has a window."""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """The ways in which a family differs from llama.

    name: as `DecoderSpec.family` says it.
    model_types, architectures: the values in a configuration that mean this family.
    tied_by_default: whether the head is the embedding, unless the configuration says otherwise.
    norm_offset: added to the weights of norms.
    qk_norm: whether queries and keys are normalized.
    sandwich_norms: whether attention and MLP are normalized behind too.
    scale_embedding: whether embeddings are multiplied with the root of the hidden size.
    qkv_bias: whether queries, keys and values have a bias, unless the configuration says otherwise.
    full_every: when the configuration has no layer pattern, every n-th layer sees everything and the others slide; 0: none
        slides.
    eps_default: of norms.
    usual: a configuration under the usual names.
    state: the state of a layer, None for a layer with attention.
    names: parts of tensor names in checkpoints, and their canonical forms.
    expert_names: see `ExpertsSpec`.
    renormalize: whether expert weights add up to one, unless the configuration says otherwise.
    latent: whether attention is latent (MLA).
    routing: of the experts, see `_routing`.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    tied_by_default: bool = False
    norm_offset: float = 0.0
    qk_norm: bool = False
    sandwich_norms: bool = False
    scale_embedding: bool = False
    qkv_bias: bool = False
    full_every: int = 0
    eps_default: float = 1e-6
    usual: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    state: Callable[[Mapping[str, Any], int], StateSpec | None] | None = None
    names: tuple[tuple[str, str], ...] = ()
    expert_names: tuple[str, str, str, str] | None = None
    renormalize: bool = True
    latent: bool = False
    routing: Literal["softmax", "corrected_sigmoid"] = "softmax"


FAMILIES: tuple[Family, ...] = (
    Family(name="llama", model_types=("llama",), architectures=("LlamaForCausalLM",)),
    Family(
        name="gemma3",
        model_types=("gemma3_text",),
        architectures=("Gemma3ForCausalLM",),
        tied_by_default=True,
        norm_offset=1.0,
        qk_norm=True,
        sandwich_norms=True,
        scale_embedding=True,
        full_every=6,
    ),
    Family(
        name="mixtral",
        model_types=("mixtral",),
        architectures=("MixtralForCausalLM",),
        full_every=NEVER,
        eps_default=1e-5,
        expert_names=("block_sparse_moe", "w1", "w3", "w2"),
    ),
    Family(
        name="qwen3_moe",
        model_types=("qwen3_moe",),
        architectures=("Qwen3MoeForCausalLM",),
        qk_norm=True,
        expert_names=("mlp", "gate_proj", "up_proj", "down_proj"),
        renormalize=False,
    ),
    Family(
        name="deepseek_v2",
        model_types=("deepseek_v2",),
        architectures=("DeepseekV2ForCausalLM",),
        latent=True,
        expert_names=("mlp", "gate_proj", "up_proj", "down_proj"),
        renormalize=False,
    ),
    Family(
        name="deepseek_v3",
        model_types=("deepseek_v3",),
        architectures=("DeepseekV3ForCausalLM",),
        latent=True,
        expert_names=("mlp", "gate_proj", "up_proj", "down_proj"),
        routing="corrected_sigmoid",
    ),
    Family(
        name="lfm2",
        model_types=("lfm2",),
        architectures=("Lfm2ForCausalLM",),
        tied_by_default=True,
        qk_norm=True,
        usual=lfm2.usual,
        state=lfm2.state,
        names=lfm2.NAMES,
    ),
)


def family_for(hf_config: Mapping[str, Any]) -> Family:
    """The row that serves a configuration. Raises UserError naming the nearest known architecture."""
    model_type = str(hf_config.get("model_type") or "")
    architectures = [str(name) for name in hf_config.get("architectures") or ()]
    for family in FAMILIES:
        if model_type in family.model_types or any(name in family.architectures for name in architectures):
            return family
    known: list[str] = []
    for family in FAMILIES:
        known.extend(family.model_types)
        known.extend(family.architectures)
    what = model_type or "(none given)"
    if architectures:
        what = architectures[0]
    raise UserError(f"Unknown model architecture '{what}'; known are: {', '.join(known)}.{nearest(what, known)}")


def renamed(tensors: Mapping[str, TensorInfo], canonical_name: Callable[[str], str]) -> dict[str, TensorInfo]:
    """A checkpoint's tensors under the names that `canonical_name` gives them."""
    result = {}
    for name, info in tensors.items():
        new_name = canonical_name(name)
        result[new_name] = msgspec.structs.replace(info, name=new_name)
    return result


def canonical(manifest: CheckpointManifest) -> CheckpointManifest:
    """The checkpoint of a family of the table, its tensors under canonical names."""
    names = family_for(manifest.config).names
    if not names:
        return manifest

    def canonical_name(name: str) -> str:
        for own, usual in names:
            name = name.replace(f".{own}.", f".{usual}.")
        return name

    return msgspec.structs.replace(manifest, tensors=renamed(manifest.tensors, canonical_name))


def decoder_spec(hf_config: Mapping[str, Any], family: Family | None = None) -> DecoderSpec:
    """Resolve a configuration. Raises UserError for missing or impossible values.

    family: a row that the table need not have; None: the table's row for the configuration.
    """
    family = family or family_for(hf_config)
    if family.usual is not None:
        hf_config = family.usual(hf_config)
    num_layers = _positive(hf_config, "num_hidden_layers")
    hidden = _positive(hf_config, "hidden_size")
    blocks = [_block(family, hf_config, index) for index in range(num_layers)]
    return DecoderSpec(
        family=family.name,
        hidden_size=hidden,
        intermediate_size=_positive(hf_config, "intermediate_size"),
        vocab_size=_positive(hf_config, "vocab_size"),
        blocks=tuple(blocks),
        eps=float(hf_config.get("rms_norm_eps", family.eps_default)),
        activation=_activation(hf_config),
        max_position=_positive(hf_config, "max_position_embeddings", 2048),
        tied=bool(hf_config.get("tie_word_embeddings", family.tied_by_default)),
        norm_offset=family.norm_offset,
        qk_norm=family.qk_norm,
        qkv_bias=bool(hf_config.get("attention_bias", family.qkv_bias)),
        out_bias=bool(hf_config.get("attention_bias", False)),
        mlp_bias=bool(hf_config.get("mlp_bias", False)),
        sandwich_norms=family.sandwich_norms,
        embed_scale=float(hidden) ** 0.5 if family.scale_embedding else 1.0,
        logit_cap=hf_config.get("final_logit_softcapping"),
    )


def layer_specs(hf_config: Mapping[str, Any]) -> list[LayerSpec]:
    """Every matrix of the model, once (a tied head is the embedding)."""
    return list(decoder_spec(hf_config).linears())


def tensor_shapes(hf_config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint of this model, by canonical name."""
    return decoder_spec(hf_config).tensor_shapes()


def _block(family: Family, hf_config: Mapping[str, Any], index: int) -> BlockSpec:
    experts = _experts(family, hf_config, index)
    state = family.state(hf_config, index) if family.state else None
    if state is not None:
        return BlockSpec(state, None, experts)
    mixer = _latent(hf_config) if family.latent else _attention(family, hf_config, index)
    rope = rope_spec(hf_config, _is_full(family, hf_config, index), interleaved=family.latent)
    return BlockSpec(mixer, rope, experts)


def _attention(family: Family, hf_config: Mapping[str, Any], index: int) -> AttentionSpec:
    num_heads = _positive(hf_config, "num_attention_heads")
    num_kv_heads = _positive(hf_config, "num_key_value_heads", num_heads)
    usual_size = _positive(hf_config, "hidden_size") // num_heads
    head_size = _positive(hf_config, "head_dim", usual_size)
    if num_heads % num_kv_heads:
        raise UserError(
            f"num_attention_heads is {num_heads}, not a multiple of num_key_value_heads ({num_kv_heads}); "
            "the configuration of the checkpoint is damaged."
        )
    if head_size % 2:
        raise UserError(f"head_dim is {head_size}; rotary embeddings need an even head size.")
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        head_size_v=head_size,
        scale=_scale(hf_config, head_size),
        window=_window(family, hf_config, index),
        cap=hf_config.get("attn_logit_softcapping"),
    )


def _latent(hf_config: Mapping[str, Any]) -> LatentSpec:
    rope_size = _positive(hf_config, "qk_rope_head_dim")
    nope_size = _positive(hf_config, "qk_nope_head_dim")
    if rope_size % 2:
        raise UserError(f"qk_rope_head_dim is {rope_size}; rotary embeddings need an even size.")
    q_rank = None
    if hf_config.get("q_lora_rank") is not None:
        q_rank = _positive(hf_config, "q_lora_rank")
    return LatentSpec(
        num_heads=_positive(hf_config, "num_attention_heads"),
        rank=_positive(hf_config, "kv_lora_rank"),
        rope_size=rope_size,
        head_size_nope=nope_size,
        head_size_v=_positive(hf_config, "v_head_dim"),
        scale=score_stretch(hf_config) / math.sqrt(nope_size + rope_size),
        q_rank=q_rank,
    )


def _experts(family: Family, hf_config: Mapping[str, Any], index: int) -> ExpertsSpec | None:
    """The experts of a layer; None: it has a plain MLP."""
    if family.expert_names is None or not _is_sparse(hf_config, index):
        return None
    count = _num_experts(hf_config)
    top_k = _positive(hf_config, "num_experts_per_tok", 2)
    if top_k > count:
        raise UserError(f"num_experts_per_tok is {top_k}; the model has {count} experts a layer.")
    inner = _positive(hf_config, "moe_intermediate_size", hf_config.get("intermediate_size"))
    num_shared = hf_config.get("n_shared_experts") or 0
    routing = _routing(family, hf_config, count, top_k)
    shared = inner * num_shared
    corrected = family.routing == "corrected_sigmoid"
    return ExpertsSpec(count, inner, routing, family.expert_names, shared, corrected)


def _is_sparse(hf_config: Mapping[str, Any], index: int) -> bool:
    """Every `decoder_sparse_step`-th layer has experts, or every `moe_layer_freq`-th one from `first_k_dense_replace` on;
    the ones of `mlp_only_layers` never do."""
    plain = hf_config.get("mlp_only_layers") or ()
    first = hf_config.get("first_k_dense_replace") or 0
    if index in plain or index < first:
        return False
    step = _positive(hf_config, "decoder_sparse_step", 1)
    frequency = _positive(hf_config, "moe_layer_freq", 1)
    return (index + 1) % step == 0 and index % frequency == 0


def _num_experts(hf_config: Mapping[str, Any]) -> int:
    """The number of experts, under whichever name the configuration has it."""
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        if hf_config.get(name) is not None:
            return _positive(hf_config, name)
    return _positive(hf_config, "num_local_experts")


def _routing(family: Family, hf_config: Mapping[str, Any], count: int, top_k: int) -> RoutingSpec:
    """softmax: scores of all experts; with `topk_method` greedy no groups. corrected_sigmoid: a bias for each expert counts
    in the choice (DeepSeek-V3, arXiv 2412.19437)."""
    renormalize = bool(hf_config.get("norm_topk_prob", family.renormalize))
    factor = float(hf_config.get("routed_scaling_factor") or 1.0)
    groups = 1
    top_groups = 1
    if hf_config.get("topk_method") != "greedy":
        groups = hf_config.get("n_group") or 1
        top_groups = hf_config.get("topk_group") or groups
    group_size = count // groups
    if count % groups or not 1 <= top_groups <= groups or top_k > group_size * top_groups:
        raise UserError(
            f"n_group is {groups} and topk_group {top_groups}: {count} experts are not that many equal groups, or the "
            f"chosen groups have no {top_k} experts; the configuration of the checkpoint is damaged."
        )
    if family.routing == "corrected_sigmoid":
        return RoutingSpec(top_k, "sigmoid", renormalize, factor, groups, top_groups, "best_two")
    if renormalize and factor != 1.0:
        raise UserError(
            f"routed_scaling_factor is {factor} and norm_topk_prob is set: {family.name} models do one or the other; "
            "set one of them with --hf-overrides."
        )
    return RoutingSpec(top_k, "softmax", renormalize, factor, groups, top_groups)


def _activation(hf_config: Mapping[str, Any]) -> str:
    name = hf_config.get("hidden_activation") or hf_config.get("hidden_act") or "silu"
    if name not in ACTIVATIONS:
        raise UserError(
            f"hidden_act is '{name}'; known are: {', '.join(ACTIVATIONS)}.{nearest(str(name), ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def _scale(hf_config: Mapping[str, Any], head_size: int) -> float:
    scalar = hf_config.get("query_pre_attn_scalar")
    if scalar is None:
        scalar = head_size
    return 1.0 / math.sqrt(scalar)


def _is_full(family: Family, hf_config: Mapping[str, Any], index: int) -> bool:
    kinds = hf_config.get("layer_types")
    if kinds:
        return bool(kinds[index % len(kinds)] == "full_attention")
    pattern = hf_config.get("sliding_window_pattern") or hf_config.get("_sliding_window_pattern") or family.full_every
    return not pattern or (index + 1) % pattern == 0


def _window(family: Family, hf_config: Mapping[str, Any], index: int) -> int | None:
    if not _is_full(family, hf_config, index):
        return hf_config.get("sliding_window")
    if hf_config.get("use_sliding_window") and not hf_config.get("layer_types"):
        raise UserError(
            f"use_sliding_window is set without layer_types; {family.name} models run without a window here."
        )
    return None

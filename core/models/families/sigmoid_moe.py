"""Experts behind sigmoid routers, and other routers of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from core.api.block_spec import BlockSpec, HeadsSpec, NormSpec, TemperatureSpec
from core.api.decoder_spec import DecoderSpec
from core.api.errors import UserError
from core.api.specs import AttentionSpec, RoutingSpec
from core.models.configuration import Configuration, configuration
from core.models.families import lfm2
from core.models.families.row import NEVER, Family, HeadNorm
from core.models.weight_rules import Rename, Stacked, WeightRule, experts, modules

BY_KIND = {"rope_parameters.*_attention": "layers of that kind read it"}
"""Of models whose rotary embeddings differ by the kind of a layer."""
EXPERTS = ("mlp", "gate_proj", "up_proj", "down_proj")


def llama4_sizes(given: Mapping[str, Any]) -> Configuration:
    """Llama 4 calls the inner size of experts `intermediate_size`; its lists of layers follow from two steps."""
    config = configuration(given)
    count = config.positive("num_hidden_layers")
    step = config.positive("interleave_moe_layer_step", 1)
    interval = config.positive("no_rope_layer_interval", 4)
    sparse = config.list_of("moe_layers", int)
    if config.get("moe_layers") is None:
        sparse = list(range(step - 1, count, step))
    rotated = config.list_of("no_rope_layers", int)
    if not rotated:
        rotated = [int((index + 1) % interval != 0) for index in range(count)]
    if len(rotated) < count:
        config.fail("no_rope_layers", rotated, f"0 or 1 for each of {count} layers")
    kinds = config.list_of("layer_types", str)
    if not kinds:
        kinds = ["chunked_attention" if rotates else "full_attention" for rotates in rotated]
    inner = config.positive("intermediate_size")
    sizes = {
        "moe_intermediate_size": inner,
        "shared_expert_intermediate_size": inner,
        "intermediate_size": config.positive("intermediate_size_mlp"),
    }
    return config.overlaid({**sizes, "moe_layers": sparse, "no_rope_layers": rotated, "layer_types": kinds})


def llama4_routing(config: Mapping[str, Any], count: int, top_k: int) -> RoutingSpec:
    """The sigmoid of the largest logits."""
    return RoutingSpec(top_k, "sigmoid", renormalize=False)


def llama4_heads(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Layers with rotary embedding may norm queries and keys behind it; queries of the others have a temperature."""
    config = configuration(hf_config)
    temperature = None
    if config.flag("attn_temperature_tuning", True):
        interval = config.positive("floor_scale", 8192)
        temperature = TemperatureSpec(config.number("attn_scale", 0.1), interval, shift=1)
    unrotated = msgspec.structs.replace(spec.heads, norm=None, temperature=temperature)
    blocks = []
    for block in spec.blocks:
        heads = unrotated if block.rope is None else None
        blocks.append(msgspec.structs.replace(block, heads=heads))
    return msgspec.structs.replace(spec, blocks=tuple(blocks))


def sparse_mixer(hf_config: Mapping[str, Any], count: int, top_k: int) -> RoutingSpec:
    """Phi's."""
    jitter = configuration(hf_config).number("router_jitter_noise", 0.01)
    return RoutingSpec(top_k, "sparse_mixer", renormalize=False, jitter=jitter)


def lfm2_names(given: Mapping[str, Any]) -> Configuration:
    """LFM2's configuration with experts: `tie_embedding` is the older name."""
    config = configuration(given)
    tied = config.flag("tie_word_embeddings", True)
    num_layers = config.positive("num_hidden_layers")
    kinds = config.list_of("layer_types", str)
    if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "conv"}:
        config.fail("layer_types", kinds, f"full_attention or conv for each of {num_layers} layers")
    return config.overlaid({"tie_word_embeddings": config.flag("tie_embedding", tied)})


def lfm2_routing(hf_config: Mapping[str, Any], count: int, top_k: int) -> RoutingSpec:
    """Sigmoids, of which the chosen ones may be divided by their sum."""
    config = configuration(hf_config)
    renormalize = config.flag("norm_topk_prob", True)
    factor = config.number("routed_scaling_factor", 1.0)
    return RoutingSpec(top_k, "sigmoid", renormalize, factor, epsilon=1e-6 if renormalize else 0.0)


def lfm2_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """The bias in the choice is optional."""
    if block.experts is None or configuration(hf_config).flag("use_expert_bias", True):
        return block
    own = msgspec.structs.replace(block.experts, correction=False)
    return msgspec.structs.replace(block, experts=own)


def afmoe_embedding(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Embeddings may be scaled by the root of their size."""
    if not configuration(hf_config).flag("mup_enabled", False):
        return spec
    return msgspec.structs.replace(spec, embed_scale=math.sqrt(spec.hidden_size))


def dbrx_names(given: Mapping[str, Any]) -> Configuration:
    """DBRX has the keys of attention and experts in mappings of their own."""
    config = configuration(given)
    attention = config.mapping("attn_config")
    inner = config.mapping("ffn_config")
    size = inner.positive("ffn_hidden_size", 3584)
    power = inner.optional_number("moe_normalize_expert_weights")
    if "moe_normalize_expert_weights" not in inner:
        power = 1.0
    if power not in (None, 1.0):
        inner.fail("moe_normalize_expert_weights", power, "1 (weights are divided by their sum) or null")
    activation = inner.mapping("ffn_act_fn").text("name", "silu")
    values = {
        "num_key_value_heads": attention.positive("kv_n_heads", 1),
        "clip_qkv": attention.optional_number("clip_qkv"),
        "intermediate_size": size,
        "moe_intermediate_size": size,
        "num_local_experts": inner.positive("moe_num_experts", 4),
        "num_experts_per_tok": inner.positive("moe_top_k", 1),
        "norm_topk_prob": power is not None,
        "hidden_act": activation,
    }
    theta = attention.optional_number("rope_theta", 1e-6)
    if theta is not None and not {"rope_theta", "rope_parameters", "rope_scaling"} & set(config):
        values["rope_theta"] = theta  # DBRX's own code reads it, which transformers 5 forgets
    return config.overlaid(values)


def cohere_sizes(given: Mapping[str, Any]) -> Configuration:
    """The first dense layers have sizes of their own."""
    config = configuration(given)
    inner = config.positive("intermediate_size")
    dense = config.positive("prefix_dense_intermediate_size", inner)
    values: dict[str, Any] = {"moe_intermediate_size": inner, "intermediate_size": dense}
    kinds = config.list_of("layer_types", str)
    first = config.count("first_k_dense_replace", 0)
    patterns = [config.positive("prefix_dense_sliding_window_pattern", 1)] * first
    places = list(range(first))
    for place in range(config.positive("num_hidden_layers") - first):
        patterns.append(config.positive("sliding_window_pattern", 4))
        places.append(place)
    if not kinds:
        for place, pattern in zip(places, patterns, strict=True):
            kinds.append("sliding_attention" if (place + 1) % pattern else "full_attention")
    values["layer_types"] = kinds
    return config.overlaid(values)


def cohere_routing(hf_config: Mapping[str, Any], count: int, top_k: int) -> RoutingSpec:
    """A softmax of the chosen logits, or sigmoids of them."""
    config = configuration(hf_config)
    scores = config.choice("expert_selection_fn", {"softmax": "softmax", "sigmoid": "sigmoid"}, "softmax")
    renormalize = config.flag("norm_topk_prob", True)
    factor = _shared_factor(config)
    if scores == "softmax":
        return RoutingSpec(top_k, "softmax", True, factor)
    return RoutingSpec(top_k, "sigmoid", renormalize, factor)


def _shared_factor(config: Configuration) -> float:
    """Chosen and shared experts are added, or averaged."""
    factor = config.choice("shared_expert_combination_strategy", {"average": 0.5, "sum": 1.0}, "average")
    return factor if config.count("num_shared_experts", 0) else 1.0


def cohere_norms(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Its norms centre unless they have an epsilon by that name; shared experts count as the chosen ones do."""
    config = configuration(hf_config)
    norm = spec.norm
    if config.optional_number("rms_norm_eps") is None:
        norm = NormSpec(kind="layer", eps=config.number("layer_norm_eps", 1e-5))
    shared = msgspec.structs.replace(spec.mlp, out_scale=_shared_factor(config))
    blocks = []
    for block in spec.blocks:
        mlp = None if block.experts is None else shared
        blocks.append(msgspec.structs.replace(block, mlp=mlp))
    return msgspec.structs.replace(spec, norm=norm, blocks=tuple(blocks))


def mimo_windows(given: Mapping[str, Any]) -> Configuration:
    """The older name of windows leaves the query out; the first and every sixth layer see everything."""
    config = configuration(given)
    values: dict[str, Any] = {}
    kinds = config.list_of("layer_types", str)
    if not kinds:
        for index in range(config.positive("num_hidden_layers")):
            is_full = index == 0 or (index + 1) % 6 == 0
            kinds.append("full_attention" if is_full else "sliding_attention")
        values["layer_types"] = kinds
    if config.get("sliding_window_size") is not None:
        values["sliding_window"] = config.positive("sliding_window_size") + 1
    if config.get("routed_scaling_factor") is None:
        values["routed_scaling_factor"] = 1.0
    return config.overlaid(values)


def mimo_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Values have a size and a factor of their own; layers that slide have twice the keys, and sinks."""
    config = configuration(hf_config)
    mixer = block.mixer
    assert isinstance(mixer, AttentionSpec), "every layer attends"
    slides = mixer.window is not None
    own = msgspec.structs.replace(
        mixer,
        num_kv_heads=mixer.num_kv_heads * (2 if slides else 1),
        head_size_v=config.positive("v_head_dim", 128),
        sinks=slides,
    )
    factor = config.number("attention_value_scale", 1.0)
    return msgspec.structs.replace(block, mixer=own, mixer_scale=factor)


def laguna_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Layers differ in their heads."""
    config = configuration(hf_config)
    counts = config.list_of("num_attention_heads_per_layer", int)
    mixer = block.mixer
    if not counts or not isinstance(mixer, AttentionSpec):
        return block
    if len(counts) != config.positive("num_hidden_layers") or any(
        one < 1 or one % mixer.num_kv_heads for one in counts
    ):
        expected = f"a multiple of {mixer.num_kv_heads} (num_key_value_heads) for each layer"
        config.fail("num_attention_heads_per_layer", counts, expected)
    own = msgspec.structs.replace(mixer, num_heads=counts[index])
    return msgspec.structs.replace(block, mixer=own)


def laguna_gates(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """A gate for each head, or for each number of its output."""
    gating = hf_config.get("gating", True)
    gates = {True: "own_heads", "per-head": "own_heads", "per-element": "own"}
    if gating not in gates:
        raise UserError(f"gating is {gating!r} in the model's configuration; expected true, per-head or per-element.")
    heads = msgspec.structs.replace(spec.heads, gate=gates[gating], opening="softplus")
    return msgspec.structs.replace(spec, heads=heads)


def flat_expert(own: str, piece: str, *, transposed: bool = False) -> tuple[WeightRule, ...]:
    """One matrix of DBRX's experts, [experts * inner, hidden] each."""
    pattern = rf"(model\.layers\.\d+)\.ffn\.experts\.mlp\.{own}"
    to = r"\1.mlp.experts.{expert}.{piece}.weight"
    return (Stacked(pattern, to, (piece,), transposed=transposed, flat=True),)


def by_kind(full: float, sliding: float, full_part: float, sliding_part: float) -> dict[str, Any]:
    """The rotary embedding of absent keys: bases and parts of the head, of layers that see everything and of others."""
    return {
        "full_attention": {"rope_type": "default", "rope_theta": full, "partial_rotary_factor": full_part},
        "sliding_attention": {"rope_type": "default", "rope_theta": sliding, "partial_rotary_factor": sliding_part},
    }


ROWS = (
    Family(
        name="llama4",
        model_types=("llama4_text",),
        architectures=("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
        wrappers=("llama4",),
        usual=llama4_sizes,
        defaults={"attention_chunk_size": 8192},
        interleaved=True,
        unrotated="list",
        qk_norm=HeadNorm(kind="rms", after_rope=True, weighted=False, key="use_qk_norm"),
        biases={"mlp": False},
        expert_names=EXPERTS,
        routing=llama4_routing,
        experts={"weight_inputs": True},
        adjust=llama4_heads,
        weights=(
            *modules(
                ("feed_forward.router", "mlp.gate"),
                ("feed_forward.shared_expert", "mlp.shared_experts"),
                ("feed_forward", "mlp"),
            ),
            *experts("mlp", r"experts\.gate_up_proj", r"experts\.down_proj", transposed=True),
        ),
    ),
    Family(
        name="phimoe",
        model_types=("phimoe",),
        architectures=("PhimoeForCausalLM", "PhiMoEForCausalLM"),
        norm="layer",
        norm_bias=True,
        full_every=NEVER,
        biases={"mlp": False, "head": "lm_head_bias"},
        fixed={"num_experts_per_tok": 2},
        expert_names=("block_sparse_moe", "w1", "w3", "w2"),
        routing=sparse_mixer,
        neutral={
            "input_jitter_noise": "of training",
            "original_max_position_embeddings": "its rotary parameters have it",
        },
    ),
    Family(
        name="lfm2_moe",
        model_types=("lfm2_moe",),
        architectures=("Lfm2MoeForCausalLM",),
        neutral=lfm2.NEUTRAL,
        usual=lfm2_names,
        keys={"first_k_dense_replace": "num_dense_layers"},
        tied_by_default=True,
        qk_norm=True,
        state=lfm2.state,
        biases={"mlp": False},
        expert_names=EXPERTS,
        routing=lfm2_routing,
        experts={"correction": True},
        block=lfm2_block,
        weights=(
            Rename(r"feed_forward\.expert_bias$", "mlp.gate.e_score_correction_bias"),
            *modules(
                *lfm2.NAMES,
                ("feed_forward", "mlp"),
                ("w1", "gate_proj"),
                ("w3", "up_proj"),
                ("w2", "down_proj"),
            ),
        ),
    ),
    Family(
        name="afmoe",
        model_types=("afmoe",),
        architectures=("AfmoeForCausalLM",),
        keys={
            "first_k_dense_replace": "num_dense_layers",
            "routed_scaling_factor": "route_scale",
            "sliding_window_pattern": "global_attn_every_n_layers",
        },
        sandwich_norms=True,
        qk_norm=True,
        unrotated="full",
        heads=HeadsSpec(gate="own"),
        biases={"mlp": False},
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
        adjust=afmoe_embedding,
        weights=(
            Rename(r"mlp\.expert_bias$", "mlp.gate.e_score_correction_bias"),
            *modules(
                ("mlp.router.gate", "mlp.gate"),
                ("pre_mlp_layernorm", "pre_feedforward_layernorm"),
                ("post_mlp_layernorm", "post_feedforward_layernorm"),
            ),
        ),
    ),
    Family(
        name="dbrx",
        model_types=("dbrx",),
        architectures=("DbrxForCausalLM",),
        usual=dbrx_names,
        neutral={
            "*.id2label": "of classifiers",
            "*.label2id": "of classifiers",
            "*_config.hidden_size": "the model's",
            "*.*_pdrop": "of training",
            "*.moe_jitter_eps": "of training",
            "*.moe_loss_weight": "of training",
        },
        norm="layer",
        eps_default=1e-5,
        heads=HeadsSpec(fused="rows"),
        clip="clip_qkv",
        biases={"query": False, "key": False, "value": False, "out": False, "mlp": False},
        expert_names=EXPERTS,
        weights=(
            *modules(
                ("transformer.wte", "model.embed_tokens"),
                ("transformer.norm_f", "model.norm"),
                ("transformer.blocks", "model.layers"),
                ("norm_attn_norm.norm_1", "input_layernorm"),
                ("norm_attn_norm.norm_2", "post_attention_layernorm"),
                ("norm_attn_norm.attn.Wqkv", "self_attn.qkv_proj"),
                ("norm_attn_norm.attn.out_proj", "self_attn.o_proj"),
                ("ffn.router.layer", "mlp.gate"),
            ),
            *flat_expert("w1", "gate_proj"),
            *flat_expert("v1", "up_proj"),
            *flat_expert("w2", "down_proj", transposed=True),
        ),
    ),
    Family(
        name="cohere2_moe",
        model_types=("cohere2_moe",),
        architectures=("Cohere2MoeForCausalLM",),
        usual=cohere_sizes,
        defaults={"rope_parameters": None},
        order="parallel",
        interleaved=True,
        unrotated="full",
        tied_by_default=True,
        biases={"mlp": False},
        scalars={"logits": "logit_scale"},
        expert_names=EXPERTS,
        routing=cohere_routing,
        adjust=cohere_norms,
    ),
    Family(
        name="mimo_v2_flash",
        model_types=("mimo_v2_flash",),
        architectures=("MiMoV2FlashForCausalLM",),
        usual=mimo_windows,
        defaults={"first_k_dense_replace": 1, "rope_parameters": by_kind(5e6, 1e4, 0.334, 0.334)},
        neutral=BY_KIND,
        biases={"out": False, "mlp": False},
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
        block=mimo_block,
        weights=modules(("self_attn.attention_sink_bias", "self_attn.sinks")),
    ),
    Family(
        name="laguna",
        model_types=("laguna",),
        architectures=("LagunaForCausalLM",),
        keys={"routed_scaling_factor": "moe_routed_scaling_factor"},
        defaults={"first_k_dense_replace": 1, "rope_parameters": by_kind(5e5, 1e4, 0.5, 1.0)},
        neutral={
            **BY_KIND,
            "moe_router_logit_softcapping = 0.0": "0 is none",
            "moe_apply_router_weight_on_input = false": "the only way",
        },
        qk_norm=True,
        biases={"mlp": False},
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
        block=laguna_block,
        adjust=laguna_gates,
        weights=modules(
            ("self_attn.g_proj", "self_attn.gate_proj"),
            ("mlp.shared_expert", "mlp.shared_experts"),
            ("mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias"),
        ),
    ),
    Family(
        name="hy_v3",
        model_types=("hy_v3",),
        architectures=("HYV3ForCausalLM",),
        keys={"routed_scaling_factor": "router_scaling_factor"},
        defaults={"first_k_dense_replace": 1},
        neutral={"enable_moe_fp32_combine": "sums are float32"},
        qk_norm=True,
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
        weights=(
            Rename(r"mlp\.expert_bias$", "mlp.gate.e_score_correction_bias"),
            *modules(("mlp.router.gate", "mlp.gate"), ("mlp.shared_mlp", "mlp.shared_experts")),
        ),
    ),
)

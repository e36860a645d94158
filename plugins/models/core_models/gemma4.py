"""Gemma 4: values without a weight in their norm, full attention with heads of its own, a factor after each layer.

The small models have embeddings for each layer, and their last layers the keys and values of an earlier one. The model with
experts has them beside its MLPs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core.api.errors import UserError
from core.api.specs import AttentionSpec
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import EXPERTS, Family
from core_runtime.models.weight_rules import Copied, Ignored, Rename, WeightRule, experts
from core_runtime.specs.block_spec import BlockSpec, HeadsSpec
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.layer_inputs import LayerInputs

GLOBAL_HEAD: Final = 512
"""Size of a head of layers with full attention, where the configuration has none."""
EVERY: Final = 6
"""Every sixth layer has full attention, and the last one."""
ROPE: Final = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
"""Rotary parameters of a configuration without any."""

MEDIA: Final = ("image_token_id", "video_token_id", "audio_token_id")
"""Tokens that stand for rows of media, from the whole model's configuration."""


def usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration with the kind of each layer, and its rotary parameters as usual ones.

    `proportional` means that the leading pairs of a whole head rotate, see `full_block`.
    """
    config = configuration(hf_config)
    _refuse(config)
    count = config.positive("num_hidden_layers")
    kinds = config.list_of("layer_types", str)
    if not kinds:
        kinds = ["full_attention" if (index + 1) % EVERY == 0 else "sliding_attention" for index in range(count)]
    kinds = [*kinds[: count - 1], "full_attention"]
    given = config.mapping("rope_parameters") or configuration(ROPE)
    near = given.mapping("sliding_attention")
    wide = given.mapping("full_attention")
    wide.choice("rope_type", {"proportional": "proportional"}, "proportional")
    parameters = {
        "sliding_attention": dict(near),
        "full_attention": {"rope_type": "default", "rope_theta": wide.number("rope_theta", low=1e-6)},
    }
    values: dict[str, Any] = {"num_experts": 0}
    if config.flag("enable_moe_block"):
        values = {"shared_intermediate_size": config.positive("intermediate_size"), "mlp_only_layers": []}
    config.flag("attention_k_eq_v")  # read for the names of tensors
    return config.overlaid({"layer_types": kinds, "rope_parameters": parameters, "rotating": _share(config), **values})


def _share(config: Configuration) -> float:
    """Return the share of a full layer's pairs that rotate."""
    given = config.mapping("rope_parameters") or configuration(ROPE)
    return given.mapping("full_attention").number("partial_rotary_factor", 1.0)


def _refuse(config: Configuration) -> None:
    """Raise UserError for what is not served."""
    shared = config.count("num_kv_shared_layers", 0)
    if shared and shared >= config.positive("num_hidden_layers"):
        config.fail("num_kv_shared_layers", shared, "fewer than there are layers")
    if config.count("hidden_size_per_layer_input", 0):
        tokens = config.positive("vocab_size")
        own = config.positive("vocab_size_per_layer_input", tokens)
        if own < tokens:
            config.fail("vocab_size_per_layer_input", own, f"at least vocab_size, {tokens}")
    if config.get("use_bidirectional_attention") == "all":
        config.fail("use_bidirectional_attention", "all", "null or vision")


def full_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Set heads and rotation of a layer with full attention, and the factor after each layer."""
    config = configuration(hf_config)
    mixer = block.mixer
    assert isinstance(mixer, AttentionSpec) and block.rope is not None, "every layer attends, and rotates"
    own = msgspec.structs.replace(mixer, scale=1.0)
    rope = block.rope
    if mixer.window is None:
        size, kv_heads = _heads(config, index, mixer)
        own = msgspec.structs.replace(own, head_size=size, head_size_v=size, num_kv_heads=kv_heads)
        turning = int(config.number("rotating", 1.0) * size // 2)
        rope = msgspec.structs.replace(rope, turning=turning)
    chosen = block.experts
    if chosen is not None:
        chosen = msgspec.structs.replace(chosen, beside=True)
    return msgspec.structs.replace(block, mixer=own, rope=rope, experts=chosen, layer_scalar=True)


def _heads(config: Configuration, index: int, mixer: AttentionSpec) -> tuple[int, int]:
    """Return size and number of a full layer's heads of keys."""
    layers = config.mapping("per_layer_config")
    if layers:
        # Numbers of layers have leading zeros in models with ten layers or more.
        key = next((key for key in layers if str(key).isdecimal() and int(key) == index), str(index))
        layer = layers.mapping(key)
        return layer.positive("head_dim", mixer.head_size), layer.positive("num_key_value_heads", mixer.num_kv_heads)
    size = config.positive("global_head_dim", GLOBAL_HEAD)
    kv_heads = config.positive("num_global_key_value_heads", mixer.num_kv_heads)
    return size, kv_heads if config.flag("attention_k_eq_v") else mixer.num_kv_heads


def lenders(spec: DecoderSpec, shared: int) -> dict[int, int]:
    """Return, for each of the last `shared` blocks, the last earlier one of its kind, whose keys and values it has."""
    first = len(spec.blocks) - shared
    found = {}
    for index in range(first, len(spec.blocks)):
        kind = spec.mixers[index].kind
        alike = [other for other in range(first) if spec.mixers[other].kind == kind]
        if not alike:
            raise UserError(
                f"num_kv_shared_layers is {shared} in the model's configuration; expected fewer, as no layer before the last "
                f"{shared} is of the kind '{kind}'."
            )
        found[index] = alike[-1]
    return found


def whole(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set the norm of values, the embeddings for each layer, and the blocks that share keys and values."""
    config = configuration(hf_config)
    heads = msgspec.structs.replace(spec.heads, value_norm=msgspec.structs.replace(spec.norm, weighted=False))
    shared = config.count("num_kv_shared_layers", 0)
    wide = msgspec.structs.replace(spec.mlp, size=2 * spec.mlp.size) if config.flag("use_double_wide_mlp") else None
    blocks = shared_blocks(spec, heads, shared)
    for index in range(len(blocks) - shared, len(blocks)):
        blocks[index] = msgspec.structs.replace(blocks[index], mlp=wide)
    size = config.count("hidden_size_per_layer_input", 0)
    inputs = None
    media = tuple(config.count(name) for name in MEDIA if config.get(name) is not None)
    # Rows of a picture see each other; in layers without a window, each sees those before it.
    near = config.get("use_bidirectional_attention") == "vision"
    if size:
        tokens = config.positive("vocab_size_per_layer_input", spec.vocab_size)
        inputs = LayerInputs(size, tokens, len(blocks), media, config.count("pad_token_id", 0))
    return msgspec.structs.replace(spec, heads=heads, blocks=tuple(blocks), layer_inputs=inputs, spans_in_windows=near)


def shared_blocks(spec: DecoderSpec, heads: HeadsSpec, shared: int) -> list[BlockSpec]:
    """Return the blocks of a model whose last `shared` ones have the keys and values of an earlier one."""
    blocks = list(spec.blocks)
    for index, lender in lenders(spec, shared).items():
        mixer, lent = spec.mixers[index], spec.mixers[lender]
        kind = lent.kind
        assert isinstance(mixer, AttentionSpec) and isinstance(lent, AttentionSpec), "such families have no states"
        if mixer.cached != lent.cached:
            raise UserError(
                f"num_kv_shared_layers is {shared} in the model's configuration, but layer {index} has heads of another number "
                f"or size than layer {lender}, whose keys and values it reads; expected equal ones."
            )
        blocks[index] = msgspec.structs.replace(blocks[index], heads=msgspec.structs.replace(heads, borrows=kind))
        blocks[lender] = msgspec.structs.replace(blocks[lender], heads=msgspec.structs.replace(heads, lends=kind))
    return blocks


def sharing(shared: Mapping[int, int]) -> list[WeightRule]:
    """Return the rules for blocks that read the keys and values of an earlier one, and have no tensors for their own.

    shared: see `lenders`.
    """
    if not shared:
        return []
    layers = "|".join(map(str, shared))
    unused = rf"(model\.)?(language_model\.)?(model\.)?layers\.({layers})\.self_attn\.[kv]_(proj|norm)\..*"
    return [Ignored(unused, "the layer has the keys and values of an earlier one")]


def weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rules for tensors: with `attention_k_eq_v`, values of full layers are the keys before their norm."""
    rules: list[WeightRule] = []
    if configuration(hf_config).flag("attention_k_eq_v"):
        full = [str(index) for index, mixer in enumerate(spec.mixers) if mixer.kind == "full"]
        rules.append(Copied(rf"(model\.layers\.(?:{'|'.join(full)})\.self_attn)\.k_proj\.(.*)", (r"\1.v_proj.\2",)))
    rules += sharing(lenders(spec, configuration(hf_config).count("num_kv_shared_layers", 0)))
    if configuration(hf_config).flag("enable_moe_block"):
        rules += (
            Rename(r"(\.layers\.\d+)\.mlp\.", r"\1.mlp.shared_experts."),
            Rename(r"(\.layers\.\d+)\.router\.proj\.", r"\1.mlp.gate."),
            Rename(r"(\.layers\.\d+)\.router\.per_expert_scale$", r"\1.mlp.gate.per_expert_scale"),
            Rename(r"(\.layers\.\d+)\.router\.scale$", r"\1.mlp.router_norm.weight"),
            Rename(r"(\.layers\.\d+)\.experts\.", r"\1.mlp.experts."),
            Rename(r"(\.layers\.\d+)\.pre_feedforward_layernorm_2\.", r"\1.mlp.experts_norm."),
            Rename(r"(\.layers\.\d+)\.post_feedforward_layernorm_2\.", r"\1.mlp.experts_out_norm."),
            Rename(r"(\.layers\.\d+)\.post_feedforward_layernorm_1\.", r"\1.mlp.shared_out_norm."),
            *experts("mlp", r"experts\.gate_up_proj", r"experts\.down_proj"),
        )
    return tuple(rules)


ROWS = (
    Family(
        name="gemma4",
        model_types=("gemma4_text", "gemma4_unified_text"),
        architectures=("Gemma4ForCausalLM", "Gemma4UnifiedForCausalLM"),
        wrappers=("gemma4", "gemma4_unified"),
        keys={"num_experts_per_tok": "top_k_experts"},
        # The class of the text keeps the first elsewhere, and has not the others.
        defaults={"per_layer_config": None, **dict.fromkeys(MEDIA)},
        neutral={
            "moe_intermediate_size": "enable_moe_block says whether it counts",
            "num_experts": "enable_moe_block says whether it counts",
            "top_k_experts": "enable_moe_block says whether it counts",
            "vocab_size_per_layer_input": "hidden_size_per_layer_input says whether it counts",
            "num_global_key_value_heads": "attention_k_eq_v says whether it counts",
        },
        usual=usual,
        tied_by_default=True,
        qk_norm=True,
        sandwich_norms=True,
        scale_embedding=True,
        expert_names=EXPERTS,
        block=full_block,
        adjust=whole,
        weights=weights,
    ),
)

"""Llama 4: chunked attention, layers without rotary embedding, experts whose inputs are weighted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import EXPERTS, Family, HeadNorm
from core_runtime.models.weight_rules import experts, modules
from core_runtime.specs.block_spec import TemperatureSpec
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.routing_spec import RoutingSpec


def llama4_sizes(given: Mapping[str, Any]) -> Configuration:
    """Return the configuration with usual keys: `intermediate_size` is the inner size of experts, and the lists of
    layers follow from two steps.
    """
    config = configuration(given)
    count = config.positive("num_hidden_layers")
    step = config.count("interleave_moe_layer_step", 1)
    interval = config.positive("no_rope_layer_interval", 4)
    sparse = config.list_of("moe_layers", int)
    if config.get("moe_layers") is None and step:
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
    """Return the routing: the sigmoid of the largest logits."""
    return RoutingSpec(top_k, "sigmoid", renormalize=False)


def llama4_heads(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set norms and temperature of heads.

    Layers with rotary embedding may normalize queries and keys after it. Queries of the other layers have a
    temperature.
    """
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
)

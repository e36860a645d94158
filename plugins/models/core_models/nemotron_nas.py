"""Nemotron NAS: llamas whose layers were searched one by one; each has its own heads and inner size, or lacks a half."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core.api.errors import UserError
from core.api.specs import AttentionSpec
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.build import ACTIVATIONS
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import Rename, WeightRule
from core_runtime.specs.block_spec import BlockSpec, MLPSpec
from core_runtime.specs.decoder_spec import DecoderSpec

MULTIPLE: Final = 256
"""Inner sizes that follow from `ffn_mult` are multiples of it."""
READ: Final = {
    "attention": ("no_op", "n_heads_in_group"),
    "ffn": ("no_op", "ffn_mult", "intermediate_size", "hidden_act"),
}
"""Keys of the halves of a layer that are read; all others must be null or false."""


def usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration with sizes under the usual names, which `block_configs` then replaces layer by layer."""
    config = configuration(hf_config)
    heads = config.positive("num_attention_heads")
    inner = config.positive("intermediate_size", config.positive("hidden_size"))
    return config.overlaid({"num_key_value_heads": heads, "intermediate_size": inner})


def _layers(config: Configuration) -> list[tuple[Configuration, Configuration]]:
    """Return attention and MLP of each layer. Raises UserError for a number of layers, or a key, that is not served."""
    count = config.positive("num_hidden_layers")
    found = []
    for index, given in enumerate(config.list_of("block_configs", dict, count)):
        halves = []
        for half, known in READ.items():
            one = Configuration(given, prefix=f"block_configs.{index}.").mapping(half)
            for key, value in one.values_given.items():
                if key not in known and value not in (None, False):
                    one.fail(key, value, "null or false")
            halves.append(one)
        found.append((halves[0], halves[1]))
    return found


def _inner(ffn: Configuration, hidden: int) -> int:
    """Return the inner size of a layer's MLP: two thirds of a multiple of the hidden size, rounded up, or its own number."""
    share = ffn.optional_number("ffn_mult", 1e-6)
    if share is None:
        return ffn.positive("intermediate_size")
    size = int(2 * share * hidden / 3)
    return -(-size // MULTIPLE) * MULTIPLE


def searched(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set heads of keys and inner size of each layer, and remove the halves that a layer lacks."""
    blocks = []
    for block, (attention, ffn) in zip(spec.blocks, _layers(configuration(hf_config)), strict=True):
        found = block
        if attention.flag("no_op"):
            found = BlockSpec(None)
        else:
            assert isinstance(block.mixer, AttentionSpec), "every layer attends"
            shared = attention.positive("n_heads_in_group", 1)
            if block.mixer.num_heads % shared:
                attention.fail(
                    "n_heads_in_group", shared, f"a divisor of {block.mixer.num_heads} (num_attention_heads)"
                )
            own = msgspec.structs.replace(block.mixer, num_kv_heads=block.mixer.num_heads // shared)
            found = msgspec.structs.replace(block, mixer=own)
        has_mlp = not ffn.flag("no_op")
        mlp = _mlp(spec.mlp, ffn, spec.hidden_size) if has_mlp else None
        blocks.append(msgspec.structs.replace(found, mlp=mlp, has_mlp=has_mlp))
    if all(block.mixer is None for block in blocks):
        raise UserError(
            "block_configs of the model's configuration leaves no layer with attention; expected at least one."
        )
    return msgspec.structs.replace(spec, blocks=tuple(blocks))


def _mlp(usual_one: MLPSpec, ffn: Configuration, hidden: int) -> MLPSpec:
    activation = usual_one.activation
    if ffn.get("hidden_act") is not None:
        activation = ffn.choice("hidden_act", ACTIVATIONS)
    return msgspec.structs.replace(usual_one, size=_inner(ffn, hidden), activation=activation)


def weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rule for layers without attention, whose only norm comes before their MLP."""
    alone = [str(index) for index, block in enumerate(spec.blocks) if block.mixer is None and block.has_mlp]
    if not alone:
        return ()
    return (Rename(rf"(\.layers\.({'|'.join(alone)}))\.post_attention_layernorm\.", r"\1.input_layernorm."),)


ROWS = (
    Family(
        name="nemotron_nas",
        model_types=("nemotron-nas",),
        architectures=("DeciLMForCausalLM",),
        neutral={
            "num_key_value_heads": "block_configs says it, layer by layer",
            "intermediate_size": "block_configs says it, layer by layer",
        },
        usual=usual,
        adjust=searched,
        weights=weights,
    ),
)

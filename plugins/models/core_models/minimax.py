"""MiniMax-Text-01: linear attention with a fixed decay, next to attention and experts; a weighted residual stream.

Norms are of the stream: each half reads the normalized stream, and adds to it. So the norm before a half is the one after
the half before it, and the first one is that of the embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core.api.specs import StateSpec
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.attention import head_size_of
from core_runtime.models.families.row import Family
from core_runtime.models.state_layers import values
from core_runtime.models.state_ops.lightning import lightning
from core_runtime.models.weight_rules import Ignored, Rename, WeightRule
from core_runtime.specs.block_spec import BlockSpec
from core_runtime.specs.decoder_spec import DecoderSpec

NORM_EPS: Final = 1e-6
"""Of the norm after the recurrence, whatever the configuration says of the others."""
TINY: Final = 1e-5


def usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration with the kind of each layer; all attention has a window if any has."""
    config = configuration(hf_config)
    count = config.positive("num_hidden_layers")
    kinds = config.list_of("layer_types", str)
    if not kinds:
        kinds = ["linear_attention" if index % 2 else "full_attention" for index in range(count)]
    if config.get("sliding_window") is not None:
        kinds = ["sliding_attention" if kind == "full_attention" else kind for kind in kinds]
    return config.overlaid({"layer_types": kinds})


def lightning_layer(hf_config: Mapping[str, Any], index: int) -> StateSpec | None:
    """Return the state of a layer. Decays are slower in later layers."""
    default = "linear_attention" if index % 2 else "full_attention"
    if values.kind(hf_config, index, default) not in values.LINEAR:
        return None
    values.demand(hf_config, "hidden_act", "silu")
    config = configuration(hf_config)
    depth = index / (config.positive("num_hidden_layers") - 1 + TINY)
    return lightning(
        heads=config.positive("num_attention_heads"),
        head_size=head_size_of(config),
        slope=1 - depth + TINY,
        norm_eps=NORM_EPS,
    )


def weighted(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Set the factors of the stream (alpha) and of what is added to it (beta)."""
    config = configuration(hf_config)
    kind = "linear" if isinstance(block.mixer, StateSpec) else "full"
    factors = {name: config.number(f"{name}_factor", 1.0) for name in FACTORS}
    return msgspec.structs.replace(
        block,
        mixer_keeps=factors[f"{kind}_attn_alpha"],
        mixer_scale=factors[f"{kind}_attn_beta"],
        mlp_keeps=factors["mlp_alpha"],
        mlp_scale=factors["mlp_beta"],
    )


def weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rules for tensor names: every norm follows the half before it."""
    last = len(spec.blocks) - 1
    rules: list[WeightRule] = [
        Ignored(r".*\.(slope_rate|(query|key|diagonal)_decay)", "computed from the configuration"),
        Rename(r"^model\.norm\.", f"model.layers.{last}.post_feedforward_layernorm."),
    ]
    for index in range(last):
        to = rf"model.layers.{index}.post_feedforward_layernorm."
        rules.append(Rename(rf"^model\.layers\.{index + 1}\.input_layernorm\.", to))
    rules.append(Rename(r"^model\.layers\.0\.input_layernorm\.", "model.embed_norm."))
    mixers = [str(index) for index, block in enumerate(spec.blocks) if isinstance(block.mixer, StateSpec)]
    if mixers:
        rules.append(Rename(rf"^(model\.layers\.({'|'.join(mixers)}))\.self_attn\.", r"\1.mixer."))
    return tuple(rules)


FACTORS: Final = (
    "full_attn_alpha",
    "full_attn_beta",
    "linear_attn_alpha",
    "linear_attn_beta",
    "mlp_alpha",
    "mlp_beta",
)
"""Names of the factors, without `_factor`."""

ROWS = (
    Family(
        name="minimax",
        model_types=("minimax",),
        architectures=("MiniMaxForCausalLM",),
        neutral={"block_size": "the same numbers in pieces"},
        usual=usual,
        eps_default=1e-5,
        order="residual_post",
        embed_norm=True,
        final_norm=False,
        state=lightning_layer,
        block=weighted,
        expert_names=("block_sparse_moe", "w1", "w3", "w2"),
        weights=weights,
    ),
)

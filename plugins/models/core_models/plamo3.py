"""PLaMo 3: norms on both sides whose weights are stored less different numbers, windows, a base of its own for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import modules
from core_runtime.specs.block_spec import BlockSpec, HeadsSpec

BEHIND: Final = (1 / 5, 1 / 5**1.5)
"""Numbers that are added to the weights of the norms after attention and after the MLP; to those of all others, 1."""


def usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration with kinds of layers and rotary parameters under the usual names.

    Every `sliding_window_pattern`-th layer sees everything. Older configurations have the windows of all layers as a list
    `sliding_window`, with null for such a layer.
    """
    config = configuration(hf_config)
    count = config.positive("num_hidden_layers")
    pattern = config.positive("sliding_window_pattern", 8)
    is_full = [(index + 1) % pattern == 0 for index in range(count)]
    window = config.positive("window_size", 128)
    given = config.get("sliding_window")
    if isinstance(given, list):
        widths = {width for width in given if width is not None}
        if len(given) != count or len(widths) > 1 or not all(isinstance(one, int) and one > 0 for one in widths):
            config.fail("sliding_window", given, f"one window, or null, for each of {count} layers")
        is_full = [width is None for width in given]
        window = next(iter(widths), window)
    elif given is not None:
        window = config.positive("sliding_window")
    full = {"rope_type": "default", "rope_theta": config.number("rope_theta", 150_000.0, low=1e-6)}
    factor = config.number("rope_scaling_factor", 1.0, low=1.0)
    if factor != 1.0:
        original = config.positive("initial_context_length")
        full |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, "truncate": False}
    near = {"rope_type": "default", "rope_theta": config.number("rope_local_theta", 10_000.0, low=1e-6)}
    return config.overlaid(
        {
            "layer_types": ["full_attention" if one else "sliding_attention" for one in is_full],
            "sliding_window": window,
            "rope_parameters": {"full_attention": full, "sliding_attention": near},
        }
    )


def behind(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Set the offsets of the norms after attention and MLP."""
    return msgspec.structs.replace(block, behind_offsets=BEHIND)


ROWS = (
    Family(
        name="plamo3",
        model_types=("plamo3",),
        architectures=("Plamo3ForCausalLM", "PLaMo3ForCausalLM"),
        keys={"rope_theta": ("rope_global_theta",)},
        neutral={
            "scale_embedding = false": "embeddings are not scaled",
            'linear_type = "normal"': "the only way",
            "interleaved_sliding_window": "sliding_window_pattern says it",
            "window_size": "sliding_window, beside it, says it",
            "initial_context_length": "rope_scaling_factor says whether it counts",
            "rope_local_base_freq": "rope_local_theta says it",
        },
        usual=usual,
        tied_by_default=True,
        norm_offset=1.0,
        sandwich_norms=True,
        qk_norm=True,
        heads=HeadsSpec(fused="rows"),
        fused_gate_up=True,
        block=behind,
        weights=modules(
            ("model.layers.layers", "model.layers"),
            ("mixer", "self_attn"),
            ("pre_mixer_norm", "input_layernorm"),
            ("post_mixer_norm", "post_attention_layernorm"),
            ("pre_mlp_norm", "pre_feedforward_layernorm"),
            ("post_mlp_norm", "post_feedforward_layernorm"),
        ),
    ),
)

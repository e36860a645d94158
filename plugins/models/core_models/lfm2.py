"""LFM2 (Liquid AI, 2025): its short convolutions, and the own names in its configurations and checkpoints.

Owns: their translation. Never does: read weights. Called by: the table of families; `short_conv` also by other code
that needs such a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api.errors import UserError
from core.api.specs import StateSpec
from core_runtime.models.configuration import Configuration, configuration, positive

NAMES: Final = (
    ("embedding_norm", "norm"),
    ("operator_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("feed_forward.w1", "mlp.gate_proj"),
    ("feed_forward.w3", "mlp.up_proj"),
    ("feed_forward.w2", "mlp.down_proj"),
    ("self_attn.q_layernorm", "self_attn.q_norm"),
    ("self_attn.k_layernorm", "self_attn.k_norm"),
    ("self_attn.out_proj", "self_attn.o_proj"),
    ("conv.in_proj", "mixer.in_proj"),
    ("conv.out_proj", "mixer.out_proj"),
    ("conv.conv", "mixer.conv"),
)
"""Modules in a checkpoint → canonical names."""


NEUTRAL: Final = {
    "block_*": "what checkpoints were trained with; the sizes of blocks are read",
    "conv_dim*": "convolutions have as many channels as the model",
    "conv_use_xavier_init": "weights are loaded",
    "conv_L_cache": "layers with a convolution read it",
    "conv_bias": "layers with a convolution read it",
    "head_dim": "layers with attention read it",
    "num_attention_heads": "layers with attention read it",
    "num_key_value_heads": "layers with attention read it",
    "rope_*": "layers with attention read it",
    "num_heads": "num_attention_heads says it",
    "use_pos_enc = true": "the only way",
}
"""Keys of its configurations without effect → the reason."""


def usual(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration under the usual names. `layer_types` has `full_attention` or `conv` for each layer."""
    config = configuration(hf_config)
    num_layers = config.positive("num_hidden_layers")
    by_index = _kinds_by_index(config, num_layers)
    kinds = config.list_of("layer_types", str) or by_index
    if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "conv"}:
        raise UserError(
            f"layer_types is {list(kinds)!r:.120} in the model's configuration; expected full_attention or conv for each "
            f"of {num_layers} layers."
        )
    usual_values = {
        "layer_types": kinds,
        "intermediate_size": _intermediate_size(config),
        "rms_norm_eps": config.number("norm_eps", 1e-5),
        "tie_word_embeddings": config.flag("tie_embedding", config.flag("tie_word_embeddings", True)),
    }
    if "rope_theta" not in config:
        usual_values["rope_theta"] = 1e6
    return config.overlaid(usual_values)


def _kinds_by_index(config: Configuration, num_layers: int) -> list[str]:
    """Return `layer_types` from the older key `full_attn_idxs`, the numbers of layers with attention; without it all
    layers have attention.
    """
    full = config.list_of("full_attn_idxs", int)
    if config.get("full_attn_idxs") is None:
        return ["full_attention"] * num_layers
    return ["full_attention" if index in full else "conv" for index in range(num_layers)]


def state(hf_config: Mapping[str, Any], index: int) -> StateSpec | None:
    """Return the short convolution of a layer, None for a layer with attention."""
    if hf_config["layer_types"][index] != "conv":
        return None
    kernel = positive(hf_config, "conv_L_cache", 3)
    if kernel < 2:
        raise UserError(f"conv_L_cache is {kernel} in the model's configuration; expected at least 2 tokens.")
    channels = positive(hf_config, "hidden_size")
    bias = bool(hf_config.get("conv_bias", False))
    return short_conv(channels, kernel, bias=bias)


def short_conv(channels: int, kernel: int, *, bias: bool = False) -> StateSpec:
    """Return a layer with the op `short_conv`, see `StateSpec`. kernel: tokens that the convolution sees, at least
    2.
    """
    params: dict[str, tuple[int, ...]] = {"conv.weight": (channels, 1, kernel)}
    if bias:
        params["conv.bias"] = (channels,)
    return StateSpec(
        op="short_conv",
        inputs={"in_proj": 3 * channels},
        output_size=channels,
        state_size=channels * (kernel - 1),
        sizes={"channels": channels, "kernel": kernel},
        params=params,
        bias=bias,
    )


def _intermediate_size(config: Configuration) -> int:
    """Return the MLP's size: two thirds of the declared size, rounded up to a multiple, unless the configuration says
    otherwise.
    """
    size = config.positive("block_ff_dim", config.get("intermediate_size"))
    adjusted = config.flag("block_auto_adjust_ff_dim", True)
    factor = config.optional_number("block_ffn_dim_multiplier", 0.0)
    multiple = config.positive("block_multiple_of", 256)
    if not adjusted:
        return size
    size = int(2 * size / 3)
    if factor is None:
        return size
    size = int(factor * size)
    return -(-size // multiple) * multiple

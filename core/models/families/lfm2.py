"""LFM2 (Liquid AI, 2025): the names that its configurations and checkpoints have of their own, and its short convolutions.

Owns: their translation. Never does: read weights. Called by: the table of families; `short_conv` also by
anybody who needs such a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api.errors import UserError
from core.api.specs import StateSpec
from core.models.configuration import positive

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
"""Modules in a checkpoint, and their canonical names."""


def usual(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration under the usual names; `layer_types` has one of `full_attention` and `conv` for each layer."""
    num_layers = positive(hf_config, "num_hidden_layers")
    kinds = hf_config.get("layer_types") or _kinds_by_index(hf_config, num_layers)
    if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "conv"}:
        raise UserError(
            f"layer_types is {list(kinds)!r:.120} in the model's configuration; expected full_attention or conv for each "
            f"of {num_layers} layers."
        )
    tied = hf_config.get("tie_embedding", hf_config.get("tie_word_embeddings", True))
    return {
        **hf_config,
        "layer_types": list(kinds),
        "intermediate_size": _intermediate_size(hf_config),
        "rms_norm_eps": hf_config.get("norm_eps", 1e-5),
        "rope_theta": hf_config.get("rope_theta", 1e6),
        "tie_word_embeddings": bool(tied),
    }


def _kinds_by_index(hf_config: Mapping[str, Any], num_layers: int) -> list[str]:
    """The older form of `layer_types`: the layers with attention, by number; without it, all layers."""
    full = hf_config.get("full_attn_idxs")
    if full is None:
        return ["full_attention"] * num_layers
    return ["full_attention" if index in full else "conv" for index in range(num_layers)]


def state(hf_config: Mapping[str, Any], index: int) -> StateSpec | None:
    """The short convolution of a layer, None where it attends."""
    if hf_config["layer_types"][index] != "conv":
        return None
    kernel = positive(hf_config, "conv_L_cache", 3)
    if kernel < 2:
        raise UserError(f"conv_L_cache is {kernel} in the model's configuration; expected at least 2 tokens.")
    channels = positive(hf_config, "hidden_size")
    bias = bool(hf_config.get("conv_bias", False))
    return short_conv(channels, kernel, bias=bias)


def short_conv(channels: int, kernel: int, *, bias: bool = False) -> StateSpec:
    """A layer with the op `short_conv`, see `StateSpec`. kernel: tokens that a convolution sees, from 2."""
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


def _intermediate_size(hf_config: Mapping[str, Any]) -> int:
    """The MLP's: two thirds of the declared size, rounded up to a multiple, unless the configuration says otherwise."""
    size = positive(hf_config, "block_ff_dim", hf_config.get("intermediate_size"))
    if not hf_config.get("block_auto_adjust_ff_dim", True):
        return size
    factor = hf_config.get("block_ffn_dim_multiplier", 1.0)
    multiple = positive(hf_config, "block_multiple_of", 256)
    size = int(2 * size / 3)
    if factor is None:
        return size
    size = int(factor * size)
    return -(-size // multiple) * multiple

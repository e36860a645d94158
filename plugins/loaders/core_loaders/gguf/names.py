"""Tensor names in GGUF files, and their canonical names.

Owns: the common table; an architecture's row overrides it with its own names. Never does: read a file.
Called by: `core_loaders.gguf.placement`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

Names = Mapping[str, str]

MODEL: Final[dict[str, str]] = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embed_norm",
    "position_embd": "model.embed_positions",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""Modules outside the layers."""

LAYER: Final[dict[str, str]] = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "ffn_gate_exps": "mlp.experts.*.gate_proj",
    "ffn_up_exps": "mlp.experts.*.up_proj",
    "ffn_down_exps": "mlp.experts.*.down_proj",
    "ffn_gate_up_exps": "mlp.experts.*.gate_up_proj",
    "ssm_in": "mixer.in_proj",
    "ssm_out": "mixer.out_proj",
    "ssm_conv1d": "mixer.conv1d",
    "ssm_x": "mixer.x_proj",
    "ssm_dt": "mixer.dt_proj",
    "ssm_norm": "mixer.norm",
    "shortconv.in_proj": "mixer.in_proj",
    "shortconv.out_proj": "mixer.out_proj",
    "shortconv.conv": "mixer.conv",
}
"""Modules of a layer: names after `blk.N.` and after `model.layers.N.`. `*` is an expert's number: the tensor stacks
all experts.
"""

WHOLE: Final[dict[str, str]] = {
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "attn_sinks.weight": "self_attn.sinks",
    "ssm_a": "mixer.A_log",
    "ssm_d": "mixer.D",
}
"""Tensors of a layer whose canonical names have other endings."""

ENDINGS: Final = {"weight": "weight", "bias": "bias", "scale": "weight_scale_2"}
"""Endings of a module's tensors. A scale is one number for a whole matrix of type NVFP4."""
STATIC_SCALE: Final = ".input_scale"
"""Ending of static input scales, which are ignored: scales are computed per token here."""
EACH_EXPERT: Final = re.compile(r"ffn_(gate|up|down)\.(\d{1,4})\.(weight|bias)")
"""Experts stored separately, as in files of 2023."""
IN_LAYER: Final = re.compile(r"blk\.(\d{1,7})\.(.+)")


def canonical_name(name: str, own: Names) -> str | None:
    """Return the canonical name of a tensor; None for an unknown one.

    own: an architecture's names, which override the common ones; in the form of `LAYER` and `WHOLE`.
    """
    layer = IN_LAYER.fullmatch(name)
    if layer is None:
        module, _, ending = name.rpartition(".")
        found = own.get(module, MODEL.get(module))
        return f"{found}.{ENDINGS[ending]}" if found and ending in ENDINGS else None
    short = _in_layer(layer[2], own)
    return f"model.layers.{layer[1]}.{short}" if short else None


def _in_layer(short: str, own: Names) -> str | None:
    single = EACH_EXPERT.fullmatch(short)
    if single is not None:
        stacked = own.get(f"ffn_{single[1]}_exps", LAYER[f"ffn_{single[1]}_exps"])
        return f"{stacked.replace('*', single[2])}.{single[3]}"
    whole = own.get(short, WHOLE.get(short))
    if whole:
        return whole
    module, _, ending = short.rpartition(".")
    found = own.get(module, LAYER.get(module))
    return f"{found}.{ENDINGS[ending]}" if found and ending in ENDINGS else None


def known_names(own: Names) -> list[str]:
    """Return the known names after `blk.N.`, for hints in errors."""
    modules = {**LAYER, **own}
    return [*(f"{module}.weight" for module in modules), *WHOLE]

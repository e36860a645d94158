"""Architectures with recurrent state layers: short convolutions and Mamba."""

from __future__ import annotations

from typing import Final

from core_loaders.gguf.architectures import Architecture, Config
from core_loaders.gguf.keys import MAX_HEADS
from core_loaders.gguf.rows.llamas import SILU
from core_loaders.gguf.source import Source

EPS: Final = {"attention.layer_norm_rms_epsilon": "layer_norm_epsilon"}
"""The epsilon key of Mamba's configurations."""
SSM: Final = {"ssm.conv_kernel": "conv_kernel", "ssm.state_size": "state_size"}
LFM2_NORMS: Final = {"token_embd_norm": "model.norm"}
"""The norm before the head; its file name suggests one after the embedding."""


def lfm2(source: Source, config: Config) -> None:
    """Mark layers as convolutions where the file gives them no key heads."""
    _by_heads(source, config)
    config["block_auto_adjust_ff_dim"] = False
    config["block_ff_dim"] = config["intermediate_size"]


def lfm2_moe(source: Source, config: Config) -> None:
    """Give the first layers plain MLPs."""
    _by_heads(source, config)
    config["use_expert_bias"] = any(name.endswith(".exp_probs_b.bias") for name in source.tensors)
    source.integer("expert_gating_func", 2, 2, 2)


def _by_heads(source: Source, config: Config) -> None:
    num_layers = config["num_hidden_layers"]
    heads = source.by_layer("attention.head_count_kv", int, num_layers) or [config["num_key_value_heads"]] * num_layers
    config["layer_types"] = ["full_attention" if count else "conv" for count in heads]
    config["num_key_value_heads"] = max(heads)


def mamba(source: Source, config: Config) -> None:
    """Read the rank of steps from the key of the number of heads; norms of the step parameters identify Falcon's model."""
    config["intermediate_size"] = source.value("ssm.inner_size")
    config["time_step_rank"] = source.value("ssm.time_step_rank")
    config["use_conv_bias"] = "blk.0.ssm_conv1d.bias" in source.tensors
    config["use_bias"] = "blk.0.ssm_in.bias" in source.tensors
    if "ssm.dt_b_c_rms" in source and source.value("ssm.dt_b_c_rms"):
        config.update(model_type="falcon_mamba", architectures=["FalconMambaForCausalLM"])
        config["mixer_rms_eps"] = 1e-6


def mamba2(source: Source, config: Config) -> None:
    """Require heads of equal size."""
    inner = source.value("ssm.inner_size")
    heads = source.integer("ssm.time_step_rank", 1, MAX_HEADS)
    if inner % heads:
        raise source.fail(f"has {inner} channels, which {heads} heads cannot share evenly.")
    config["num_heads"] = heads
    config["head_dim"] = inner // heads
    config["expand"] = inner / config["hidden_size"]
    config["n_groups"] = source.integer("ssm.group_count", 1, MAX_HEADS, 1)
    config["use_conv_bias"] = "blk.0.ssm_conv1d.bias" in source.tensors
    config["use_bias"] = "blk.0.ssm_in.bias" in source.tensors


ROWS: Final = {
    "lfm2": Architecture(
        "lfm2",
        "Lfm2ForCausalLM",
        keys={"attention.layer_norm_rms_epsilon": "norm_eps", "shortconv.l_cache": "conv_L_cache"},
        constants={"conv_bias": False},
        names=LFM2_NORMS,
        adjust=lfm2,
    ),
    "lfm2moe": Architecture(
        "lfm2_moe",
        "Lfm2MoeForCausalLM",
        keys={
            "attention.layer_norm_rms_epsilon": "norm_eps",
            "shortconv.l_cache": "conv_L_cache",
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "leading_dense_block_count": "num_dense_layers",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_weights_norm": "norm_topk_prob",
        },
        constants={"conv_bias": False, "norm_topk_prob": True, "routed_scaling_factor": 1.0, "num_dense_layers": 0},
        names=LFM2_NORMS,
        adjust=lfm2_moe,
    ),
    "mamba": Architecture(
        "mamba", "MambaForCausalLM", keys={**EPS, **SSM}, constants=SILU, attends=False, adjust=mamba
    ),
    "mamba2": Architecture(
        "mamba2",
        "Mamba2ForCausalLM",
        keys={**EPS, **SSM},
        constants={**SILU, "time_step_limit": [0.0, float("inf")]},
        names={"ssm_dt.bias": "mixer.dt_bias"},
        attends=False,
        adjust=mamba2,
    ),
}

"""Architectures with layer norms and plain MLPs: relatives of GPT-2, GPT-NeoX, Falcon and Phi."""

from __future__ import annotations

from typing import Final

from core_loaders.gguf.architectures import Architecture, Config
from core_loaders.gguf.names import Names
from core_loaders.gguf.rows.windows import LAYER_EPS
from core_loaders.gguf.source import Source

EPSILON: Final = {"attention.layer_norm_epsilon": "layer_norm_epsilon"}
SECOND_NORM: Final = "blk.0.attn_norm_2.weight"
PARALLEL: Final = {"use_parallel_residual": "use_parallel_residual"}


def starcoder(source: Source, config: Config) -> None:
    """Allow one key head, or as many as query heads."""
    heads = config.pop("num_key_value_heads")
    config["multi_query"] = heads == 1
    config["n_inner"] = config.pop("intermediate_size")
    del config["head_dim"]


def gpt2(source: Source, config: Config) -> None:
    """Require a key head for every query head."""
    config["n_inner"] = config.pop("intermediate_size")
    neox(source, config)


def neox(source: Source, config: Config) -> None:
    """Require a key head for every query head; heads divide the hidden size."""
    del config["num_key_value_heads"], config["head_dim"]


def falcon_names(source: Source) -> Names:
    """Return the names of the norms: with two norms before a block, the second one in the file is attention's."""
    if SECOND_NORM not in source.tensors:
        return {}
    return {"attn_norm_2": "input_layernorm", "attn_norm": "post_attention_layernorm"}


def falcon(source: Source, config: Config) -> None:
    """Detect the newer architecture by its two norms before a block, or by several key heads."""
    heads = config.pop("num_key_value_heads")
    config["num_kv_heads"] = heads
    config["ffn_hidden_size"] = config.pop("intermediate_size")
    config["new_decoder_architecture"] = SECOND_NORM in source.tensors
    config["multi_query"] = heads == 1
    if heads > 1 and not config["new_decoder_architecture"]:
        raise source.fail(f"has {heads} key-value heads and one norm a layer; expected two norms.")


def bloom(source: Source, config: Config) -> None:
    """Set the MLP to four times the hidden size."""
    for key in ("num_key_value_heads", "head_dim"):
        config.pop(key, None)
    config["seq_length"] = config.pop("max_position_embeddings")
    config["n_layer"] = config.pop("num_hidden_layers")
    config["n_head"] = config.pop("num_attention_heads")
    _four_times(source, config)


def mpt(source: Source, config: Config) -> None:
    """Set ALiBi slopes with the usual largest exponent, and the MLP to four times the hidden size."""
    if source.number("attention.max_alibi_bias", 0.0, 1e3, 0.0) != 8.0:
        raise source.fail(f"metadata key '{source.key('attention.max_alibi_bias')}' is not 8, which is not supported.")
    for key in ("num_key_value_heads", "head_dim"):
        config.pop(key, None)
    config["attn_config"] = {"clip_qkv": config.pop("clip_qkv", None), "alibi": True}
    config["max_seq_len"] = config.pop("max_position_embeddings")
    config["d_model"] = config.pop("hidden_size")
    config["n_layers"] = config.pop("num_hidden_layers")
    config["n_heads"] = config.pop("num_attention_heads")
    config["hidden_size"] = config["d_model"]
    _four_times(source, config)


def _four_times(source: Source, config: Config) -> None:
    inner = config.pop("intermediate_size")
    if inner != 4 * config["hidden_size"]:
        raise source.fail(
            f"has MLPs of {inner} inner numbers; expected {4 * config['hidden_size']} for this architecture."
        )


def stablelm(source: Source, config: Config) -> None:
    """Detect the 12B model by its head norms."""
    config["qk_layernorm"] = "blk.0.attn_q_norm.weight" in source.tensors


ROWS: Final = {
    "gpt2": Architecture(
        "gpt2",
        "GPT2LMHeadModel",
        keys=EPSILON,
        constants={"activation_function": "gelu_new"},
        rotary="none",
        adjust=gpt2,
    ),
    "starcoder": Architecture(
        "gpt_bigcode",
        "GPTBigCodeForCausalLM",
        keys=EPSILON,
        constants={"activation_function": "gelu_pytorch_tanh"},
        rotary="none",
        adjust=starcoder,
    ),
    "starcoder2": Architecture(
        "starcoder2",
        "Starcoder2ForCausalLM",
        keys={"attention.layer_norm_epsilon": "norm_epsilon"},
        constants={"hidden_act": "gelu_pytorch_tanh", "sliding_window": None},
        present={"use_bias": ("attn_q.bias", "attn_output.bias", "ffn_up.bias", "ffn_down.bias")},
    ),
    "gptneox": Architecture(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        keys={**LAYER_EPS, **PARALLEL},
        constants={"hidden_act": "gelu"},
        present={"attention_bias": ("attn_qkv.bias", "attn_output.bias")},
        grouped=True,
        rotary="part",
        adjust=neox,
    ),
    "falcon": Architecture(
        "falcon",
        "FalconForCausalLM",
        keys=EPSILON,
        constants={"activation": "gelu", "bias": False, "alibi": False, "parallel_attn": True},
        names=falcon_names,
        grouped=True,
        adjust=falcon,
    ),
    "bloom": Architecture("bloom", "BloomForCausalLM", keys=EPSILON, grouped=True, rotary="none", adjust=bloom),
    "mpt": Architecture(
        "mpt",
        "MptForCausalLM",
        keys={"attention.layer_norm_epsilon": "layer_norm_epsilon", "attention.clamp_kqv": "clip_qkv"},
        rotary="none",
        adjust=mpt,
    ),
    "phi2": Architecture(
        "phi",
        "PhiForCausalLM",
        keys=LAYER_EPS,
        constants={"hidden_act": "gelu_new", "qk_layernorm": False},
        rotary="part",
    ),
    "stablelm": Architecture(
        "stablelm",
        "StableLmForCausalLM",
        keys={**LAYER_EPS, **PARALLEL},
        constants={"hidden_act": "silu"},
        present={"use_qkv_bias": ("attn_q.bias", "attn_k.bias", "attn_v.bias")},
        rotary="part",
        adjust=stablelm,
    ),
}

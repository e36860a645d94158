"""Checkpoints under the names of their own older code give what transformers computes from its own.

ChatGLM is GLM: same numbers, other tensors and keys.
"""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.api.errors import UserError
from core_runtime.models.families import decoder_spec
from tests.families.comparison import distances
from tests.families.expected import TOLERANCE
from tests.families.harness import Harness
from tests.families.oracle import reference

PARTS = {
    "model.embed_tokens": "transformer.embedding.word_embeddings",
    "model.norm": "transformer.encoder.final_layernorm",
    "lm_head": "transformer.output_layer",
    "model.layers": "transformer.encoder.layers",
    "self_attn.o_proj": "self_attention.dense",
    "mlp.gate_up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
}
GLM_SIZES = (
    *("intermediate_size", "hidden_size", "head_dim", "rms_norm_eps", "num_key_value_heads", "num_attention_heads"),
    *("num_hidden_layers", "vocab_size", "max_position_embeddings"),
)


def _config(glm):
    theta = glm["rope_parameters"]["rope_theta"]
    return {
        "model_type": "chatglm",
        "architectures": ["ChatGLMModel"],
        "add_bias_linear": False,
        "add_qkv_bias": True,
        "apply_query_key_layer_scaling": True,
        "apply_residual_connection_post_layernorm": False,
        "ffn_hidden_size": glm["intermediate_size"],
        "hidden_size": glm["hidden_size"],
        "kv_channels": glm["head_dim"],
        "layernorm_epsilon": glm["rms_norm_eps"],
        "multi_query_attention": True,
        "multi_query_group_num": glm["num_key_value_heads"],
        "num_attention_heads": glm["num_attention_heads"],
        "num_layers": glm["num_hidden_layers"],
        "original_rope": True,
        "padded_vocab_size": glm["vocab_size"],
        "post_layer_norm": True,
        "rmsnorm": True,
        "rope_ratio": theta / 10000,
        "seq_length": glm["max_position_embeddings"],
        "tie_word_embeddings": False,
    }


def _tensors(glm, num_layers):
    for index in range(num_layers):
        for kind in ("weight", "bias"):
            names = [f"model.layers.{index}.self_attn.{part}_proj.{kind}" for part in "qkv"]
            fused = torch.cat([glm.pop(name) for name in names])
            glm[f"model.layers.{index}.self_attention.query_key_value.{kind}"] = fused
    found = {"transformer.rotary_pos_emb.inv_freq": torch.ones(4)}
    for name, tensor in glm.items():
        for usual, own in PARTS.items():
            name = name.replace(usual, own)
        found[name] = tensor
    return found


def test_chatglm(tmp_path):
    expected = reference("glm", "half")
    glm = json.loads((expected.path / "config.json").read_text())
    tensors = _tensors(load_file(expected.path / "model.safetensors"), glm["num_hidden_layers"])
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(_config(glm)))
    found = distances(Harness(tmp_path), expected)
    assert max(found.values()) < TOLERANCE


def test_the_first_chatglm_is_refused():
    config = _config({"rope_parameters": {"rope_theta": 1e4}, **dict.fromkeys(GLM_SIZES, 8)})
    del config["padded_vocab_size"]
    config["vocab_size"] = 8
    with pytest.raises(UserError, match="padded_vocab_size"):
        decoder_spec(config)

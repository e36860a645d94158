"""Tiny random checkpoints in the formats that people have: made with transformers and tokenizers, saved once a session."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AXK2Config,
    DeepseekV2Config,
    DeepseekV3Config,
    DeepseekV32Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GlmMoeDsaConfig,
    Lfm2Config,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": 260, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "moe_intermediate_size": 48, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 3, "topk_group": 2,
}  # fmt: skip
INDEXED = {**LATENT, "q_lora_rank": 40, "index_topk": 12, "index_n_heads": 12, "index_head_dim": 24}
SHARED = {
    "head_dim": 16, "sliding_window": 24, "num_kv_shared_layers": 3, "vocab_size_per_layer_input": 260,
    "hidden_size_per_layer_input": 12,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"],
}  # fmt: skip
"""Five layers, of which the last three have the keys and values of the first two."""
REUSED = {"num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"]}


def byte_tokenizer() -> Tokenizer:
    """One token a byte, after four special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<pad>", "<s>", "</s>", "<unk>"]
    vocab = {token: index for index, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    return tokenizer


def save_checkpoint(directory: Path, family: str = "llama", seed: int = 0, **changes: object) -> Path:
    """Write a checkpoint of random weights and return its directory."""
    torch.manual_seed(seed)
    shape = {**SHAPE, **changes}
    if family == "llama":
        config = LlamaConfig(**shape)
    elif family == "mixtral":
        config = MixtralConfig(**shape, num_local_experts=6)
    elif family == "qwen3_moe":
        sizes = {"moe_intermediate_size": 48, "num_experts": 7, "num_experts_per_tok": 3, "mlp_only_layers": [1]}
        config = Qwen3MoeConfig(**shape, **sizes, head_dim=16)
    elif family == "lfm2":
        kinds = ["conv", "full_attention", "conv", "conv"]
        config = Lfm2Config(**{**shape, "num_hidden_layers": 4}, layer_types=kinds, block_multiple_of=32)
    elif family == "deepseek_v2":
        config = DeepseekV2Config(**{**shape, **LATENT, "q_lora_rank": None, **changes})
    elif family == "deepseek_v3":
        config = DeepseekV3Config(**{**shape, **LATENT, "q_lora_rank": 40, **changes})
    elif family == "deepseek_v32":
        config = DeepseekV32Config(**{**shape, **INDEXED, **changes})
    elif family == "axk2":
        config = AXK2Config(**{**shape, **INDEXED, "gated_norm_rank": 6, **changes})
    elif family == "gemma3n":
        sparse = {"laurel_rank": 6, "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0, 0.0]}
        config = Gemma3nTextConfig(**{**shape, "num_hidden_layers": 5, **SHARED, **sparse, **changes})
    elif family == "gemma4":
        config = Gemma4TextConfig(**{**shape, "num_hidden_layers": 5, **SHARED, "global_head_dim": 24, **changes})
    elif family == "glm_moe_dsa":
        config = GlmMoeDsaConfig(**{**shape, **INDEXED, **REUSED, **changes})
    else:
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        config = Gemma3TextConfig(**shape, head_dim=16, sliding_window=24, query_pre_attn_scalar=16, layer_types=kinds)
    return save_model(directory, config)


def save_model(directory: Path, config: PretrainedConfig) -> Path:
    """Write a checkpoint of this configuration, drawn from torch's generator as it is, and return its directory."""
    return write_model(directory, AutoModelForCausalLM.from_config(config, dtype=torch.float32))


def write_model(directory: Path, model: PreTrainedModel) -> Path:
    """Write a checkpoint of a new model whose weights are made larger, and return its directory."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.1)
    model.save_pretrained(directory)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory

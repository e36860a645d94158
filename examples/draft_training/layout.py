"""A draft on disk, as EAGLE-3's authors publish theirs.

Owns: its two files. Never does: compute. Called by: `train_draft.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig

from draft_training.draft import Draft

WEIGHTS = "model.safetensors"


def save(draft: Draft, target: PretrainedConfig, directory: Path) -> None:
    """Write config.json and the tensors, matrices and norms in bfloat16. target: configuration of the model it is for."""
    directory.mkdir(parents=True, exist_ok=True)
    shape = draft.shape
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "max_position_embeddings": target.max_position_embeddings,
        "vocab_size": shape.target_tokens,
        "draft_vocab_size": shape.tokens,
        "bos_token_id": target.bos_token_id,
        "eos_token_id": target.eos_token_id,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {}
    for name, tensor in draft.state_dict().items():
        stored = tensor.bfloat16() if tensor.is_floating_point() else tensor
        tensors[name] = stored.contiguous()
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def load(draft: Draft, directory: Path) -> None:
    """Read back what `save` wrote. Raises RuntimeError where names or shapes are other ones."""
    tensors = load_file(directory / WEIGHTS)
    draft.load_state_dict({name: _as_computed(tensor) for name, tensor in tensors.items()})


def _as_computed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor

"""What a draft takes from the model that it drafts for: shape, embedding, head, and where to begin.

Owns: reading the model with transformers. Never does: run it. Called by: `train_draft.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

from draft_training.draft import Draft, DraftShape

FEWEST_LAYERS: Final = 4


def load_target(model: str) -> PreTrainedModel:
    """A directory, a name, or a GGUF file (pip install gguf), in float32."""
    path = Path(model)
    if path.suffix != ".gguf":
        return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )


def tapped_layers(target: PreTrainedModel) -> tuple[int, int, int]:
    """Numbers of the layers whose input the draft sees, as published drafts have them unless they say otherwise."""
    count = target.config.num_hidden_layers
    if count < FEWEST_LAYERS:
        raise SystemExit(
            f"--model has {count} layers; expected {FEWEST_LAYERS} or more, of which a draft can read three."
        )
    return 2, count // 2, count - 3


def draft_for(target: PreTrainedModel, kept: Tensor, intermediate: int) -> Draft:
    """A draft that begins as the target's last layer, on what enters the latest layer that it sees.

    kept: ids of the tokens that its head knows.
    """
    config = target.config
    shape = DraftShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        intermediate=intermediate,
        tokens=len(kept),
        target_tokens=config.vocab_size,
        eps=config.rms_norm_eps,
        theta=config.rope_parameters["rope_theta"],
    )
    draft = Draft(shape, kept)
    layers = target.base_model.layers
    with torch.no_grad():
        _begin(draft, layers[0], layers[-1])
        draft.norm.weight.copy_(target.base_model.norm.weight)
        draft.lm_head.weight.copy_(target.get_output_embeddings().weight[kept])
        draft.fc.weight.normal_(std=0.1 * shape.hidden**-0.5)
        draft.fc.weight[:, 2 * shape.hidden :] += torch.eye(shape.hidden)
    return draft


def _begin(draft: Draft, first: nn.Module, last: nn.Module) -> None:
    """The layer reads embeddings as the target's first one does, and hidden states as its last one does."""
    hidden = draft.shape.hidden
    middle = draft.midlayer
    middle.input_layernorm.weight.copy_(first.input_layernorm.weight)
    middle.hidden_norm.weight.copy_(last.input_layernorm.weight)
    middle.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    for name in ("q_proj", "k_proj", "v_proj"):
        matrix = getattr(middle.self_attn, name).weight
        matrix[:, :hidden] = getattr(first.self_attn, name).weight
        matrix[:, hidden:] = getattr(last.self_attn, name).weight
    middle.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
    strongest = last.mlp.down_proj.weight.norm(dim=0).argsort(descending=True)
    rows = strongest[: draft.shape.intermediate].sort().values
    middle.mlp.gate_proj.weight[: len(rows)] = last.mlp.gate_proj.weight[rows]
    middle.mlp.up_proj.weight[: len(rows)] = last.mlp.up_proj.weight[rows]
    middle.mlp.down_proj.weight[:, : len(rows)] = last.mlp.down_proj.weight[:, rows]

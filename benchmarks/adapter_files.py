"""Random adapters of a Llama-like model, as peft and as llama.cpp write them.

Owns: these files. Never does: measure. Called by: `benchmarks.adapters`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.peer.checkpoints import Shape

MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""All seven matrices of a block: peft's names, and llama.cpp's."""
SCALE = 0.02


def matrices(shape: Shape, rank: int, seed: int) -> dict[tuple[int, str], tuple[Tensor, Tensor]]:
    """Return random A [rank, K] and B [N, rank] of every adapted matrix, by layer and peft's name."""
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    sizes = {
        "self_attn.q_proj": (queries, shape.hidden),
        "self_attn.k_proj": (keys, shape.hidden),
        "self_attn.v_proj": (keys, shape.hidden),
        "self_attn.o_proj": (shape.hidden, queries),
        "mlp.gate_proj": (shape.intermediate, shape.hidden),
        "mlp.up_proj": (shape.intermediate, shape.hidden),
        "mlp.down_proj": (shape.hidden, shape.intermediate),
    }
    random = torch.Generator().manual_seed(seed)
    found = {}
    for layer in range(shape.layers):
        for module, (outputs, inputs) in sizes.items():
            a = torch.randn(rank, inputs, generator=random) * SCALE
            b = torch.randn(outputs, rank, generator=random) * SCALE
            found[layer, module] = (a, b)
    return found


def write_peft(folder: Path, shape: Shape, rank: int, seed: int, base: str) -> None:
    """Write an adapter as peft saves it, in bfloat16."""
    folder.mkdir(parents=True)
    tensors = {}
    for (layer, module), (a, b) in matrices(shape, rank, seed).items():
        name = f"base_model.model.model.layers.{layer}.{module}"
        tensors[f"{name}.lora_A.weight"] = a.bfloat16()
        tensors[f"{name}.lora_B.weight"] = b.bfloat16()
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": sorted(module.rpartition(".")[2] for module in MODULES),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def write_gguf(file: Path, shape: Shape, rank: int, seed: int) -> None:
    """Write the same adapter as llama.cpp's converter does. Its rotary pairs are neighbours, so B's rows of q and k move."""
    import gguf

    writer = gguf.GGUFWriter(file, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0 * rank)
    heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}
    for (layer, module), (a, b) in matrices(shape, rank, seed).items():
        name = MODULES[module]
        rows = b
        if name in heads:
            rows = b.view(heads[name], 2, -1, rank).transpose(1, 2).reshape(b.shape)
        writer.add_tensor(f"blk.{layer}.{name}.weight.lora_a", a.bfloat16().float().numpy())
        writer.add_tensor(f"blk.{layer}.{name}.weight.lora_b", rows.bfloat16().float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

"""Adapters that peft makes and computes, for tiny checkpoints.

Owns: their random numbers, and peft's answers. Never does: know the engine. Called by: the tests of adapters.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def base_model(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def save_adapter(base: Path, target: Path, seed: int = 1, **options: Any) -> Path:
    """Save an adapter whose every number is random, as if it had been trained. options: of `LoraConfig`."""
    torch.manual_seed(seed)
    wanted = {"r": 8, "lora_alpha": 16, "target_modules": ALL, "task_type": "CAUSAL_LM"} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(base_model(base), LoraConfig(**wanted))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_magnitude_vector" in name:
                parameter.mul_(torch.rand_like(parameter) + 0.5)
            elif "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
            elif parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(target)
    return target


NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def paired(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of each head as llama.cpp's converter puts them: pair by pair."""
    return rows.view(heads, 2, -1, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def converted(adapter: Path, target: Path, alpha: float, kind: str = "lora") -> Path:
    """What llama.cpp's converter makes of a peft adapter of `tiny_llama`."""
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", alpha)
    heads = {"attn_q": 4, "attn_k": 2}
    for name, tensor in load_file(adapter / "adapter_model.safetensors").items():
        module, _, side = name.removeprefix("base_model.model.model.layers.").removesuffix(".weight").rpartition(".")
        number, _, short = module.partition(".")
        if side == "lora_B" and NAMES[short] in heads:
            tensor = paired(tensor, heads[NAMES[short]])
        writer.add_tensor(f"blk.{number}.{NAMES[short]}.weight.{side.lower()}", tensor.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


class Oracle:
    """A base model with an adapter, as peft computes them; without a path the base alone."""

    def __init__(self, base: Path, adapter: Path | None = None) -> None:
        model = base_model(base)
        self.model = model if adapter is None else PeftModel.from_pretrained(model, adapter).eval()

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """float32 [T, V]."""
        return self.model(input_ids=torch.tensor([token_ids])).logits[0].float()

    @torch.inference_mode()
    def greedy(self, token_ids: Sequence[int], count: int) -> list[int]:
        """The next `count` tokens."""
        known = list(token_ids)
        for _ in range(count):
            known.append(int(self.logits(known)[-1].argmax()))
        return known[len(token_ids) :]

"""Adapters that peft makes and computes, for tiny checkpoints.

Owns: their random numbers, and peft's answers. Never does: know the engine. Called by: the tests of adapters.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
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

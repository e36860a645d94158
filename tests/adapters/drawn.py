"""Adapters of random numbers for any checkpoint, written without peft.

Owns: these files. Never does: compute with them. Called by: tests that need many adapters, or adapters of a model that peft
cannot open.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from core_config.resolve import resolve

MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SCALE = 0.05
Shapes = dict[str, tuple[int, int]]


def shapes_of(model: str, names: Sequence[str] = MATRICES) -> Shapes:
    """The matrices [N, K] of these names, those that an adapter usually changes, by module."""
    manifest = resolve({"model": model}, context="llm").manifest
    endings = tuple(f"{name}.weight" for name in names)
    found = {name: info.shape for name, info in manifest.tensors.items() if name.endswith(endings)}
    return {name.removesuffix(".weight"): (shape[0], shape[1]) for name, shape in found.items()}


def write_adapter(folder: Path, shapes: Shapes, rank: int, seed: int, scale: float = SCALE, **keys: Any) -> Path:
    """Write an adapter as peft saves it. scale: of its numbers. keys: of its configuration, beside the usual ones."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for module, (outputs, inputs) in shapes.items():
        name = f"base_model.model.{module}"
        tensors[f"{name}.lora_A.weight"] = torch.randn(rank, inputs, generator=draw) * scale
        tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, rank, generator=draw) * scale
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = sorted({module.rpartition(".")[2] for module in shapes})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": targets,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config | keys))
    return folder

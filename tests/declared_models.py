"""Checkpoints whose declaration rounds inputs, made of tiny models with random weights.

Owns: one for each way to find a scale. Never does: start an engine. Called by: tests of declared inputs in combination.
"""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.tiny_models import save_checkpoint

DECLARED: Final = {"quantization_config": {"activation": "declared"}}
"""Arguments of an engine that rounds."""
LARGEST: Final = 448.0
BLOCK: Final = 16
FAMILIES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "rows_llama": ("llama", {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    "blocks_mixtral": (
        "mixtral",
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]},
    ),
    "static_mixtral": ("mixtral", {"quant_method": "fp8", "activation_scheme": "static"}),
}
"""Name → family of the tiny model, and what its checkpoint declares: a scale for a token, a block, or each matrix."""


def save_declared(path: Path, name: str, seed: int = 0) -> Path:
    """Write a checkpoint of FAMILIES and return its directory."""
    family, declaration = FAMILIES[name]
    save_checkpoint(path, family, seed)
    tensors: dict[str, Tensor] = {}
    for key, tensor in load_file(path / "model.safetensors").items():
        module = key.removesuffix(".weight")
        if tensor.dim() != 2 or (not key.endswith("_proj.weight") and ".experts." not in key):
            tensors[key] = tensor
            continue
        tensors |= _packed(module, tensor, declaration)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": declaration}))
    return path


def _packed(module: str, matrix: Tensor, declaration: dict[str, Any]) -> dict[str, Tensor]:
    if "weight_block_size" not in declaration:
        scale = matrix.abs().max() / LARGEST
        found = {"weight": (matrix / scale).to(torch.float8_e4m3fn), "weight_scale": scale.view(1)}
        if declaration["activation_scheme"] == "static":
            found["input_scale"] = _input_scale(module)
        return {f"{module}.{name}": tensor for name, tensor in found.items()}
    rows, inputs = matrix.shape
    blocks = matrix.view(rows // BLOCK, BLOCK, inputs // BLOCK, BLOCK)
    scale = blocks.abs().amax((1, 3), keepdim=True) / LARGEST
    values = (blocks / scale).to(torch.float8_e4m3fn).view(rows, inputs)
    return {f"{module}.weight": values, f"{module}.weight_scale_inv": scale[:, 0, :, 0].contiguous()}


def _input_scale(module: str) -> Tensor:
    """Return the static scale of a module's inputs, which those that read the same inputs share: one for each expert."""
    expert = module.split(".")[-2]
    return torch.tensor([0.01 * (1 + int(expert) / 4)]) if expert.isdigit() else torch.tensor([0.02])

"""Makes the checkpoints beside it with transformers: `python make.py` in an environment with torch and transformers.

8-bit floats in blocks, as DeepSeek publishes them. Transformers asks for a GPU, but rounds without one. It saves the scales of
a layer's experts as one tensor; they are written as published checkpoints have them. Random weights: only the packing matters.
`digests.json` of each has, by module, the sha256 of the float32 bytes of the matrix [N, K] that transformers itself makes of
the packed tensors (`dequantize`), and the versions of the tools.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, LlamaConfig, Qwen3MoeConfig
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the environment of the tool does not have the package `tests`

from maker import EXPERTS, UNTIED, copy_files, digest, random_model, wanted, write_digests  # noqa: E402

KEPT = ("config.json", "model.safetensors")
WORK = Path("/tmp/make-fp8")
SHAPE: dict[str, Any] = {**UNTIED, "num_hidden_layers": 1}
CHECKPOINTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "blocks": (LlamaConfig(**SHAPE), {"weight_block_size": (32, 16)}),
    "experts": (Qwen3MoeConfig(**SHAPE, **EXPERTS), {"weight_block_size": (32, 32)}),
    "exponents": (LlamaConfig(**SHAPE), {"weight_block_size": (32, 32), "scale_fmt": "ue8m0"}),
}


def make(name: str) -> None:
    """One checkpoint."""
    config, settings = CHECKPOINTS[name]
    random_model(config, torch.bfloat16).save_pretrained(WORK / name)
    FineGrainedFP8HfQuantizer.validate_environment = lambda self, *args, **kwargs: None
    asked = FineGrainedFP8Config(**settings)
    packed = AutoModelForCausalLM.from_pretrained(WORK / name, dtype=torch.bfloat16, quantization_config=asked)
    saved = WORK / f"{name}-packed"
    packed.save_pretrained(saved)
    target = HERE / name
    copy_files(KEPT, saved, target)
    state = with_scales_of_experts(load_file(target / "model.safetensors"))
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    digests = {}
    for full, scale in state.items():
        module, _, suffix = full.rpartition(".")
        if suffix == "weight_scale_inv":
            digests[module] = digest(
                Fp8Dequantize(None)._dequantize_one(state[f"{module}.weight"], scale, torch.float32)
            )
    write_digests(target, ("torch", "transformers"), digests)


def with_scales_of_experts(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The scales of all experts of a layer, each under the name of its own matrix."""
    found: dict[str, Tensor] = {}
    for full, tensor in state.items():
        module, _, stacked = full.rpartition(".")
        parts = {"gate_up_proj_scale_inv": ("gate_proj", "up_proj"), "down_proj_scale_inv": ("down_proj",)}.get(stacked)
        if parts is None:
            found[full] = tensor
            continue
        for expert, own in enumerate(tensor):
            for part, scale in zip(parts, own.chunk(len(parts)), strict=True):
                found[f"{module}.{expert}.{part}.weight_scale_inv"] = scale.contiguous()
    return found


if __name__ == "__main__":
    for one in wanted(CHECKPOINTS):
        make(one)

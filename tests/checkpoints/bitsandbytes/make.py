"""Makes the checkpoints beside it with bitsandbytes and transformers: `python make.py` in an environment that has both.

Random weights: only the packing matters. `digests.json` of each has, by module, the sha256 of the float32 bytes of the matrix
[N, K] as the generic code of bitsandbytes dequantizes it (its own kernel for CPUs, version 0.50.2, takes wrong scales where
blocks cross rows, far from the weights that went in); of 8-bit integers, the product of integers and scales in float32.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from bitsandbytes import functional
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, Phi3Config

HERE = Path(__file__).parent
WORK = Path("/tmp/make-bitsandbytes")
sys.path.append(str(HERE.parent))  # the environment of the tool does not have the package `tests`

from maker import SHAPE, digest, keep_files, random_model, wanted, write_digests  # noqa: E402

NESTED = {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True}
CHECKPOINTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "nf4": (LlamaConfig(**SHAPE), {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    "nested": (LlamaConfig(**SHAPE), NESTED),
    "int8": (LlamaConfig(**SHAPE), {"load_in_8bit": True, "llm_int8_skip_modules": ["lm_head"]}),
    "fused": (
        Phi3Config(**SHAPE),
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    ),
}
# transformers holds the experts of mixtral as one matrix, which bitsandbytes does not pack.


def dequantized(weight: Any) -> torch.Tensor:
    """A matrix of 4 bits, in float32."""
    state = weight.quant_state
    scales = state.absmax
    if state.nested:
        scales = functional.dequantize_blockwise(scales, state.state2) + state.offset
    codes = weight.data.reshape(-1)
    return _dequantize_4bit_compute(codes, scales, state.code, state.blocksize, state.shape, torch.float32)


def make(name: str, config: Any, settings: dict[str, Any]) -> None:
    """One checkpoint."""
    plain = WORK / name
    random_model(config, torch.float32).save_pretrained(plain)
    packed = AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=BitsAndBytesConfig(**settings), device_map="cpu", dtype=torch.float32
    )
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    packed.save_pretrained(target)
    digests = {}
    for module_name, module in packed.named_modules():
        weight = getattr(module, "weight", None)
        if getattr(weight, "quant_state", None) is not None:
            digests[module_name] = digest(dequantized(weight))
        elif getattr(weight, "SCB", None) is not None:
            digests[module_name] = digest(weight.data.float() * (weight.SCB.float() / 127).view(-1, 1))
    keep_files(("config.json", "model.safetensors"), target)
    write_digests(target, ("bitsandbytes", "torch", "transformers"), digests)


if __name__ == "__main__":
    for one in wanted(CHECKPOINTS):
        make(one, *CHECKPOINTS[one])

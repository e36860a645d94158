"""Makes the checkpoints beside it with bitsandbytes and transformers: `python make.py` in an environment that has both.

Random weights: only the packing matters. `digests.json` of each has, by module, the sha256 of the float32 bytes of the matrix
[N, K] as the generic code of bitsandbytes dequantizes it (its own kernel for CPUs, version 0.50.2, takes wrong scales where
blocks cross rows, far from the weights that went in); of 8-bit integers, the product of integers and scales in float32.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from bitsandbytes import functional
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, Phi3Config

HERE = Path(__file__).parent
WORK = Path("/tmp/make-bitsandbytes")
sys.path.append(str(HERE.parent))

from tokenizer import save_tokenizer  # noqa: E402  (the environment of the tool does not have this package)

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
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


def digest(matrix: torch.Tensor) -> str:
    """Of a matrix in float32."""
    assert matrix.dtype is torch.float32, matrix.dtype
    unsigned_zeros = matrix + 0.0
    return hashlib.sha256(unsigned_zeros.contiguous().numpy().tobytes()).hexdigest()


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
    torch.manual_seed(0)
    plain = WORK / name
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    model.save_pretrained(plain)
    packed = AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=BitsAndBytesConfig(**settings), device_map="cpu", dtype=torch.float32
    )
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    packed.save_pretrained(target)
    save_tokenizer(target)
    digests = {}
    for module_name, module in packed.named_modules():
        weight = getattr(module, "weight", None)
        if getattr(weight, "quant_state", None) is not None:
            digests[module_name] = digest(dequantized(weight))
        elif getattr(weight, "SCB", None) is not None:
            digests[module_name] = digest(weight.data.float() * (weight.SCB.float() / 127).view(-1, 1))
    for file in target.iterdir():
        if file.name not in ("config.json", "model.safetensors", "tokenizer.json"):
            file.unlink()
    tools = {tool: version(tool) for tool in ("bitsandbytes", "torch", "transformers")}
    (target / "digests.json").write_text(json.dumps({"versions": tools, "float32": digests}, indent=1) + "\n")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or CHECKPOINTS:
        make(wanted, *CHECKPOINTS[wanted])

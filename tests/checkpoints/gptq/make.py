"""Makes the checkpoints beside it with GPTQModel: `GPTQMODEL_CPU_WORKERS=2 python make.py` in an environment that has it.

A checkpoint that is there is kept, only its digests are written again. Random weights, random text: only the packing matters.
`digests.json` of each has, by module, the sha256 of the float16 bytes of the matrix [N, K] that GPTQModel itself computes
from the packed tensors, and the versions of the tools.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import gptqmodel
import torch
import transformers
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen3MoeConfig

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from tokenizer import save_tokenizer  # noqa: E402  (the environment of the tool does not have this package)

KEPT = ("config.json", "model.safetensors", "quantize_config.json", "tokenizer.json")
WORK = Path("/tmp/make-gptq")
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
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
BACK_TO_8 = {r"+:.*layers\.1\.mlp\.down_proj": {"bits": 8, "group_size": -1}, r"-:.*layers\.0\.mlp\.up_proj": {}}
CHECKPOINTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "order": (
        LlamaConfig(**SHAPE),
        {"bits": 4, "group_size": 32, "desc_act": True, "sym": False, "dynamic": BACK_TO_8},
    ),
    "two_bits": (LlamaConfig(**SHAPE), {"bits": 2, "group_size": 32, "sym": False, "format": "gptq_v2"}),
    "three_bits": (LlamaConfig(**SHAPE), {"bits": 3, "group_size": -1, "sym": True, "act_group_aware": False}),
    "experts": (
        Qwen3MoeConfig(**SHAPE, **EXPERTS),
        {"bits": 4, "group_size": 16, "desc_act": True, "sym": True},
    ),
}


def digest(matrix: torch.Tensor) -> str:
    """Of a matrix in float16."""
    assert matrix.dtype is torch.float16, matrix.dtype
    unsigned_zeros = matrix + 0.0
    return hashlib.sha256(unsigned_zeros.contiguous().numpy().tobytes()).hexdigest()


def make(name: str, config: Any, settings: dict[str, Any]) -> None:
    """One checkpoint."""
    torch.manual_seed(0)
    plain = WORK / name
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    model.half().save_pretrained(plain)
    save_tokenizer(plain)
    text = []
    for _ in range(16):
        ids = torch.randint(4, config.vocab_size, (1, 64))
        text.append({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    quantized = GPTQModel.load(str(plain), QuantizeConfig(device="cpu", **settings))
    quantized.quantize(text, batch_size=4, backend=BACKEND.TORCH)
    target = HERE / name
    quantized.save(str(target))
    for file in target.iterdir():
        if file.name not in KEPT:
            file.unlink()


def write_digests(target: Path) -> None:
    """What the tool makes of its own checkpoint, in float16."""
    loaded = GPTQModel.load(str(target), device="cpu", backend=BACKEND.TORCH, dtype=torch.float16)
    digests = {}
    for name, module in loaded.model.named_modules():
        if hasattr(module, "dequantize_weight"):
            digests[name] = digest(module.dequantize_weight().t())
    tools = {"gptqmodel": gptqmodel.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    found = {"versions": tools, "float16": digests}
    (target / "digests.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or CHECKPOINTS:
        if not (HERE / wanted).exists():
            make(wanted, *CHECKPOINTS[wanted])
        write_digests(HERE / wanted)

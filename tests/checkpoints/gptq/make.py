"""Makes the checkpoints beside it with GPTQModel: `GPTQMODEL_CPU_WORKERS=2 python make.py` in an environment that has it.

A checkpoint that is there is kept, only its digests are written again. Random weights, random text: only the packing matters.
`digests.json` of each has, by module, the sha256 of the float16 bytes of the matrix [N, K] that GPTQModel itself computes
from the packed tensors, and the versions of the tools.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from transformers import LlamaConfig, Qwen3MoeConfig

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the environment of the tool does not have the package `tests`

from maker import EXPERTS, SHAPE, digest, keep_files, random_model, save_tokenizer, wanted, write_digests  # noqa: E402

KEPT = ("config.json", "model.safetensors", "quantize_config.json")
WORK = Path("/tmp/make-gptq")
BACK_TO_8 = {r"+:.*layers\.1\.mlp\.down_proj": {"bits": 8, "group_size": -1}, r"-:.*layers\.0\.mlp\.up_proj": {}}
CHECKPOINTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "order": (
        LlamaConfig(**SHAPE),
        {"bits": 4, "group_size": 32, "desc_act": True, "sym": False, "dynamic": BACK_TO_8},
    ),
    "two_bits": (LlamaConfig(**SHAPE), {"bits": 2, "group_size": 32, "sym": False, "format": "gptq_v2"}),
    "three_bits": (LlamaConfig(**SHAPE), {"bits": 3, "group_size": -1, "sym": True, "act_group_aware": False}),
    "experts": (Qwen3MoeConfig(**SHAPE, **EXPERTS), {"bits": 4, "group_size": 16, "desc_act": True, "sym": True}),
}


def make(name: str, config: Any, settings: dict[str, Any]) -> None:
    """One checkpoint."""
    plain = WORK / name
    random_model(config, torch.float16).save_pretrained(plain)
    save_tokenizer(plain)
    text = []
    for _ in range(16):
        ids = torch.randint(4, config.vocab_size, (1, 64))
        text.append({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    quantized = GPTQModel.load(str(plain), QuantizeConfig(device="cpu", **settings))
    quantized.quantize(text, batch_size=4, backend=BACKEND.TORCH)
    target = HERE / name
    quantized.save(str(target))
    keep_files(KEPT, target)


def examine(target: Path) -> None:
    """Write the digests of the matrices that the tool makes of its own checkpoint, in float16."""
    loaded = GPTQModel.load(str(target), device="cpu", backend=BACKEND.TORCH, dtype=torch.float16)
    digests = {}
    for name, module in loaded.model.named_modules():
        if hasattr(module, "dequantize_weight"):
            digests[name] = digest(module.dequantize_weight().t(), torch.float16)
    write_digests(target, ("gptqmodel", "torch", "transformers"), digests, "float16")


if __name__ == "__main__":
    for one in wanted(CHECKPOINTS):
        if not (HERE / one).exists():
            make(one, *CHECKPOINTS[one])
        examine(HERE / one)

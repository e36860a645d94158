"""Makes the checkpoints beside it with hqq: `python make.py` in an environment that has it.

Random weights: only the packing matters. Each matrix is packed by hqq's `HQQLinear` and saved under the names that its own
`state_dict` has, as hqq and transformers 4 save whole models (transformers 5 no longer packs). `digests.json` of each has, by
module, the sha256 of the float32 bytes of the matrix [N, K] that hqq itself computes from the packed tensors, its scales and
zero points widened to float32, and the versions of the tools.
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
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, Qwen3MoeConfig

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from tokenizer import save_tokenizer  # noqa: E402  (the environment of the tool does not have this package)

KEPT = ("config.json", "model.safetensors", "tokenizer.json")
WORK = Path("/tmp/make-hqq")
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
    "tie_word_embeddings": False,
}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}


def settings(nbits: int, group_size: int | None = 32, axis: int = 1, view_as_float: bool = False) -> dict[str, Any]:
    """Of one kind of layer."""
    return BaseQuantizeConfig(nbits=nbits, group_size=group_size, axis=axis, view_as_float=view_as_float)


BY_LAYER = {
    "self_attn.q_proj": settings(8),
    "self_attn.k_proj": settings(4),
    "self_attn.v_proj": settings(3),
    "self_attn.o_proj": settings(2, group_size=16),
    "mlp.gate_proj": settings(1),
    "mlp.up_proj": settings(4, group_size=64, view_as_float=True),
    "mlp.down_proj": settings(4, axis=0),
    "lm_head": settings(8, group_size=None),
}
CHECKPOINTS: dict[str, tuple[Any, torch.dtype, dict[str, Any], list[str]]] = {
    "bits": (LlamaConfig(**SHAPE), torch.float16, BY_LAYER, []),
    "experts": (Qwen3MoeConfig(**SHAPE, **EXPERTS), torch.bfloat16, settings(4), ["lm_head", "mlp.gate"]),
    "fused": (Phi3Config(**SHAPE), torch.bfloat16, settings(8, group_size=64), ["lm_head"]),
}


def tag_of(module: str) -> str:
    """The kind of a layer, as transformers names it in `quant_config`."""
    words = [word for word in module.split(".") if word not in ("model", "layers") and not word.isnumeric()]
    return ".".join(words)


def make(name: str) -> None:
    """One checkpoint."""
    config, dtype, chosen, plain = CHECKPOINTS[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    model.to(dtype).save_pretrained(WORK / name)
    save_tokenizer(WORK / name)
    state: dict[str, torch.Tensor] = {}
    digests = {}
    for full, tensor in load_file(WORK / name / "model.safetensors").items():
        module = full.removesuffix(".weight")
        own = chosen if "weight_quant_params" in chosen else chosen.get(tag_of(module))
        if tensor.dim() < 2 or "embed" in full or tag_of(module) in plain or own is None:
            state[full] = tensor
            continue
        layer = HQQLinear.from_weights(tensor, None, own, compute_dtype=dtype, device="cpu")
        for suffix, packed in layer.state_dict().items():
            state[f"{module}.{suffix}"] = packed.data.contiguous()
        digests[module] = digest_of(layer)
    target = HERE / name
    target.mkdir(exist_ok=True)
    for file in KEPT:
        shutil.copy(WORK / name / file, target / file)
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((target / "config.json").read_text())
    written["quantization_config"] = {"quant_config": chosen, "quant_method": "hqq", "skip_modules": plain}
    (target / "config.json").write_text(json.dumps(written, indent=1) + "\n")
    tools = {tool: version(tool) for tool in ("hqq", "torch", "transformers")}
    found = {"versions": tools, "float32": digests}
    (target / "digests.json").write_text(json.dumps(found, indent=1) + "\n")


def digest_of(layer: HQQLinear) -> str:
    """Of the matrix that hqq computes in float32."""
    meta = {**layer.meta, "compute_dtype": torch.float32}
    for key in ("scale", "zero"):
        meta[key] = meta[key].float()
    matrix = Quantizer.dequantize(layer.W_q.data, meta)
    assert matrix.dtype is torch.float32, matrix.dtype
    return hashlib.sha256(matrix.contiguous().numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    for wanted in sys.argv[1:] or CHECKPOINTS:
        make(wanted)

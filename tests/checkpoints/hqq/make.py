"""Makes the checkpoints beside it with hqq: `python make.py` in an environment that has it.

Random weights: only the packing matters. Each matrix is packed by hqq's `HQQLinear` and saved under the names that its own
`state_dict` has, as hqq and transformers 4 save whole models (transformers 5 no longer packs). `digests.json` of each has, by
module, the sha256 of the float32 bytes of the matrix [N, K] that hqq itself computes from the packed tensors, its scales and
zero points widened to float32, and the versions of the tools.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, Phi3Config, Qwen3MoeConfig

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the environment of the tool does not have the package `tests`

from maker import EXPERTS, UNTIED, copy_files, digest, random_model, wanted, write_digests, write_json  # noqa: E402

KEPT = ("config.json", "model.safetensors")
WORK = Path("/tmp/make-hqq")


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
    "bits": (LlamaConfig(**UNTIED), torch.float16, BY_LAYER, []),
    "experts": (Qwen3MoeConfig(**UNTIED, **EXPERTS), torch.bfloat16, settings(4), ["lm_head", "mlp.gate"]),
    "fused": (Phi3Config(**UNTIED), torch.bfloat16, settings(8, group_size=64), ["lm_head"]),
}


def tag_of(module: str) -> str:
    """The kind of a layer, as transformers names it in `quant_config`."""
    words = [word for word in module.split(".") if word not in ("model", "layers") and not word.isnumeric()]
    return ".".join(words)


def make(name: str) -> None:
    """One checkpoint."""
    config, dtype, chosen, plain = CHECKPOINTS[name]
    random_model(config, dtype).save_pretrained(WORK / name)
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
    copy_files(KEPT, WORK / name, target)
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((target / "config.json").read_text())
    written["quantization_config"] = {"quant_config": chosen, "quant_method": "hqq", "skip_modules": plain}
    write_json(target / "config.json", written)
    write_digests(target, ("hqq", "torch", "transformers"), digests)


def digest_of(layer: HQQLinear) -> str:
    """Return the digest of the matrix that hqq computes in float32."""
    meta = {**layer.meta, "compute_dtype": torch.float32}
    for key in ("scale", "zero"):
        meta[key] = meta[key].float()
    return digest(Quantizer.dequantize(layer.W_q.data, meta), signed_zeros=True)


if __name__ == "__main__":
    for one in wanted(CHECKPOINTS):
        make(one)

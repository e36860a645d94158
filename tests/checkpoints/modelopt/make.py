"""Makes the checkpoints beside it with ModelOpt: `python make.py` in an environment that has nvidia-modelopt.

A checkpoint that is there is kept, only its digests are written again. Random weights, random text: only the packing matters.
`digests.json` of each has, by module, the sha256 of the float32 bytes of
the matrix [N, K] that ModelOpt's own tensor classes compute from the exported tensors, and the versions of the tools. Matrices
of nvfp4 are told without the scale of the whole matrix: their last bits would depend on the order of two products.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, INT8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, Qwen3MoeConfig

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the environment of the tool does not have the package `tests`

from maker import EXPERTS, UNTIED, copy_files, digest, random_model, wanted, write_digests  # noqa: E402

KEPT = ("config.json", "hf_quant_config.json", "model.safetensors")
WORK = Path("/tmp/make-modelopt")
SHAPE: dict[str, Any] = {**UNTIED, "num_hidden_layers": 1}
BLOCK = 128
CACHE = mtq.FP8_KV_CFG["quant_cfg"]
FP8_WITH_CACHE = mtq.utils.update_quant_cfg_with_kv_cache_quant(mtq.FP8_DEFAULT_CFG, CACHE)
CHECKPOINTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "fp8": (LlamaConfig(**SHAPE), FP8_WITH_CACHE),
    "fp8_blocks": (LlamaConfig(**{**SHAPE, "intermediate_size": 256}), mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG),
    "fp8_rows": (Phi3Config(**SHAPE), mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG),
    "int8": (LlamaConfig(**SHAPE), mtq.INT8_WEIGHT_ONLY_CFG),
    "mxfp4": (LlamaConfig(**SHAPE), mtq.MXFP4_DEFAULT_CFG),
    "mxfp8": (LlamaConfig(**SHAPE), mtq.MXFP8_DEFAULT_CFG),
    "nvfp4": (Qwen3MoeConfig(**SHAPE, **EXPERTS), mtq.NVFP4_DEFAULT_CFG),
    "nvfp4_of_32": (LlamaConfig(**SHAPE), mtq.W4A8_NVFP4_FP8_CFG),
}


def make(name: str) -> None:
    """One checkpoint."""
    config, settings = CHECKPOINTS[name]
    random_model(config, torch.bfloat16).save_pretrained(WORK / name)
    model = AutoModelForCausalLM.from_pretrained(WORK / name, dtype=torch.bfloat16)

    def some_text(model: Any) -> None:
        for _ in range(4):  # each expert sees some of it
            model(torch.randint(3, config.vocab_size, (4, 32)))

    exported = WORK / f"{name}-exported"
    export_hf_checkpoint(mtq.quantize(model, settings, some_text), export_dir=exported)
    copy_files(KEPT, exported, HERE / name)


def examine(target: Path) -> None:
    """Write the digests of the matrices that the tool makes of its own tensors, in float32."""
    state = load_file(target / "model.safetensors")
    digests = {}
    for full in state:
        module, _, suffix = full.rpartition(".")
        if suffix == "weight_scale":
            matrix = dequantized(state[f"{module}.weight"], state[full], state.get(f"{module}.weight_scale_2"))
            digests[module] = digest(matrix)
    write_digests(target, ("nvidia-modelopt", "torch", "transformers"), digests)


def dequantized(weight: Tensor, scale: Tensor, whole: Tensor | None) -> Tensor:
    """The matrix by ModelOpt's class for such tensors."""
    rows, columns = weight.shape
    if weight.dtype is torch.int8:
        return INT8QTensor(weight.shape, torch.float32, weight).dequantize(scale=scale.view(-1, 1))
    if weight.dtype is torch.uint8:
        inputs = 2 * columns
        shape = torch.Size((rows, inputs))
        sizes = {-1: inputs // scale.shape[1]}
        if whole is None:
            return MXFP4QTensor(shape, torch.float32, weight).dequantize(scale=scale, block_sizes=sizes)
        packed = NVFP4QTensor(shape, torch.float32, weight)
        return packed.dequantize(scale=scale, double_scale=torch.ones_like(whole), block_sizes=sizes)
    if scale.dtype is torch.uint8:
        return MXFP8QTensor(weight.shape, torch.float32, weight).dequantize(scale=scale)
    packed = FP8QTensor(weight.shape, torch.float32, weight)
    if scale.dim() == 4:
        sizes = {0: BLOCK, 1: BLOCK}
        return packed.dequantize(scale=scale.flatten(2).flatten(0, 1), block_sizes=sizes)
    return packed.dequantize(scale=scale.view(-1, 1) if scale.dim() == 1 else scale)


if __name__ == "__main__":
    for one in wanted(CHECKPOINTS):
        if not (HERE / one).exists():
            make(one)
        examine(HERE / one)

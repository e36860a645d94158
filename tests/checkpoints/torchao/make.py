"""Makes the checkpoints beside it with torchao: `python make.py` in an environment that has it.

Random weights: only the packing matters. Each matrix is packed by torchao's own configuration, and all are written by its own
`flatten_tensor_state_dict`, as transformers saves a whole model. `digests.json` of each has, by module, the sha256 of the
float32 bytes of the matrix [N, K] that torchao itself computes from the packed tensors, and the versions of the tools.

Int4Tensor needs kernels for GPUs (mslk) to be made: its integers are packed here as `pack_int4` of these packs them, and
unpacked by torchao's own GPTQ. The scale of a whole nvfp4 matrix is a power of two, so that no order of products matters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchao.prototype.gptq.api import _int4_row_dequantize_zp
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import (
    Float8Tensor,
    Int4Tensor,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxUnpackedToInt8Tensor,
    IntxWeightOnlyConfig,
    MappingType,
    PerAxis,
    PerGroup,
    PerRow,
    PerTensor,
    quantize_,
)
from transformers import LlamaConfig, Phi3Config, Qwen3MoeConfig, TorchAoConfig

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the environment of the tool does not have the package `tests`

from maker import EXPERTS, UNTIED, copy_files, digest, random_model, wanted, write_digests, write_json  # noqa: E402

KEPT = ("config.json",)
WORK = Path("/tmp/make-torchao")
GROUP = 32
Pack = Callable[[Tensor], Tensor]


def by(config: Any) -> Pack:
    """Packed as torchao packs a linear layer."""

    def pack(matrix: Tensor) -> Tensor:
        layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, dtype=matrix.dtype)
        layer.weight.data.copy_(matrix)
        quantize_(layer, config)
        return layer.weight.data

    return pack


def nibbles(matrix: Tensor) -> Tensor:
    """Int4Tensor in groups."""
    groups = matrix.float().reshape(-1, GROUP)
    lowest = groups.amin(1, keepdim=True)
    scale = ((groups.amax(1, keepdim=True) - lowest) / 15).bfloat16().float()
    zero = (lowest + 8 * scale).bfloat16().float()
    codes = ((groups - zero) / scale).round().clamp(-8, 7).to(torch.int8).view(matrix.shape)
    return Int4Tensor(
        qdata=(codes[:, ::2] & 15) | (codes[:, 1::2] << 4),
        scale=scale.view(len(matrix), -1).T.contiguous().bfloat16(),
        zero_point=zero.view(len(matrix), -1).T.contiguous().bfloat16(),
        block_size=[1, GROUP],
        shape=matrix.shape,
    )


def mx(kind: torch.dtype, swizzled: bool) -> Pack:
    """Blocks of 32 with powers of two."""
    return lambda matrix: MXTensor.to_mx(matrix, kind, 32, is_swizzled_scales=swizzled)


def nv(swizzled: bool, whole: float | None) -> Pack:
    """Blocks of 16 with 8-bit floats."""
    scale = None if whole is None else torch.tensor(whole)
    return lambda matrix: NVFP4Tensor.to_nvfp4(matrix, per_tensor_scale=scale, is_swizzled_scales=swizzled)


def small(bits: int, mapping: MappingType = MappingType.SYMMETRIC, group: int | None = GROUP) -> Pack:
    """Integers of few bits."""
    kind = getattr(torch, f"int{bits}")
    granularity = PerAxis(0) if group is None else PerGroup(group)
    return by(IntxWeightOnlyConfig(weight_dtype=kind, granularity=granularity, mapping_type=mapping))


DYNAMIC = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(GROUP))
INTEGERS: dict[str, Pack] = {
    "embed_tokens": small(8, group=None),
    "layers.0.self_attn.q_proj": by(Int8WeightOnlyConfig()),
    "layers.0.self_attn.k_proj": by(Int8WeightOnlyConfig(granularity=PerTensor())),
    "layers.0.self_attn.v_proj": by(Int8WeightOnlyConfig(granularity=PerGroup(GROUP))),
    "layers.0.mlp.gate_proj": by(DYNAMIC),
    "layers.0.mlp.up_proj": small(4, MappingType.ASYMMETRIC),
    "layers.0.mlp.down_proj": small(3, group=None),
    "layers.1.self_attn.q_proj": small(1),
    "layers.1.self_attn.k_proj": small(2, MappingType.ASYMMETRIC),
    "layers.1.self_attn.v_proj": small(6, MappingType.ASYMMETRIC),
    "layers.1.mlp": nibbles,
    "lm_head": by(Int8DynamicActivationInt8WeightConfig()),
}
FLOATS: dict[str, Pack] = {
    "layers.0.self_attn.q_proj": lambda matrix: Float8Tensor.from_hp(matrix, granularity=PerRow()),
    "layers.0.self_attn.k_proj": lambda matrix: Float8Tensor.from_hp(matrix, granularity=PerTensor()),
    "layers.0.self_attn.v_proj": lambda matrix: Float8Tensor.from_hp(matrix, torch.float8_e5m2),
    "layers.0.mlp.gate_proj": mx(torch.float8_e4m3fn, swizzled=True),
    "layers.0.mlp.up_proj": mx(torch.float8_e5m2, swizzled=False),
    "layers.0.mlp.down_proj": mx(torch.float4_e2m1fn_x2, swizzled=True),
    "layers.1.self_attn.q_proj": mx(torch.float4_e2m1fn_x2, swizzled=False),
    "layers.1.self_attn.k_proj": nv(swizzled=False, whole=None),
    "layers.1.mlp": nv(swizzled=True, whole=2.0**-10),
}
CHECKPOINTS: dict[str, tuple[Any, dict[str, Pack], bool]] = {
    "integers": (LlamaConfig(**UNTIED), INTEGERS, True),
    "floats": (LlamaConfig(**UNTIED), FLOATS, False),
    "experts": (Qwen3MoeConfig(**UNTIED, **EXPERTS), {"_proj": small(4)}, False),
    "fused": (
        Phi3Config(**{**UNTIED, "tie_word_embeddings": True}),
        {"_proj": by(Int8DynamicActivationInt8WeightConfig()), "embed_tokens": small(8, group=None)},
        True,
    ),
}


def make(name: str) -> None:
    """One checkpoint."""
    config, packs, embeddings = CHECKPOINTS[name]
    random_model(config, torch.bfloat16).save_pretrained(WORK / name)
    state = load_file(WORK / name / "model.safetensors")
    digests = {}
    for full, matrix in state.items():
        pack = next((packs[part] for part in packs if part in full), None)
        if matrix.dim() == 2 and pack is not None:
            state[full] = pack(matrix)
            digests[full.removesuffix(".weight")] = digest(widened(state[full]))
    target = HERE / name
    copy_files(KEPT, WORK / name, target)
    tensors, metadata = flatten_tensor_state_dict(state)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt", **metadata})
    written = json.loads((target / "config.json").read_text())
    declared = TorchAoConfig(Int8WeightOnlyConfig(), include_input_output_embeddings=embeddings).to_dict()
    written["quantization_config"] = {**declared, "quant_method": "torchao"}
    write_json(target / "config.json", written)
    write_digests(target, ("torchao", "torch", "transformers"), digests)


def widened(packed: Tensor) -> Tensor:
    """Return the matrix that torchao computes in float32."""
    if isinstance(packed, IntxUnpackedToInt8Tensor):
        return packed.to(torch.float32).dequantize()
    if isinstance(packed, Int4Tensor):
        low = (packed.qdata << 4) >> 4
        codes = torch.stack((low, packed.qdata >> 4), -1).view(packed.shape)
        return _int4_row_dequantize_zp(codes, packed.scale.float(), packed.zero_point.float(), GROUP)
    return packed.dequantize(torch.float32)


if __name__ == "__main__":
    for one in wanted(CHECKPOINTS):
        make(one)

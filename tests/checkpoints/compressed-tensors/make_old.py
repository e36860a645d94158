"""Makes `sparse` and `act-order` beside this file with the last version of compressed-tensors that could write them.

    pip install torch==2.13.0 transformers compressed-tensors==0.12.2 && python make_old.py

`sparse`: 2:4 and unstructured matrices as values and bit masks, one of them with 8-bit floats. `act-order`: 4-bit integers
whose inputs belong to groups in any order (`weight_g_idx`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.quantized_compressors.pack_quantized import unpack_from_int32
from compressed_tensors.config import BitmaskConfig, Sparse24BitMaskConfig
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the environment of the tool does not have the package `tests`

from maker import SHAPE, digest, write_json  # noqa: E402

TIED = {**SHAPE, "tie_word_embeddings": True}
GROUP = 32


def model(seed: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(configuration, tensors) of a random model in bfloat16."""
    torch.manual_seed(seed)
    config = LlamaConfig(**TIED, dtype="bfloat16")
    made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tensors = {}
    for name, tensor in made.state_dict().items():
        if name != "lm_head.weight":
            tensors[name] = tensor * 8 if tensor.dim() > 1 else tensor
    return {**config.to_dict(), "architectures": ["LlamaForCausalLM"]}, tensors


def save(name: str, config: dict[str, Any], tensors: dict[str, torch.Tensor], digests: dict[str, str]) -> None:
    """A checkpoint and the digests of its matrices."""
    directory = HERE / name
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1, default=str) + "\n")
    write_json(directory / "dequantized.json", digests)
    contiguous = {key: tensor.contiguous() for key, tensor in tensors.items()}
    save_file(contiguous, directory / "model.safetensors", metadata={"format": "pt"})


def channel_fp8(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, QuantizationArgs]:
    """(values, scale, scheme) of 8-bit floats with a scale a row."""
    args = QuantizationArgs(num_bits=8, type="float", strategy="channel", symmetric=True)
    low = matrix.amin(1, keepdim=True)
    high = matrix.amax(1, keepdim=True)
    scale, _ = calculate_qparams(low, high, args)
    quantizer = BaseCompressor.load_from_registry("float-quantized")
    packed = quantizer.compress_weight(weight=matrix, scale=scale, quantization_args=args)
    return packed["weight"], scale, args


def make_sparse() -> None:
    """Layer 0 plain and 2:4, its MLP unstructured; layer 1 in 8-bit floats and 2:4."""
    config, tensors = model(1)
    structured = BaseCompressor.load_from_registry("sparse-24-bitmask", config=Sparse24BitMaskConfig())
    free = BaseCompressor.load_from_registry("sparse-bitmask", config=BitmaskConfig())
    digests = {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        module = name.removesuffix(".weight")
        matrix = tensors.pop(name)
        scale = None
        if ".mlp." in name and ".0." in name:
            kept = matrix * (matrix.abs() > 0.1)
            parts = free.compress({name: kept})
            whole = dict(free.decompress_from_state_dict(parts))
        else:
            order = matrix.view(-1, 4).abs().argsort(1)
            places = torch.zeros_like(matrix.view(-1, 4)).scatter(1, order[:, 2:], 1.0)
            kept = matrix * places.view_as(matrix)
            if ".1." in name:
                kept, scale, _ = channel_fp8(kept)
                tensors[f"{module}.weight_scale"] = scale
            parts = structured.compress({name: kept})
            whole = dict(structured.decompress_from_state_dict(parts))
        matrix = whole[name].float()
        digests[module] = digest(matrix if scale is None else matrix * scale.float(), signed_zeros=True)
        tensors.update(parts)
    weights = QuantizationArgs(num_bits=8, type="float", strategy="channel", symmetric=True).model_dump()
    inputs = {**weights, "strategy": "token", "dynamic": True}
    group = {"targets": ["re:.*layers.1.*"], "weights": weights, "input_activations": inputs}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "sparsity_config": {"format": "sparse-24-bitmask", "sparsity_structure": "2:4", "targets": ["Linear"]},
    }
    save("sparse", config, tensors, digests)


def make_act_order() -> None:
    """All linear layers; inputs of one layer share their order."""
    config, tensors = model(2)
    args = QuantizationArgs(num_bits=4, strategy="group", group_size=GROUP, symmetric=False, actorder="group")
    packer = BaseCompressor.load_from_registry("pack-quantized")
    digests = {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        module = name.removesuffix(".weight")
        matrix = tensors.pop(name).float()
        inputs = matrix.shape[1]
        torch.manual_seed(inputs)
        groups = torch.randperm(inputs) // GROUP
        members = torch.stack([matrix[:, groups == number] for number in range(inputs // GROUP)], 1)
        scale, zero = calculate_qparams(members.amin(2), members.amax(2), args)
        packed = packer.compress_weight(
            weight=matrix, scale=scale, zero_point=zero, g_idx=groups.int(), quantization_args=args
        )
        parts = {**packed, "weight_scale": scale, "weight_g_idx": groups.int()}
        values = unpack_from_int32(parts["weight_packed"], 4, matrix.shape)
        zero = unpack_from_int32(parts["weight_zero_point"], 4, scale.shape, packed_dim=0)
        digests[module] = digest(dequantize(values, scale, zero, args, g_idx=groups.int()).float(), signed_zeros=True)
        for suffix, tensor in parts.items():
            tensors[f"{module}.{suffix}"] = tensor
    group = {"targets": ["Linear"], "weights": args.model_dump()}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    save("act-order", config, tensors, digests)


if __name__ == "__main__":
    make_sparse()
    make_act_order()

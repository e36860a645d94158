"""Makes the files of a model: GGUF and safetensors of random weights, written tensor by tensor.

Owns: which type a tensor gets, metadata, and where files lie. Never does: hold a whole model in memory. Called by: the
command `make`, the measurements.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter

from benchmarks.gguf_formats import add_tokenizer
from benchmarks.sizes.blocks import random_bfloat16, random_blocks
from benchmarks.sizes.models import MODELS
from benchmarks.sizes.qwen35 import write_qwen35
from benchmarks.sizes.tensors import Tensor, tensors

MOST_BYTES = 20_000_000_000
Choose = Callable[[Tensor, int], Type]
"""The type of a matrix, by its layer."""


def q4_k_m(tensor: Tensor, layer: int) -> Type:
    """As llama-quantize does: the head in 6 bits, and in half of the layers also values and down projections."""
    more = tensor.use == "head" or (tensor.use in ("value", "down", "experts down") and layer % 2 == 0)
    if tensor.shape[-1] % gguf.QK_K:
        return Type.Q8_0 if more else Type.Q5_0
    return Type.Q6_K if more else Type.Q4_K


def mxfp4(tensor: Tensor, layer: int) -> Type:
    """As the published files of gpt-oss: experts in 4 bits, everything else in 8."""
    return Type.MXFP4 if tensor.use in ("experts", "experts down") else Type.Q8_0


def bf16(tensor: Tensor, layer: int) -> Type:
    """Every matrix in bfloat16."""
    return Type.BF16


RECIPES: dict[str, tuple[Choose, gguf.LlamaFileType]] = {
    "Q4_K_M": (q4_k_m, gguf.LlamaFileType.MOSTLY_Q4_K_M),
    "MXFP4": (mxfp4, gguf.LlamaFileType.MOSTLY_MXFP4_MOE),
    "gguf-bf16": (bf16, gguf.LlamaFileType.MOSTLY_BF16),
}


def path_of(name: str, form: str, layers: int | None, folder: Path) -> Path:
    """Return where a model of a form lies: a GGUF file, or for `bf16` a directory."""
    count = layers or MODELS[name].layers
    return folder / f"{name}-{form}-{count}l{'' if form == 'bf16' else '.gguf'}"


def nbytes(name: str, form: str, layers: int) -> int:
    """Bytes of a model's weights."""
    config = MODELS[name].cut(layers)
    if form == "bf16":
        from core_runtime.models.families import tensor_shapes

        return sum(2 * math.prod(shape) for shape in tensor_shapes(config).values())
    return sum(nbytes_of(tensor, form) for tensor in tensors(config))


def nbytes_of(tensor: Tensor, form: str) -> int:
    """Bytes of one tensor in a GGUF file."""
    return _place(tensor, form)[1]


def fitting_layers(name: str, form: str) -> int:
    """All layers where the weights take at most 20 GB, else as many as do."""
    layers = MODELS[name].layers
    while layers > 1 and nbytes(name, form, layers) > MOST_BYTES:
        layers -= 1
    return layers


def _place(tensor: Tensor, form: str) -> tuple[Type, int]:
    """A tensor's type and bytes."""
    layer = int(tensor.name.split(".")[1]) if tensor.name.startswith("blk.") else 0
    kind = Type.F32 if tensor.use in ("norm", "float") else RECIPES[form][0](tensor, layer)
    size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return kind, math.prod(tensor.shape) // size * block_bytes


def make(name: str, form: str, layers: int | None, folder: Path) -> Path:
    """Return the model's path; write it first where it is missing. Raises ValueError for a form that it does not have."""
    path = path_of(name, form, layers, folder)
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    config = MODELS[name].cut(layers)
    if form == "bf16":
        write_safetensors(part, config)
    else:
        architecture = MODELS[name].architecture
        if architecture is None:
            raise ValueError(f"{name} has no GGUF file here; expected the form bf16.")
        if architecture != "qwen35":
            write_gguf(part, architecture, config, form)
        elif form == "gguf-bf16":
            write_qwen35(part, config)
        else:
            raise ValueError(f"{name} has no GGUF file of the form {form} here; expected gguf-bf16.")
    part.rename(path)
    return path


def write_gguf(path: Path, architecture: str, config: Mapping[str, Any], form: str) -> None:
    """Write a GGUF file of random weights."""
    writer = GGUFWriter(path, architecture)
    _add_metadata(writer, config)
    writer.add_file_type(RECIPES[form][1])
    add_tokenizer(writer, config["vocab_size"])
    plan = []
    for tensor in tensors(config):
        kind, size = _place(tensor, form)
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float16), size, raw_dtype=kind)
        plan.append((tensor, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    draw = np.random.default_rng(0)
    for tensor, kind in plan:
        writer.write_tensor_data(_values(tensor, kind, draw))
    writer.close()


def _values(tensor: Tensor, kind: Type, draw: np.random.Generator) -> np.ndarray[Any, Any]:
    """Norms of 1, other numbers with the deviation that keeps a sum over all inputs near 1."""
    if tensor.use == "norm":
        return np.ones(tensor.shape, np.float32)
    deviation = 1 / math.sqrt(tensor.shape[-1])
    if kind == Type.F32:
        return draw.standard_normal(tensor.shape, np.float32) * np.float32(deviation)
    if kind == Type.BF16:
        return random_bfloat16(tensor.shape, deviation, draw)
    return random_blocks(kind, tensor.shape, deviation, draw)


def _add_metadata(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if window := config.get("sliding_window"):
        writer.add_sliding_window(window)
    if "kv_lora_rank" in config:
        _add_latent(writer, config)
    else:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if used := config.get("num_experts_per_tok"):
        writer.add_expert_used_count(used)
        experts = config.get("num_experts") or config.get("num_local_experts") or config["n_routed_experts"]
        writer.add_expert_count(experts)
        writer.add_expert_feed_forward_length(config.get("moe_intermediate_size") or config["intermediate_size"])


def _add_latent(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Latent attention as it is computed, with one key head, and the sizes of the heads that it stands for."""
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    writer.add_head_count_kv(1)
    writer.add_kv_lora_rank(rank)
    writer.add_rope_dimension_count(rotated)
    writer.add_key_length(rank + rotated)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotated)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(1.0)


def write_safetensors(folder: Path, config: Mapping[str, Any]) -> None:
    """Write `config.json`, a tokenizer of bytes, and a safetensors file of random bfloat16 weights."""
    from core_kit.checkpoints import write_tokenizer
    from core_runtime.models.families import tensor_shapes

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}, indent=1))
    write_tokenizer(folder)
    header, end = {}, 0
    shapes = tensor_shapes(config)
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = np.random.default_rng(0)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            if len(shape) == 1:
                file.write(np.full(shape, 0x3F80, np.uint16).tobytes())  # 1 in bfloat16
            else:
                file.write(random_bfloat16(shape, 1 / math.sqrt(shape[-1]), draw).data)

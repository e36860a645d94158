"""Packed checkpoints beside the same models with plain weights, which peft opens.

Owns: one pair for each way to pack, and an oracle that rounds inputs. Never does: start an engine. Called by: the tests of
adapters on quantized bases.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig

from benchmarks.sizes.blocks import random_blocks
from core_quantization.awq import manifest as awq_hooks
from core_quantization.gptq import manifest as gptq_hooks
from tests.adapters.made import NAMES, Oracle, paired
from tests.declared_models import DECLARED, LARGEST, save_declared
from tests.loaders.gguf_files import SPECIALS, printable
from tests.packed_twins import write_twins
from tests.quantization.packed import KEPT, Packed, plain_model
from tests.quantization.test_scaled import CASES
from tests.tiny_models import save_checkpoint

LLAMA: Final[dict[str, Any]] = {
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "vocab_size": 262, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
"""Rows of Q4_K have a multiple of 256 numbers."""


@dataclass(frozen=True)
class Twins:
    """packed: what the engine opens, with `arguments`. plain: what peft opens. rounds: whether products round their inputs."""

    packed: Path
    plain: Path
    vocabulary: int = 260
    arguments: tuple[tuple[str, Any], ...] = ()
    rounds: bool = False


def gptq(folder: Path) -> Twins:
    """4 bits in the inputs' own order, a layer of 8 bits, and a plain one."""
    return _kept("gptq/order", gptq_hooks, folder)


def awq(folder: Path) -> Twins:
    return _kept("awq/gemm", awq_hooks, folder)


def _kept(name: str, hooks: Any, folder: Path) -> Twins:
    """A checkpoint that its own tool packed."""
    folder.mkdir(parents=True, exist_ok=True)
    plain_model(Packed(KEPT / name, hooks), folder / "plain")
    return Twins(KEPT / name, folder / "plain", 128)


def fp8(folder: Path) -> Twins:
    """Blocks of 8-bit floats, each with a scale."""
    return Twins(*write_twins(save_checkpoint(folder / "made"), folder, *CASES["fp8 of blocks"]))


def q4_k(folder: Path) -> Twins:
    """A GGUF file, unpacked by the `gguf` package."""
    folder.mkdir(parents=True, exist_ok=True)
    packed, plain = folder / "model.gguf", folder / "plain"
    draw = np.random.default_rng(4)
    writer = GGUFWriter(str(packed), "llama")
    _add_metadata(writer)
    dense: dict[str, Tensor] = {}
    for name, short in (("model.embed_tokens", "token_embd"), ("lm_head", "output"), ("model.norm", "output_norm")):
        size = (256,) if name == "model.norm" else (LLAMA["vocab_size"], 256)
        matrix = draw.standard_normal(size, np.float32) * np.float32(0.3) + np.float32(len(size) == 1)
        writer.add_tensor(f"{short}.weight", matrix)
        dense[f"{name}.weight"] = torch.from_numpy(matrix)
    for layer in range(LLAMA["num_hidden_layers"]):
        for name, short in (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")):
            writer.add_tensor(f"blk.{layer}.{short}.weight", np.ones(256, np.float32))
            dense[f"model.layers.{layer}.{name}.weight"] = torch.ones(256)
        for name, short in NAMES.items():
            raw = random_blocks(
                GGMLQuantizationType.Q4_K, (128 if short in ("attn_k", "attn_v") else 256, 256), 0.1, draw
            )
            writer.add_tensor(f"blk.{layer}.{short}.weight", raw, raw_dtype=GGMLQuantizationType.Q4_K)
            matrix = torch.from_numpy(gguf.dequantize(raw, GGMLQuantizationType.Q4_K))
            heads = {"attn_q": 4, "attn_k": 2}.get(short)
            dense[f"model.layers.{layer}.{name}.weight"] = matrix if heads is None else unpaired(matrix, heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _save_plain(plain, LlamaConfig(**LLAMA).to_dict(), dense)
    return Twins(packed, plain, LLAMA["vocab_size"])


def unpaired(rows: Tensor, heads: int) -> Tensor:
    """The rows of each head in the order of halves, from that of pairs; the inverse of `paired`."""
    found = rows.view(heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)
    assert torch.equal(paired(found, heads), rows)
    return found


def declared(folder: Path) -> Twins:
    """8-bit floats whose products round each token's inputs to 8 bits, too."""
    packed, plain = save_declared(folder / "packed", "rows_llama"), folder / "plain"
    dense = {}
    stored = load_file(packed / "model.safetensors")
    for name, tensor in stored.items():
        scale = stored.get(f"{name}_scale")
        if not name.endswith("_scale"):
            dense[name] = tensor if scale is None else tensor.float() * scale
    config = json.loads((packed / "config.json").read_text())
    del config["quantization_config"]
    _save_plain(plain, config, dense)
    return Twins(packed, plain, arguments=tuple(DECLARED.items()), rounds=True)


def oracle_of(twins: Twins, adapter: Path) -> Oracle:
    """The plain model with an adapter, as peft computes it; each base product rounds its own inputs if the packed one does."""
    found = Oracle(twins.plain, adapter)
    if twins.rounds:
        for name, module in found.model.named_modules():
            if name.endswith("base_layer"):
                module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0]), *inputs[1:]))
    return found


def rounded(x: Tensor) -> Tensor:
    """x in 8-bit floats with a scale for each token."""
    scale = (x.abs().amax(-1, keepdim=True) / LARGEST).clamp(min=1e-12)
    return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale


def _add_metadata(writer: GGUFWriter) -> None:
    writer.add_block_count(LLAMA["num_hidden_layers"])
    writer.add_context_length(LLAMA["max_position_embeddings"])
    writer.add_embedding_length(LLAMA["hidden_size"])
    writer.add_feed_forward_length(LLAMA["intermediate_size"])
    writer.add_head_count(LLAMA["num_attention_heads"])
    writer.add_head_count_kv(LLAMA["num_key_value_heads"])
    writer.add_rope_dimension_count(LLAMA["head_dim"])
    writer.add_layer_norm_rms_eps(LLAMA["rms_norm_eps"])
    writer.add_rope_freq_base(LLAMA["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    words = [*SPECIALS, *printable(), "he", "ll"]
    writer.add_token_list(words)
    writer.add_token_types([3] * 4 + [1] * (len(words) - 4))
    writer.add_token_merges(["h e", "l l"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _save_plain(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    plain = {name: tensor.float().contiguous() for name, tensor in tensors.items()}
    save_file(plain, folder / "model.safetensors", {"format": "pt"})


BASES: Final[dict[str, Callable[[Path], Twins]]] = {
    "GPTQ, 4 bits": gptq, "AWQ, 4 bits": awq, "fp8 of blocks": fp8, "GGUF, Q4_K": q4_k, "declared inputs": declared,
}  # fmt: skip

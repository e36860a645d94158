"""Makes the checkpoints beside this file: tiny random models, packed by llm-compressor (compressed-tensors).

    pip install torch==2.13.0 llmcompressor==0.14.0.1 && python make.py

Beside each checkpoint lies `dequantized.json`: of each packed module the sha256 of its matrix in float32, as
compressed-tensors itself dequantizes it with its scales widened to float32 (it would round products to bfloat16 otherwise).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.utils.match import match_name
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, PreTrainedTokenizerFast, Qwen3MoeConfig

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the environment of the tool does not have the package `tests`

from maker import EXPERTS, UNTIED, digest, random_bfloat16_model, wanted, write_json  # noqa: E402


def integers(bits: int, symmetric: bool = True, group: int | None = 32) -> QuantizationArgs:
    """Integers for weights; group None: a scale a row."""
    strategy = "channel" if group is None else "group"
    return QuantizationArgs(num_bits=bits, symmetric=symmetric, strategy=strategy, group_size=group)


def group(targets: list[str], weights: QuantizationArgs, inputs: QuantizationArgs | None = None) -> QuantizationScheme:
    """inputs: None: plain."""
    return QuantizationScheme(targets=targets, weights=weights, input_activations=inputs)


def whole(bits: int, symmetric: bool) -> QuantizationArgs:
    """Integers with one scale for all."""
    return QuantizationArgs(num_bits=bits, symmetric=symmetric, strategy="tensor")


def floats(group: int) -> QuantizationArgs:
    """8-bit floats with a scale a group of inputs."""
    return QuantizationArgs(num_bits=8, type="float", strategy="group", group_size=group)


BYTES = QuantizationArgs(num_bits=8, strategy="token", dynamic=True, symmetric=False)
FLOATS = QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True)


def preset(name: str, targets: list[str]) -> QuantizationScheme:
    """A scheme that llm-compressor has a name for."""
    return preset_name_to_scheme(name, targets)


CHECKPOINTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mixed": (
        LlamaConfig(**UNTIED),
        {
            "a": group(["re:.*layers.0.self_attn.[qkv]_proj$"], integers(4)),
            "b": group(["re:.*layers.0.self_attn.o_proj$"], integers(8, symmetric=False, group=None)),
            "c": preset("NVFP4A16", ["re:.*layers.0.mlp.(gate|up)_proj$"]),
            "d": preset("MXFP4A16", ["model.layers.0.mlp.down_proj"]),
            "e": preset("FP8_BLOCK", ["re:.*layers.1.self_attn.[qkv]_proj$"]),
            "f": preset("FP8_DYNAMIC", ["re:.*layers.1.self_attn.o_proj$"]),
            "g": preset("W8A8", ["re:.*layers.1.mlp.(gate|up)_proj$"]),
            "h": group(["re:.*layers.1.mlp.down_proj$"], integers(3, symmetric=False)),
            "i": group(["lm_head"], integers(8, group=None)),
        },
    ),
    "rare": (
        LlamaConfig(**UNTIED),
        {
            "a": group(["re:.*layers.0.self_attn.[qkv]_proj$"], whole(8, symmetric=True), BYTES),
            "b": group(["re:.*layers.0.self_attn.o_proj$"], integers(8, symmetric=False, group=None), BYTES),
            "c": preset("MXFP8A16", ["re:.*layers.0.mlp.(gate|up)_proj$"]),
            "d": group(["re:.*layers.0.mlp.down_proj$"], integers(5, symmetric=False)),
            "e": group(["re:.*layers.1.self_attn.[qkv]_proj$"], integers(4), BYTES),
            "f": group(["re:.*layers.1.self_attn.o_proj$"], integers(2)),
            "g": group(["re:.*layers.1.mlp.(gate|up)_proj$"], integers(4, symmetric=False), FLOATS),
            "h": group(["re:.*layers.1.mlp.down_proj$"], floats(32), FLOATS),
            "i": group(["lm_head"], whole(4, symmetric=False)),
        },
    ),
    "w4a16-asym-experts": (Qwen3MoeConfig(**UNTIED, **EXPERTS), {"a": group(["Linear"], integers(4, symmetric=False))}),
    "w8a8-fused": (Phi3Config(**UNTIED, sliding_window=None), {"a": preset("W8A8", ["Linear"])}),
    "fp8-static-cache": (LlamaConfig(**UNTIED), {"a": preset("FP8", ["Linear"])}),
}
PLAIN = {"mixed": [], "rare": [], "w4a16-asym-experts": ["lm_head", "re:.*mlp.gate$"]}
CACHE = QuantizationArgs(num_bits=8, type="float", strategy="tensor", dynamic=False, symmetric=True)


def make(name: str) -> None:
    """One checkpoint."""
    config, groups = CHECKPOINTS[name]
    model = random_bfloat16_model(config, len(name))
    options = {}
    data = {}
    if name == "fp8-static-cache":
        options["kv_cache_scheme"] = CACHE
        rows = torch.randint(3, 128, (8, 24)).tolist()
        data = {"dataset": Dataset.from_dict({"input_ids": rows}), "num_calibration_samples": 8}
    plain = tempfile.mkdtemp()
    model.save_pretrained(plain)
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
    recipe = QuantizationModifier(config_groups=groups, ignore=PLAIN.get(name, ["lm_head"]), **options)
    words = Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>"))  # asked for, and never used
    oneshot(model=model, processor=PreTrainedTokenizerFast(tokenizer_object=words), recipe=recipe, **data)
    directory = HERE / name
    model.save_pretrained(directory, save_compressed=True)
    for extra in ("generation_config.json", "recipe.yaml"):
        (directory / extra).unlink(missing_ok=True)
    write_json(directory / "dequantized.json", digests_of(directory))


def digests_of(directory: Path) -> dict[str, str]:
    """By module, of its matrix as the tool dequantizes it."""
    declared = json.loads((directory / "config.json").read_text())["quantization_config"]
    tensors = load_file(directory / "model.safetensors")
    schemes = {}
    for found in declared["config_groups"].values():
        scheme = QuantizationScheme(**found)
        for target in scheme.targets:
            schemes[target] = scheme
    digests = {}
    for full in tensors:
        module, _, suffix = full.rpartition(".")
        if suffix != "weight_scale":
            continue
        scheme = next((schemes[target] for target in schemes if match_name(module, target)), schemes.get("Linear"))
        form = scheme.format or infer_module_format(torch.nn.Linear, scheme)
        local = {name.rpartition(".")[2]: t for name, t in tensors.items() if name.rpartition(".")[0] == module}
        if local["weight_scale"].dtype is torch.bfloat16:
            local["weight_scale"] = local["weight_scale"].float()
        if form == "nvfp4-pack-quantized":
            digests[f"{module}.sums"] = nvfp4_sums(local, scheme)
            continue
        compressor = BaseCompressor.get_value_from_registry(getattr(form, "value", form))
        digests[module] = digest(compressor.decompress(local, scheme)["weight"].float(), signed_zeros=True)
    return digests


def nvfp4_sums(local: dict[str, torch.Tensor], scheme: QuantizationScheme) -> list[float]:
    """Of a matrix that is dequantized in float32: its last bits depend on the order of two products."""
    rows, pairs = local["weight_packed"].shape
    codes = unpack_fp4_from_uint8(local["weight_packed"], rows, 2 * pairs, dtype=torch.float32)
    scale = local["weight_scale"].float()
    whole = local["weight_global_scale"]
    matrix = dequantize(x_q=codes, scale=scale, args=scheme.weights, global_scale=whole, dtype=torch.float32).double()
    places = torch.arange(matrix.numel(), dtype=torch.float64).view_as(matrix)
    return [float((matrix.relu() * places).sum()), float(((-matrix).relu() * places).sum())]


if __name__ == "__main__":
    for one in wanted(CHECKPOINTS):
        make(one)

"""Makes the checkpoints beside it with aqlm: `python make.py` in an environment that has it.

The package only reads what was quantized elsewhere, so codes, codebooks and scales are random: of each matrix, the modules
of aqlm say which tensors there are, of which shapes and types. `digests.json` of each has, by module, the sha256 of the
float32 bytes of the matrix [N, K] that aqlm itself computes from them, codebooks and scales widened to float32, and the
versions of the tools.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from aqlm import QuantizedLinear
from aqlm.utils import _dequantize_weight, pack_int_data, unpack_int_data
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, Qwen3MoeConfig

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the environment of the tool does not have the package `tests`

from maker import EXPERTS, UNTIED, copy_files, digest, random_model, wanted, write_digests, write_json  # noqa: E402

KEPT = ("config.json", "model.safetensors")
WORK = Path("/tmp/make-aqlm")
CHECKPOINTS: dict[str, tuple[Any, torch.dtype, dict[str, int], list[str]]] = {
    "words": (LlamaConfig(**UNTIED), torch.float16, {"nbits_per_codebook": 10, "num_codebooks": 1}, ["lm_head"]),
    "sums": (
        Qwen3MoeConfig(**UNTIED, **EXPERTS),
        torch.bfloat16,
        {"nbits_per_codebook": 5, "num_codebooks": 3, "in_group_size": 4, "out_group_size": 2},
        ["lm_head", "gate"],
    ),
}
USUAL = {"in_group_size": 8, "out_group_size": 1}


def packed(rows: int, inputs: int, sizes: dict[str, int], dtype: torch.dtype) -> QuantizedLinear:
    """Return a module of aqlm with random numbers."""
    layer = QuantizedLinear(inputs, rows, **sizes, bias=False, dtype=dtype)
    bits = sizes["nbits_per_codebook"]
    layer.codes.data = pack_int_data(torch.randint(0, 1 << bits, layer.codes.shape), bits)
    layer.codebooks.data = (torch.randn(layer.codebooks.shape) / 8).to(dtype)
    layer.scales.data = (torch.rand(layer.scales.shape) + 0.5).to(dtype)
    return layer


def make(name: str) -> None:
    """One checkpoint."""
    config, dtype, own, plain = CHECKPOINTS[name]
    sizes = {**USUAL, **own}
    random_model(config, dtype).save_pretrained(WORK / name)
    torch.manual_seed(1)
    state: dict[str, torch.Tensor] = {}
    digests = {}
    for full, tensor in load_file(WORK / name / "model.safetensors").items():
        module = full.removesuffix(".weight")
        if tensor.dim() != 2 or "embed" in full or module.rpartition(".")[2] in plain:
            state[full] = tensor
            continue
        layer = packed(*tensor.shape, sizes, dtype)
        for suffix, numbers in layer.state_dict().items():
            state[f"{module}.{suffix}"] = numbers.contiguous()
        codes = unpack_int_data(layer.codes.data, sizes["nbits_per_codebook"])
        matrix = _dequantize_weight(codes, layer.codebooks.data.float(), layer.scales.data.float())
        digests[module] = digest(matrix)
    target = HERE / name
    copy_files(KEPT, WORK / name, target)
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((target / "config.json").read_text())
    written["quantization_config"] = {**sizes, "linear_weights_not_to_quantize": plain, "quant_method": "aqlm"}
    write_json(target / "config.json", written)
    write_digests(target, ("aqlm", "torch", "transformers"), digests)


if __name__ == "__main__":
    for chosen in wanted(CHECKPOINTS):
        make(chosen)

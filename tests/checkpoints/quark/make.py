"""Makes the checkpoints beside this file: tiny random models, packed by AMD Quark.

    pip install torch==2.13.0 transformers amd-quark==0.13 && python make.py

Beside each checkpoint lies `dequantized.json`: of each packed module the sha256 of its matrix in float32, as Quark's own
layers dequantize it with scales widened to float32.
"""

from __future__ import annotations

import json
import sys
from fnmatch import fnmatch
from pathlib import Path

import quark.torch.kernel
import torch
from quark.torch import ModelQuantizer, export_safetensors
from quark.torch.quantization.config.config import (
    FP8E4M3PerChannelSpec,
    FP8E4M3PerTensorSpec,
    Int4PerChannelSpec,
    Int4PerGroupSpec,
    Int8PerChannelSpec,
    Int8PerGroupSpec,
    OCP_MXFP4Spec,
    OCP_MXFP6E2M3Spec,
    OCP_MXFP6E3M2Spec,
    QConfig,
    QLayerConfig,
    QTensorConfig,
    Uint4PerGroupSpec,
)
from quark.torch.quantization.constants import PER_GROUP_INT_TRANSPOSE_DTYPES
from quark.torch.utils import create_pack_method
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from transformers import LlamaConfig

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the environment of the tool does not have the package `tests`

from maker import UNTIED, digest, random_bfloat16_model, wanted, write_json  # noqa: E402

GROUPS = {"ch_axis": -1, "group_size": 32}
TENSOR = FP8E4M3PerTensorSpec(is_dynamic=False).to_quantization_spec()
MX = OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False).to_quantization_spec()


def weights(spec: object) -> QLayerConfig:
    """Weights alone."""
    return QLayerConfig(weight=spec.to_quantization_spec())


MIXED = QConfig(
    global_quant_config=weights(Int4PerGroupSpec(symmetric=True, **GROUPS)),
    layer_quant_config={
        "*layers.0.self_attn.o_proj": weights(Int8PerChannelSpec(ch_axis=0, symmetric=True, is_dynamic=False)),
        "*layers.0.mlp.gate_proj": weights(Uint4PerGroupSpec(symmetric=False, **GROUPS)),
        "*layers.0.mlp.up_proj": weights(Int8PerGroupSpec(symmetric=False, **GROUPS)),
        "*layers.0.mlp.down_proj": QLayerConfig(weight=MX),
        "*layers.1.self_attn.o_proj": weights(FP8E4M3PerChannelSpec(ch_axis=0, is_dynamic=False)),
        "*layers.1.mlp.down_proj": weights(Int4PerChannelSpec(ch_axis=0, symmetric=True)),
    },
    exclude=["lm_head"],
)
CACHE = QLayerConfig(weight=TENSOR, input_tensors=TENSOR, output_tensors=TENSOR)
FP8 = QConfig(
    global_quant_config=QLayerConfig(weight=TENSOR, input_tensors=TENSOR),
    layer_quant_config={"*k_proj": CACHE, "*v_proj": CACHE},
    kv_cache_quant_config={"*k_proj": CACHE, "*v_proj": CACHE},
    exclude=["lm_head"],
)
SIX = {"ch_axis": -1, "is_dynamic": False}
MXFP6 = QConfig(
    global_quant_config=weights(OCP_MXFP6E2M3Spec(**SIX)),
    layer_quant_config={"*layers.1.*": weights(OCP_MXFP6E3M2Spec(**SIX))},
    exclude=["lm_head"],
)
CHECKPOINTS = {
    "mixed": (LlamaConfig(**UNTIED), MIXED, "reorder"),
    "fp8-cache": (LlamaConfig(**UNTIED), FP8, "order"),
    "mxfp6": (LlamaConfig(**UNTIED), MXFP6, "reorder"),
}


def make(name: str) -> None:
    """One checkpoint."""
    config, scheme, order = CHECKPOINTS[name]
    model = random_bfloat16_model(config, len(name)).eval()
    data = DataLoader(torch.randint(3, 128, (4, 24)), batch_size=1)
    quantizer = ModelQuantizer(scheme)
    model = quantizer.freeze(quantizer.quantize_model(model, data))
    directory = HERE / name
    export_safetensors(model, str(directory), weight_format="real_quantized", pack_method=order)
    (directory / "generation_config.json").unlink(missing_ok=True)
    write_json(directory / "dequantized.json", digests_of(directory))


def digests_of(directory: Path) -> dict[str, str]:
    """By module, of its matrix as the tool unpacks and dequantizes it."""
    declared = json.loads((directory / "config.json").read_text())["quantization_config"]
    reorder = declared["export"]["pack_method"] == "reorder"
    tensors = load_file(directory / "model.safetensors")
    digests = {}
    for full in tensors:
        module, _, suffix = full.rpartition(".")
        if suffix != "weight_scale":
            continue
        layer = declared["global_quant_config"]
        for pattern, found in declared["layer_quant_config"].items():
            if fnmatch(module, pattern):
                layer = found
        spec = QTensorConfig.from_dict(layer["weight"])
        scale = tensors[full]
        packing = create_pack_method(spec.qscheme.value, spec.dtype.value)
        size = {"origin_packed_axis_size": scale.shape[-1]} if scale.dim() else {}
        values = packing.unpack(tensors[f"{module}.weight"], reorder, **size)
        zero = tensors.get(f"{module}.weight_zero_point")
        if zero is not None:
            zero = packing.unpack(zero, reorder, **size)
        if spec.dtype in PER_GROUP_INT_TRANSPOSE_DTYPES and spec.qscheme.value == "per_group":
            scale = scale.t().contiguous()
        scale = torch.exp2(scale.float() - 127) if spec.scale_format == "e8m0" else scale.float()
        arguments = (scale, zero, spec.ch_axis, spec.group_size, spec.qscheme.value)
        matrix = quark.torch.kernel.dequantize(spec.dtype.value, values, *arguments)
        digests[module] = digest(matrix.float(), signed_zeros=True)
    return digests


if __name__ == "__main__":
    for one in wanted(CHECKPOINTS):
        make(one)

"""Makes the checkpoint `inputs`: a tiny random model whose layers declare each rounding of inputs that compressed-tensors has.

    pip install torch==2.13.0 transformers==5.24.0 compressed-tensors==0.19.0 && python make_inputs.py

Scales of weights and inputs are those of the largest magnitudes. Beside the checkpoint lies `logits.json`: `ids` [T],
and `logits` [T, V] of the model as compressed-tensors itself runs it in float32, with scales in float32.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    QuantizationStatus,
    apply_quantization_config,
)
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from torch import Tensor, nn
from transformers import LlamaConfig

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the environment of the tool does not have the package `tests`

from maker import UNTIED, random_bfloat16_model, write_json  # noqa: E402

IDS = [3, 17, 98, 41, 5, 77, 23, 64, 110, 9]
BYTES = QuantizationArgs(num_bits=8, strategy="tensor", symmetric=False)
NIBBLES = QuantizationArgs(num_bits=4, strategy="group", group_size=32)
TOKENS = QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True)
GROUPS = QuantizationArgs(num_bits=8, type="float", strategy="group", group_size=32, dynamic=True)
ROWS = QuantizationArgs(num_bits=8, type="float", strategy="channel")
SCHEMES = {
    "a": preset_name_to_scheme("FP8", ["re:.*layers.0.self_attn.[qkv]_proj$"]),
    "b": QuantizationScheme(targets=["re:.*layers.0.self_attn.o_proj$"], weights=NIBBLES, input_activations=BYTES),
    "c": preset_name_to_scheme("NVFP4", ["re:.*layers.0.mlp.(gate|up)_proj$"]),
    "d": preset_name_to_scheme("MXFP4", ["re:.*layers.0.mlp.down_proj$"]),
    "e": preset_name_to_scheme("FP8_DYNAMIC", ["re:.*layers.1.self_attn.[qkv]_proj$"]),
    "f": QuantizationScheme(targets=["re:.*layers.1.self_attn.o_proj$"], weights=NIBBLES, input_activations=TOKENS),
    "g": preset_name_to_scheme("MXFP8", ["re:.*layers.1.mlp.(gate|up)_proj$"]),
    "h": QuantizationScheme(targets=["re:.*layers.1.mlp.down_proj$"], weights=ROWS, input_activations=GROUPS),
}


def extremes(value: Tensor, args: QuantizationArgs) -> tuple[Tensor, Tensor]:
    """The smallest and largest number of each part that shares a scale."""
    if args.strategy == "tensor":
        return value.amin().reshape(1), value.amax().reshape(1)
    if args.strategy == "channel":
        return value.amin(1, keepdim=True), value.amax(1, keepdim=True)
    groups = value.unflatten(-1, (-1, args.group_size))
    return groups.amin(-1), groups.amax(-1)


def calibrate(module: nn.Module, name: str, value: Tensor, args: QuantizationArgs) -> None:
    """Set the scales of weights or inputs."""
    whole = getattr(module, f"{name}_global_scale", None)
    if whole is not None:
        whole.data = generate_gparam(value.amin(), value.amax())
    scale = getattr(module, f"{name}_scale", None)
    if scale is None:
        return
    found, zero = calculate_qparams(*extremes(value, args), args, global_scale=whole)
    scale.data = found.to(scale.dtype)
    point = getattr(module, f"{name}_zero_point", None)
    if point is not None:
        point.data = zero.to(point.dtype)


def main() -> None:
    """The checkpoint and its logits."""
    model = random_bfloat16_model(LlamaConfig(**UNTIED), 6).float()
    apply_quantization_config(model, QuantizationConfig(config_groups=SCHEMES, ignore=["lm_head"]))
    modules = {name: one for name, one in model.named_modules() if getattr(one, "quantization_scheme", None)}
    seen: dict[str, Tensor] = {}
    for name, module in modules.items():
        module.quantization_status = QuantizationStatus.INITIALIZED
        module.quantization_enabled = False
        module.register_forward_pre_hook(lambda _, inputs, name=name: seen.update({name: inputs[0].detach()}))
    with torch.no_grad():
        model(torch.tensor([torch.randint(3, 128, (64,)).tolist()]))
    for name, module in modules.items():
        scheme = module.quantization_scheme
        calibrate(module, "weight", module.weight.data, scheme.weights)
        calibrate(module, "input", seen[name].flatten(0, 1), scheme.input_activations)
        module.quantization_enabled = True
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0]
    directory = HERE / "inputs"
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(directory)
    compressor.update_config(str(directory))
    (directory / "generation_config.json").unlink(missing_ok=True)
    (directory / "model.safetensors").chmod(0o644)
    write_json(directory / "logits.json", {"ids": IDS, "logits": logits.tolist()})


if __name__ == "__main__":
    main()

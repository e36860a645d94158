"""Makes the checkpoint `transforms`: a tiny random model with each transform that compressed-tensors runs beside the weights.

    pip install torch==2.13.0 transformers==5.24.0 compressed-tensors==0.19.0 && python make_transforms.py

Beside the checkpoint lies `logits.json`: `ids` [T], and `logits` [T, V] of the model as compressed-tensors itself runs it in
float32. Modules share the matrix of `h`, which the file has once.
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
from compressed_tensors.transform import TransformArgs, TransformConfig, TransformScheme, apply_transform_config
from transformers import LlamaConfig

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the environment of the tool does not have the package `tests`

from make_inputs import IDS, calibrate  # noqa: E402
from maker import UNTIED, random_bfloat16_model, write_json  # noqa: E402


def around(target: str, side: str, weight: str) -> list[TransformArgs]:
    """A transform of inputs or outputs, and its inverse in the weights."""
    return [
        TransformArgs(targets=[target], location=side),
        TransformArgs(targets=[target], location=weight, inverse=True),
    ]


ROWS = QuantizationArgs(num_bits=8, type="float", strategy="channel")
TOKENS = QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True)
SCHEME = QuantizationScheme(targets=["re:.*mlp.(gate|up|down)_proj$"], weights=ROWS, input_activations=TOKENS)
DOWN, GATE = "re:.*down_proj$", "re:.*mlp.(gate|up)_proj$"
SCHEMES = {
    "v": TransformScheme(type="hadamard", apply=around(GATE, "input", "weight_input")),
    "u": TransformScheme(type="hadamard", head_dim=32, apply=around(GATE, "output", "weight_output")),
    "R4": TransformScheme(type="hadamard", head_dim=32, apply=around(DOWN, "input", "weight_input")),
    "h": TransformScheme(type="random-hadamard", apply=around("re:.*self_attn.(k|v|o)_proj$", "input", "weight_input")),
    "m": TransformScheme(
        type="random-matrix", head_dim=32, apply=around("re:.*layers.0.self_attn.q_proj$", "input", "weight_input")
    ),
    "s": TransformScheme(type="random-hadamard", head_dim=16, apply=around("lm_head", "input", "weight_input")),
    "p": TransformScheme(
        type="hadamard", randomize=True, apply=around("re:.*layers.1.self_attn.q_proj$", "input", "weight_input")
    ),
}


def main() -> None:
    """The checkpoint and its logits."""
    torch.manual_seed(5)
    model = random_bfloat16_model(LlamaConfig(**UNTIED), 7).float()
    apply_transform_config(model, TransformConfig(config_groups=SCHEMES))
    apply_quantization_config(model, QuantizationConfig(config_groups={"a": SCHEME}, ignore=["lm_head"]))
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None:
            calibrate(module, "weight", module.weight.data, scheme.weights)
            module.quantization_status = QuantizationStatus.INITIALIZED
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0]
    directory = HERE / "transforms"
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(directory)
    compressor.update_config(str(directory))
    (directory / "generation_config.json").unlink(missing_ok=True)
    (directory / "model.safetensors").chmod(0o644)
    write_json(directory / "logits.json", {"ids": IDS, "logits": logits.tolist()})


if __name__ == "__main__":
    main()

"""Makes `tiles.safetensors` and `tiles.json`: matrices whose integers lie in tiles, packed by the tools that define the tiles.

    pip install torch==2.13.0 auto-gptq==0.7.1 compressed-tensors==0.9.4 gptqmodel==7.7.0 && python make_tiles.py

The JSON has the digest of each matrix as it was before it was packed, or, of QQQ, as its own module in torch dequantizes
it. The packers are methods of modules for GPUs, so each is called with a stand-in that has its sizes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from auto_gptq.nn_modules.qlinear.qlinear_marlin import QuantLinear
from compressed_tensors.compressors.sparse_quantized_compressors.marlin_24 import (
    compress_weight_24,
    pack_scales_24,
    pack_weight_24,
)
from compressed_tensors.quantization import QuantizationArgs
from gptqmodel.nn_modules.qlinear.qqq import QQQTorchLinear
from safetensors.torch import save_file
from torch import Tensor, nn

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the environment of the tools does not have the package `tests`

from maker import digest, write_json  # noqa: E402

ROWS, INPUTS, GROUP = 64, 512, 128  # the tool compares groups with the stored half of the inputs, so that must be more


def integers(bits: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Signed integers [N, K], float16 scales [N, groups], and their matrix in float32."""
    half = 1 << (bits - 1)
    values = torch.randint(1 - half, half, (ROWS, INPUTS)).float()
    scale = (torch.rand(ROWS, INPUTS // group) / 64 + 0.001).half()
    return values, scale, values * scale.float().repeat_interleave(group, 1)


def marlin(group: int) -> tuple[dict[str, Tensor], Tensor]:
    """As AutoGPTQ packs it."""
    _, scale, matrix = integers(4, group)
    linear = nn.Linear(INPUTS, ROWS, bias=False).half()
    linear.weight.data = matrix.half()
    scales = torch.zeros(INPUTS // group, ROWS, dtype=torch.half)
    words = torch.zeros(INPUTS // 16, ROWS * 2, dtype=torch.int32)
    module = SimpleNamespace(group_size=group, infeatures=INPUTS, outfeatures=ROWS, B=words, s=scales, bias=None)
    QuantLinear.pack(module, linear, scale)
    return {"B": words, "s": scales}, matrix


def sparse(bits: int, group: int) -> tuple[dict[str, Tensor], Tensor]:
    """As compressed-tensors packs it; in each four inputs two are zero, in some three or all."""
    values, scale, _ = integers(bits, group)
    fours = values.view(ROWS, -1, 4)
    drop = torch.rand(fours.shape).argsort(-1)[..., :2]
    fours.scatter_(-1, drop, 0.0)
    values[:, :8] = 0.0
    matrix = values * scale.float().repeat_interleave(group, 1)
    strategy = "channel" if group == INPUTS else "group"
    args = QuantizationArgs(num_bits=bits, strategy=strategy, group_size=None if group == INPUTS else group)
    kept, meta = compress_weight_24(values.half())
    turned = kept.t().contiguous()
    shape = turned.shape
    words = pack_weight_24(turned + (1 << bits) // 2, args)
    scales = pack_scales_24(scale.t().contiguous(), args, shape)
    meta = meta.resize_(meta.shape[1] // 2, meta.shape[0] * 2)
    return {"B_24": words, "s": scales, "B_meta": meta}, matrix


def qqq(group: int) -> tuple[dict[str, Tensor], Tensor]:
    """As GPTQModel packs it."""
    values, _, _ = integers(4, group)
    scale = torch.rand(ROWS, INPUTS // group) / 64 + 0.001
    extra = torch.rand(ROWS) / 4096 + 0.0005
    linear = nn.Linear(INPUTS, ROWS, bias=False)
    linear.weight.data = values * scale.repeat_interleave(group, 1)
    found: dict[str, Tensor] = {}
    module: Any = SimpleNamespace(
        group_size=group, in_features=INPUTS, out_features=ROWS, tile=16, maxq=15, bits=4, _buffers=found, bias=None
    )
    names = ("_perm", "_perm_i", "_scale_perm", "_scale_perm_i", "_scale_perm_single", "_scale_perm_single_i")
    for name, places in zip(names, QQQTorchLinear._get_perms(module), strict=True):
        setattr(module, name, torch.as_tensor(places))
    module.register_buffer = lambda name, tensor: (found.__setitem__(name, tensor), setattr(module, name, tensor))
    QQQTorchLinear.pack(module, linear, scale, None if group == INPUTS else extra)
    module._unpack_weight_codes = lambda: QQQTorchLinear._unpack_weight_codes(module)
    module._unpermute_scales = lambda scales, places: QQQTorchLinear._unpermute_scales(module, scales, places)
    weight, channel = QQQTorchLinear._dequantize_weight_for_torch(module)
    return {name: tensor for name, tensor in found.items() if tensor.numel()}, (weight * channel).T.contiguous()


def main() -> None:
    """Both files."""
    torch.manual_seed(0)
    made = {}
    for name, group in (("groups", GROUP), ("rows", INPUTS)):
        made[f"marlin/4/{name}"] = marlin(group)
        made[f"marlin_24/4/{name}"] = sparse(4, group)
        made[f"marlin_24/8/{name}"] = sparse(8, group)
        made[f"qqq/4/{name}"] = qqq(group)
    tensors = {}
    for name, (found, _) in made.items():
        for suffix, tensor in found.items():
            tensors[f"{name}/{suffix}"] = tensor.contiguous()
    save_file(tensors, HERE / "tiles.safetensors")
    (HERE / "tiles.safetensors").chmod(0o644)
    write_json(HERE / "tiles.json", {name: digest(matrix) for name, (_, matrix) in made.items()})


if __name__ == "__main__":
    main()

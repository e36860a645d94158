"""Checkpoints of narrow numbers with scales: 8-bit floats, integers, mxfp4 of gpt-oss, ModelOpt's.

The packers here follow the publications of these formats; of mxfp4 transformers' own unpacking is the judge. Blocks of 8-bit
floats are also those that transformers itself writes, in checkpoints that are kept.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_twins import assert_same_numbers, write_twins
from safetensors.torch import load_file, save_file
from tiny_models import byte_tokenizer, save_checkpoint
from torch import Tensor
from transformers import AutoModelForCausalLM, GptOssConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from core.api.errors import CheckpointError, ConfigError
from core_config.resolve import resolve
from core_quantization.online.manifest import FP8
from core_runtime.weights.codebook import E2M1
from tests.quantization.packed import KEPT, Packed, changed, check_tokens, differing

LARGEST = 448.0
BLOCK = 32


def to_fp8(w: Tensor, scale: Tensor) -> Tensor:
    return (w / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def by_tensor(module: str, w: Tensor) -> tuple[dict[str, Tensor], Tensor] | None:
    if "lm_head" in module or "embed" in module:
        return None
    scale = w.abs().max() / LARGEST
    values = to_fp8(w, scale)
    tensors = {"weight": values, "weight_scale": scale.reshape(()), "input_scale": torch.tensor(0.5)}
    return tensors, values.float() * scale


def by_row(module: str, w: Tensor) -> tuple[dict[str, Tensor], Tensor] | None:
    if "embed" in module:
        return None
    scale = w.abs().amax(1, keepdim=True) / LARGEST
    values = to_fp8(w, scale)
    return {"weight": values, "weight_scale": scale}, values.float() * scale


def by_block(module: str, w: Tensor) -> tuple[dict[str, Tensor], Tensor] | None:
    if "lm_head" in module or "embed" in module:
        return None
    n, k = w.shape
    rows = -(-n // BLOCK)
    columns = -(-k // BLOCK)
    scale = torch.zeros(rows, columns)
    for row in range(rows):
        for column in range(columns):
            tile = w[row * BLOCK : (row + 1) * BLOCK, column * BLOCK : (column + 1) * BLOCK]
            scale[row, column] = tile.abs().max() / LARGEST
    wide = scale.repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]
    values = to_fp8(w, wide)
    return {"weight": values, "weight_scale_inv": scale}, values.float() * wide


def int8_rows(module: str, w: Tensor) -> tuple[dict[str, Tensor], Tensor] | None:
    if "lm_head" in module or "embed" in module:
        return None
    scale = w.abs().amax(1, keepdim=True) / 127
    values = (w / scale).round().to(torch.int8)
    return {"weight": values, "weight_scale": scale}, values.float() * scale


def nearest_e2m1(w: Tensor) -> Tensor:
    """Codes 0-15 of the nearest numbers."""
    table = torch.tensor(E2M1[:8])
    magnitude = (w.abs().unsqueeze(-1) - table).abs().argmin(-1)
    return (magnitude + 8 * (w < 0)).to(torch.uint8)


def nvfp4(module: str, w: Tensor) -> tuple[dict[str, Tensor], Tensor] | None:
    if "lm_head" in module or "embed" in module:
        return None
    whole = w.abs().max() / (6 * LARGEST)
    blocks = w.view(w.shape[0], -1, 16)
    scale = (blocks.abs().amax(-1) / 6 / whole).to(torch.float8_e4m3fn)
    real = (scale.float() * whole).unsqueeze(-1)
    codes = nearest_e2m1(blocks / real)
    packed = codes.flatten(1)[:, ::2] | (codes.flatten(1)[:, 1::2] << 4)
    dense = torch.tensor(E2M1)[codes.int()] * scale.float().unsqueeze(-1) * whole
    tensors = {"weight": packed, "weight_scale": scale, "weight_scale_2": whole.reshape(())}
    return {**tensors, "input_scale": torch.tensor(1.0)}, dense.view(w.shape)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("plain"), intermediate_size=112)


MODELOPT = {"quant_method": "modelopt", "producer": {"name": "modelopt", "version": "0.33"}}
CASES = {
    "fp8 of tensors": (
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        by_tensor,
    ),
    "fp8 of rows": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, by_row),
    "fp8 of blocks": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}, by_block),
    "int8 of rows": ({"quant_method": "int8"}, int8_rows),
    "modelopt nvfp4": ({**MODELOPT, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}, nvfp4),
    "modelopt fp8": ({**MODELOPT, "quant_algo": "FP8", "ignore": ["lm_head"]}, by_tensor),
}


@pytest.mark.parametrize("case", CASES)
def test_packed_checkpoints_give_the_numbers_of_plain_ones(case: str, llama: Path, tmp_path: Path) -> None:
    declaration, pack = CASES[case]
    assert_same_numbers(*write_twins(llama, tmp_path, declaration, pack))


BLOCKS = sorted(path.parent.name for path in (KEPT / "fp8").glob("*/digests.json"))


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_as_transformers_writes_them(name: str, tmp_path: Path) -> None:
    packed = Packed(KEPT / "fp8" / name, FP8)
    assert not differing(packed, torch.float32)
    check_tokens(packed, tmp_path / "plain")


def test_exponents_that_stand_for_no_number_are_told(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight_scale_inv".replace(".", "__")
    scale = torch.full((2, 2), 255, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    packed = Packed(changed(KEPT / "fp8" / "exponents", tmp_path / "copy", **{name: scale}), FP8)
    with pytest.raises(CheckpointError, match=r"q_proj' has a scale that is not a number \(e8m0 byte 255\)"):
        packed.weights()


def gpt_oss(folder: Path) -> tuple[Path, Path]:
    """A tiny gpt-oss with packed experts, and the same with transformers' idea of their numbers."""
    torch.manual_seed(0)
    config = GptOssConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        vocab_size=260,
        max_position_embeddings=512,
        sliding_window=32,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain = folder / "plain"
    model.save_pretrained(plain)
    packed = folder / "packed"
    packed.mkdir()
    dense = load_file(plain / "model.safetensors")
    state: dict[str, Tensor] = {}
    for name, tensor in list(dense.items()):
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            state[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // BLOCK, BLOCK // 2), dtype=torch.uint8)
        scales = torch.randint(118, 123, (experts, outputs, inputs // BLOCK), dtype=torch.uint8)
        state[f"{name}_blocks"] = blocks
        state[f"{name}_scales"] = scales
        dense[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    save_file(dense, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(state, packed / "model.safetensors", metadata={"format": "pt"})
    found = json.loads((plain / "config.json").read_text())
    declaration = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (packed / "config.json").write_text(json.dumps({**found, "quantization_config": declaration}))
    for target in (plain, packed):
        byte_tokenizer().save(str(target / "tokenizer.json"))
        (target / "tokenizer_config.json").write_text("{}")
    return packed, plain


def test_gpt_oss_with_packed_experts(tmp_path: Path) -> None:
    assert_same_numbers(*gpt_oss(tmp_path))


def refused(path: Path, **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve({"model": str(path), **arguments}, context="explain")
    return str(caught.value)


def redeclared(path: Path, **changes: Any) -> Path:
    file = path / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"].update(changes)
    file.write_text(json.dumps(config))
    return path


def test_what_is_not_understood_is_refused_by_name(llama: Path, tmp_path: Path) -> None:
    packed, _ = write_twins(llama, tmp_path, {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}, by_block)
    assert "a key 'rotation' that is not known" in refused(redeclared(packed, rotation="hadamard"))
    assert "weight_block_size [0, 1]" in refused(redeclared(packed, rotation=None, weight_block_size=[0, 1]))
    assert "has shape [2, 2], but its declared scheme needs" in refused(redeclared(packed, weight_block_size=[64, 64]))
    assert "expert_dtype 'fp4'; expected one of fp8" in refused(redeclared(packed, expert_dtype="fp4"))
    redeclared(packed, expert_dtype="fp8")
    assert "fmt 'e3m4'" in refused(redeclared(packed, weight_block_size=[BLOCK, BLOCK], fmt="e3m4"))
    assert "head int8: the checkpoint is packed already" in refused(
        redeclared(packed, fmt="e4m3"), quantization_config={"head": "int8"}
    )
    assert "declares 'fp8'; leave the argument out" in refused(packed, quantization="nf4")


def test_algorithms_that_need_more_than_weights_are_refused(llama: Path, tmp_path: Path) -> None:
    packed, _ = write_twins(llama, tmp_path, {**MODELOPT, "quant_algo": "W4A8_AWQ"}, nvfp4)
    assert "W4A8_AWQ: its inputs are scaled before the product" in refused(packed)
    assert "quant_algo 'FP3'" in refused(redeclared(packed, quant_algo="FP3"))

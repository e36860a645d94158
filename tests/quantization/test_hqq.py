"""Checkpoints of HQQ: the matrices that hqq means, the model's tokens, and bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from core.api.errors import CheckpointError
from core.api.specs import DensePlan, LayerSpec, PartPlan, Unsupported
from core_quantization.declared.refusal import Refusal
from core_quantization.hqq import manifest as hooks
from core_quantization.hqq.declaration import check_declaration
from core_runtime.specs.checkpoint import CheckpointFacts
from core_runtime.weights.formats import Dense, IntGroups, SuperGroups
from tests.quantization.packed import KEPT, Packed, changed, check_tokens, digest

HERE = KEPT / "hqq"
BITS = HERE / "bits"
NAMES = sorted(path.parent.name for path in HERE.glob("*/digests.json"))
Q_PROJ = "model.layers.0.self_attn.q_proj"


def by_group(matrix: Tensor, scale: Tensor) -> Tensor:
    """A matrix as its groups lie, so that scales and zero points [R, 1] or [1, R] stand beside them."""
    return matrix.view(len(scale), -1) if scale.shape[1] == 1 else matrix.view(-1, scale.shape[1])


@pytest.mark.parametrize("name", NAMES)
def test_matrices_are_those_of_the_tool(name: str) -> None:
    """Integers, scales and zero points bit for bit; the matrix as held is nearer to them than the tool's own in its type."""
    packed = Packed(HERE / name, hooks)
    told = json.loads((packed.path / "digests.json").read_text())["float32"]
    stored = load_file(packed.path / "model.safetensors")
    weights = packed.weights()
    assert weights.keys() == told.keys()
    for module, weight in weights.items():
        scale = stored[f"{module}.scale"]
        zero = stored[f"{module}.zero"]
        if isinstance(weight, Dense):
            assert digest(weight.dequantize()) == told[module], module
            continue
        assert isinstance(weight, IntGroups | SuperGroups)
        stored_integers = weight.unpacked() if isinstance(weight, IntGroups) else weight.integers()
        integers = by_group(stored_integers, scale)
        exact = (integers.float() - zero.float()) * scale.float()
        assert digest(exact.view(weight.shape)) == told[module], module
        own = ((integers.to(scale.dtype) - zero) * scale).float()
        held = by_group(weight.dequantize(), scale)
        assert (held - exact).abs().max() < (own - exact).abs().max(), module


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_the_plain_model(name: str, tmp_path: Path) -> None:
    check_tokens(Packed(HERE / name, hooks), tmp_path / "plain")


def test_each_module_is_held_as_its_tensors_say() -> None:
    packed = Packed(BITS, hooks, dtype="bfloat16")
    held = {}
    for name, (_, plan) in packed.plans().items():
        assert isinstance(plan, PartPlan | DensePlan), plan
        if name.startswith("model.layers.0.") and isinstance(plan, PartPlan):
            held[name.rpartition(".")[2]] = (plan.format, plan.activation)
    assert held == {
        "q_proj": ("int8_groups", "int8"),
        "k_proj": ("int4_groups", "int8"),
        "v_proj": ("int3_super", "int8"),
        "o_proj": ("int4_groups", "int8"),
        "gate_proj": ("int2_super", "int8"),
        "up_proj": ("int4_groups", "int8"),
        "down_proj": ("bfloat16", "bf16"),
    }


def test_four_and_eight_bits_take_no_more_memory_than_the_file() -> None:
    packed = Packed(BITS, hooks)
    weights = packed.weights()
    for module in (Q_PROJ, "model.layers.0.self_attn.k_proj", "model.layers.1.mlp.up_proj", "lm_head"):
        stored = [packed.manifest.tensors[f"{module}.{suffix}"].nbytes for suffix in ("W_q", "scale", "zero")]
        assert weights[module].nbytes == sum(stored)


@pytest.mark.parametrize(
    ("declaration", "sentence"),
    [
        ({"quant_config": {"weight_quant_params": {"nbits": 6}}}, r"nbits: needs 8, 4, 3, 2 or 1, got 6"),
        ({"quant_config": {"mlp.up_proj": {"weight_quant_params": {"nbits": 1.58}}}}, r"mlp\.up_proj.*got 1.58"),
        ({"quant_config": {"weight_quant_params": {"nbit": 4}}}, r"nbit: needs a known key"),
        ({"quant_config": {"weight_quant_params": 4}}, r"weight_quant_params: needs an object"),
        ({"skip_module": ["lm_head"]}, r"skip_module: needs a known key.*Did you mean 'skip_modules'"),
    ],
)
def test_declarations_that_are_not_served_are_refused_by_key(declaration: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        check_declaration(declaration)
    facts = CheckpointFacts("x", "safetensors", "llama", quantization="hqq", declaration=declaration)
    assert len(hooks.core_supports(facts)) == 1


def test_only_checkpoints_that_declare_it_are_opened() -> None:
    found = json.loads((BITS / "config.json").read_text())["quantization_config"]
    assert hooks.core_supports(CheckpointFacts("x", "safetensors", "llama", declaration=found)) == []
    assert "leave --quantization out" in str(hooks.core_supports(CheckpointFacts("x", "safetensors", "llama"))[0])


@pytest.mark.parametrize(
    ("suffix", "tensor", "sentence"),
    [
        ("scale", torch.full((128, 1), torch.nan, dtype=torch.float16), "not finite"),
        ("nbits", torch.tensor(6), r"tensor 'nbits' of \[6\], but its other tensors say \[8\]"),
        ("axis", torch.tensor(0), r"tensor 'axis' of \[0\]"),
        ("shape", torch.tensor([32, 128]), r"'shape' of \[32, 128\]"),
    ],
)
def test_values_that_lie_are_told(suffix: str, tensor: Tensor, sentence: str, tmp_path: Path) -> None:
    name = f"{Q_PROJ}.{suffix}".replace(".", "__")
    with pytest.raises(CheckpointError, match=rf"q_proj'.*{sentence}"):
        Packed(changed(BITS, tmp_path / "copy", **{name: tensor}), hooks).weights()


@pytest.mark.parametrize(
    ("suffix", "tensor", "sentence"),
    [
        ("scale", None, "has no tensor 'scale'"),
        ("scale", torch.ones(100, 1, dtype=torch.float16), "has 100 scales, which do not divide 64 x 64 numbers"),
        ("scale", torch.ones(128, 1, dtype=torch.int32), "has type I32"),
        ("zero", torch.ones(64, 1, dtype=torch.float16), r"zero' has shape \[64, 1\].*needs \[128, 1\]"),
        ("W_q", torch.zeros(127, 32, dtype=torch.uint8), r"of type U8 and shape \[127, 32\] holds no 64 x 64 integers"),
        ("W_q", torch.zeros(128, 32, dtype=torch.int64), "of type I64"),
        ("zero_q", torch.zeros(128, 1, dtype=torch.uint8), r"zero_q' is not known.*quantize the model again"),
    ],
)
def test_tensors_that_lie_are_told(suffix: str, tensor: Tensor | None, sentence: str, tmp_path: Path) -> None:
    name = f"{Q_PROJ}.{suffix}".replace(".", "__")
    packed = Packed(changed(BITS, tmp_path / "copy", **{name: tensor}), hooks)
    plan = packed.method.plan(LayerSpec(Q_PROJ, "linear", (64, 64)))
    assert isinstance(plan, Unsupported)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(plan.reason)

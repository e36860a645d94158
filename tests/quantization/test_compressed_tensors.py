"""Checkpoints of compressed-tensors: the matrices that its own tool means, the model's tokens, and bad input."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from core.api.errors import CheckpointError
from core.api.specs import DensePlan, LayerSpec, Unsupported
from core_quantization.compressed import manifest as hooks
from core_quantization.compressed.declaration import read_declared
from core_quantization.compressed.sparse import spread
from core_quantization.declared.refusal import Refusal
from tests.quantization.packed import KEPT, PROMPT, Packed, changed, check_tokens, digest, plain_model

HERE = KEPT / "compressed-tensors"
MIXED = HERE / "mixed"
NAMES = sorted(path.parent.name for path in HERE.glob("*/dequantized.json"))
FORMATS = {
    "model.layers.0.self_attn.q_proj": ("int4_groups", "int8"),
    "model.layers.0.self_attn.o_proj": ("int8_groups", "int8"),
    "model.layers.0.mlp.gate_proj": ("nvfp4", "int8"),
    "model.layers.0.mlp.down_proj": ("mxfp4", "int8"),
    "model.layers.1.self_attn.q_proj": ("fp8_e4m3", "bf16"),
    "model.layers.1.self_attn.o_proj": ("fp8_e4m3", "bf16"),
    "model.layers.1.mlp.up_proj": ("int8_channel", "int8"),
    "model.layers.1.mlp.down_proj": ("int4_groups", "int8"),
    "lm_head": ("int8_channel", "int8"),
}


def sums(matrix: torch.Tensor) -> list[float]:
    """Of the positive numbers and of the negative ones, times their places."""
    wide = matrix.double()
    places = torch.arange(wide.numel(), dtype=torch.float64).view_as(wide)
    return [float((wide.relu() * places).sum()), float(((-wide).relu() * places).sum())]


@pytest.mark.parametrize("name", NAMES)
def test_matrices_and_tokens_are_those_of_the_tool(name: str, tmp_path: Path) -> None:
    packed = Packed(HERE / name, hooks)
    weights = packed.weights()
    expected = json.loads((HERE / name / "dequantized.json").read_text())
    assert weights.keys() == {module.removesuffix(".sums") for module in expected}
    for module, weight in weights.items():
        matrix = weight.dequantize()
        if weight.name == "nvfp4":  # the tool divides scales by the global one; here it is a factor of the row
            assert sums(matrix) == pytest.approx(expected[f"{module}.sums"], rel=1e-6)
        else:
            assert digest(matrix) == expected[module], module
    check_tokens(packed, tmp_path / "plain")


def test_each_scheme_has_its_format_and_precision() -> None:
    plans = Packed(MIXED, hooks, dtype="bfloat16").plans()
    found = {name: (plans[name][1].format, plans[name][1].activation) for name in FORMATS}
    assert found == FORMATS
    assert isinstance(plans["model.embed_tokens"][1], DensePlan)
    asked = Packed(MIXED, hooks, dtype="bfloat16", activation="bf16").plans()
    assert asked["model.layers.0.mlp.gate_proj"][1].activation == "bf16"
    refused = asked["lm_head"][1]
    assert isinstance(refused, Unsupported) and "choose int8 or int8_row or none" in refused.reason


def test_a_tied_embedding_may_be_packed(tmp_path: Path) -> None:
    def with_embedding(declaration: dict[str, Any]) -> None:
        weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
        declaration["config_groups"]["embedding"] = {"targets": ["Embedding"], "weights": weights}

    torch.manual_seed(3)
    values = torch.randint(-128, 128, (128, 64)).to(torch.int8)
    scale = torch.rand(128, 1) / 64
    tensors = {"model__embed_tokens__weight": values, "model__embed_tokens__weight_scale": scale}
    packed = Packed(changed(HERE / "sparse", tmp_path / "a", with_embedding, **tensors), hooks)
    assert torch.equal(packed.weights()["model.embed_tokens"].dequantize(), values.float() * scale)
    model = plain_model(packed, tmp_path / "plain")
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(packed.logits(PROMPT), expected, rtol=1e-3, atol=1e-3)


def declared(**changes: Any) -> dict[str, Any]:
    """A declaration with one group of 4-bit integers. changes: of the weights."""
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, **changes}
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("declaration", "sentence"),
    [
        ({**declared(), "format": "zipped"}, "format: needs pack-quantized or .*'zipped'"),
        (
            {**declared(), "ignored": ["lm_head"]},
            r"ignored: needs a known key, got \['lm_head'\] .*Did you mean 'ignore'",
        ),
        (declared(num_bits=16), r"group_0\.weights\.num_bits: needs 1 to 8 bits, got 16"),
        (declared(num_bits="4"), "num_bits: needs a whole number, got '4'"),
        (declared(type="float", num_bits=6), "4 or 8 bits for floats, got 6"),
        (declared(type="posit"), "type: needs int or float, got posit"),
        (declared(strategy="attn_head"), "strategy: needs tensor or channel"),
        (declared(group_size=0), "a positive number for groups, got 0"),
        (declared(rotation=1), r"weights\.rotation: needs a known key"),
        (declared(type="float", num_bits=8, strategy="block", block_structure=[0, 1]), "two positive numbers"),
        ({**declared(), "sparsity_config": {"format": "coo"}}, "sparsity_config.format: needs dense"),
        ({**declared(), "config_groups": ["W4A16"]}, "config_groups: needs an object"),
    ],
)
def test_a_declaration_that_cannot_be_served_is_told(declaration: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        read_declared(declaration)


def test_what_says_nothing_about_weights_is_left_aside() -> None:
    fused = {"config_groups": {"u": {"type": "hadamard", "apply": [{"location": "weight_input"}]}}}
    more = {"transform_config": fused, "sparsity_config": {"format": "dense"}, "quantization_status": "compressed"}
    (group,) = read_declared({**declared(group_size=-1, strategy=None), **more}).groups
    assert group.numbers is not None and group.numbers.shares.by == "row"
    nested = {"quantization_config": declared(), "sparsity_config": None, "quant_method": "compressed-tensors"}
    assert read_declared(nested) == read_declared(declared())


def test_groups_are_found_by_name_before_class(tmp_path: Path) -> None:
    def other_targets(declaration: dict[str, Any]) -> None:
        groups = declaration["config_groups"]
        for name in list(groups):
            if "layers.0.self_attn.[qkv]" in groups[name]["targets"][0]:
                groups[name]["targets"] = ["Linear"]
            if groups[name]["targets"] == ["lm_head"]:
                groups[name]["targets"] = ["MyOwnHead"]  # nobody knows its class; Linear comes first

    packed = Packed(changed(MIXED, tmp_path / "a", other_targets), hooks)
    plans = packed.plans()
    assert plans["model.layers.0.self_attn.k_proj"][1].format == "int4_groups"
    assert plans["model.layers.1.self_attn.k_proj"][1].format == "fp8_e4m3"
    assert isinstance(plans["lm_head"][1], Unsupported)  # its words are too many for 4 bits


Q = "model__layers__0__self_attn__q_proj"
LAYER = LayerSpec("model.layers.0.self_attn.q_proj", "linear", (64, 64))


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({f"{Q}__weight_scale": None}, r"q_proj' has no tensor 'weight_scale'; the checkpoint is incomplete"),
        ({f"{Q}__weight_scale": torch.ones(64, 3)}, r"shape \[64, 3\], but .* needs \[64, 2\] for 64 outputs"),
        ({f"{Q}__weight_scale": torch.ones(64, 2).int()}, "has type I32, but its declared scheme needs F32 or"),
        ({f"{Q}__weight_packed": torch.ones(64, 8)}, "weight_packed' has type F32"),
        ({f"{Q}__weight_packed": None, f"{Q}__weight": torch.ones(64, 64)}, "saved before it was compressed"),
    ],
)
def test_tensors_that_do_not_fit_their_scheme_are_told(
    tensors: dict[str, torch.Tensor], sentence: str, tmp_path: Path
) -> None:
    plan = Packed(changed(MIXED, tmp_path / "a", **tensors), hooks).method.plan(LAYER)
    assert isinstance(plan, Unsupported)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(plan.reason)


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (
            {f"{Q}__weight_scale": torch.full((64, 2), torch.nan)},
            r"q_proj': the scale .* not finite; the file is damaged",
        ),
        ({f"{Q}__weight_shape": torch.tensor([64, 65])}, r"q_proj' has weight_shape \[64, 65\]; expected \[64, 64\]"),
        ({f"{Q}__weight_g_idx": torch.arange(64).int() // 16}, "q_proj' has groups .* not made of 32 inputs each"),
    ],
)
def test_values_that_lie_are_told(tensors: dict[str, torch.Tensor], sentence: str, tmp_path: Path) -> None:
    packed = Packed(changed(MIXED, tmp_path / "a", **tensors), hooks)
    plan = packed.method.plan(LAYER)
    read = dict(packed.iter(packed.manifest, plan.reads))
    with pytest.raises(CheckpointError, match=sentence):
        packed.method.pack(LAYER, read)


def test_a_module_without_a_group_is_told(tmp_path: Path) -> None:
    def none(declaration: dict[str, Any]) -> None:
        declaration["config_groups"] = {}

    plan = Packed(changed(MIXED, tmp_path / "a", none), hooks).method.plan(LAYER)
    assert isinstance(plan, Unsupported) and "is packed, but no group of config_groups means it" in plan.reason


def test_groups_that_do_not_divide_are_told(tmp_path: Path) -> None:
    def wider(declaration: dict[str, Any]) -> None:
        for group in declaration["config_groups"].values():
            group["weights"]["group_size"] = 48 if group["weights"]["group_size"] else None

    path = changed(MIXED, tmp_path / "a", wider)
    plan = Packed(path, hooks).method.plan(LAYER)
    assert isinstance(plan, Unsupported) and "its 64 inputs are not a multiple of 48" in plan.reason


def test_a_mask_with_too_few_numbers_is_damaged() -> None:
    mask = torch.tensor([[0b1011], [0]], dtype=torch.uint8)
    assert spread(torch.tensor([1.0, 2.0, 3.0]), mask, (2, 5)).tolist() == [[1, 2, 0, 3, 0], [0] * 5]
    with pytest.raises(ValueError, match="has 2 numbers for the 3 places of its bitmask"):
        spread(torch.tensor([1.0, 2.0]), mask, (2, 5))


def test_the_copy_of_a_checkpoint_can_be_named_without_its_method(tmp_path: Path) -> None:
    from core_runtime.specs.checkpoint import CheckpointFacts

    plain = CheckpointFacts("x", "safetensors", "llama")
    assert "leave --quantization out" in str(hooks.core_supports(plain)[0])
    shutil.copytree(MIXED, tmp_path / "copy")
    facts = Packed(tmp_path / "copy", hooks).manifest.facts()
    assert facts.quantization == "compressed-tensors" and hooks.core_supports(facts) == []

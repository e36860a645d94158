"""Checkpoints of AMD Quark: the matrices that its own tool means, the model's tokens, and bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from core.api.specs import LayerSpec, Unsupported
from core.plugin.registry import PluginRegistry
from core_config.selection import select_quantization
from core_quantization.declared.floats6 import numbers_of
from core_quantization.declared.refusal import Refusal
from core_quantization.quark import manifest as hooks
from core_quantization.quark.declaration import read_declaration
from core_runtime.models.tensors.kv_scales import kv_scales
from tests.quantization.packed import KEPT, Packed, changed, check_tokens, digest

HERE = KEPT / "quark"
MIXED = HERE / "mixed"
MXFP6 = HERE / "mxfp6"
LAYER = LayerSpec("model.layers.0.self_attn.q_proj", "linear", (64, 64))
Q = "model__layers__0__self_attn__q_proj"


@pytest.mark.parametrize("name", ["fp8-cache", "mixed", "mxfp6"])
def test_matrices_and_tokens_are_those_of_the_tool(name: str, tmp_path: Path) -> None:
    packed = Packed(HERE / name, hooks)
    expected = json.loads((HERE / name / "dequantized.json").read_text())
    found = {module: digest(weight.dequantize()) for module, weight in packed.weights().items()}
    assert found == expected
    check_tokens(packed, tmp_path / "plain")


def test_each_scheme_has_its_format() -> None:
    plans = Packed(MIXED, hooks, dtype="bfloat16").plans()
    formats = {name: plan.format for name, (_, plan) in plans.items() if "_proj" in name}
    assert formats["model.layers.0.self_attn.q_proj"] == "int4_groups"
    assert formats["model.layers.0.self_attn.o_proj"] == "int8_channel"
    assert formats["model.layers.0.mlp.up_proj"] == "int8_groups"
    assert formats["model.layers.0.mlp.down_proj"] == "mxfp4"
    assert formats["model.layers.1.self_attn.o_proj"] == "fp8_e4m3"


def test_six_bits_are_held_in_eight() -> None:
    """Without rounding: `test_matrices_and_tokens_are_those_of_the_tool` has both types, one in each layer."""
    plans = Packed(MXFP6, hooks, dtype="bfloat16").plans()
    formats = {plan.format for name, (_, plan) in plans.items() if "_proj" in name}
    assert formats == {"fp8_e4m3"}
    fine, wide = numbers_of("fp6_e2m3"), numbers_of("fp6_e3m2")
    assert fine[:9] == [0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1] and max(fine) == 7.5
    assert wide[:5] == [0, 0.0625, 0.125, 0.1875, 0.25] and min(wide) == -28


def test_outputs_of_keys_and_values_are_scales_of_the_cache() -> None:
    packed = Packed(HERE / "fp8-cache", hooks)
    params = kv_scales(packed, packed.manifest, "fp8_e4m3")
    tensors = dict(packed.iter(packed.manifest, [name for name in packed.manifest.tensors if "output_scale" in name]))
    assert set(params) == {0, 1}
    for layer, scales in params.items():
        prefix = f"model.layers.{layer}.self_attn"
        assert scales.k_scale == float(tensors[f"{prefix}.k_proj.output_scale"])
        assert scales.v_scale == float(tensors[f"{prefix}.v_proj.output_scale"])
    assert kv_scales(packed, packed.manifest, "bfloat16") == {}


def test_the_checkpoint_names_its_method() -> None:
    facts = Packed(MIXED, hooks).manifest.facts()
    choice = select_quantization(PluginRegistry(), None, facts)
    assert choice.selection.chosen == ("quark",)


def declared(**changes: Any) -> dict[str, Any]:
    """A declaration of 4-bit integers. changes: of the weights."""
    weight = {"dtype": "int4", "qscheme": "per_group", "ch_axis": -1, "group_size": 32, "symmetric": True, **changes}
    return {"quant_method": "quark", "global_quant_config": {"weight": weight}}


@pytest.mark.parametrize(
    ("declaration", "sentence"),
    [
        (declared(dtype="mx6"), "global_quant_config.weight.dtype: needs int4 or .*'mx6' .*quantize the model again"),
        (declared(qscheme="per_row"), "qscheme: needs per_tensor or"),
        (declared(ch_axis=0), "ch_axis: needs -1, the inputs, for groups, got 0"),
        (declared(dtype="fp4", scale_format=None), "scale_format: needs e8m0 in groups, for fp4"),
        (declared(dtype="fp6_e2m3", qscheme="per_channel", ch_axis=0), "e8m0 in groups, for fp6_e2m3"),
        (declared(zero_point_type="float32"), "zero_point_type: needs int32, got float32"),
        (declared(group_size=None), "group_size: needs a whole number, got None"),
        (declared(magic=1), "magic: needs a known key"),
        (declared(dtype="fp8_e4m3", qscheme="per_block", block_size=128), "block_size: needs two positive numbers"),
        ({**declared(), "export": {"weight_format": "fake_quantized"}}, "export the model again with weight_format"),
        ({**declared(), "export": {"pack_method": "tiles"}}, "export.pack_method: needs reorder or order, got tiles"),
        ({**declared(), "algo_config": [{"name": "rotation", "r4": True}]}, "no rotation while the model runs"),
        ({"global_quant_config": {"weight": [{}, {}]}}, "weight: needs one scheme, got 2 of them"),
        ({**declared(), "layer_quant_config": {"*q_proj": 4}}, "needs an object with keys, got 4"),
    ],
)
def test_a_declaration_that_cannot_be_served_is_told(declaration: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        read_declaration(declaration)


def test_the_first_pattern_counts_then_the_type_then_the_whole() -> None:
    other = declared(dtype="int8")["global_quant_config"]
    plain = {"weight": None}
    layers = {"*q_proj": other, "*_proj": plain}
    found = read_declaration({**declared(), "layer_quant_config": layers})
    assert found.numbers_of("model.layers.0.self_attn.q_proj") is not None
    assert found.numbers_of("model.layers.0.mlp.up_proj") is None
    assert found.numbers_of("lm_head") == read_declaration(declared()).linear
    typed = read_declaration({**declared(), "layer_type_quant_config": {"Linear": other}})
    assert typed.linear is not None and typed.linear.dtype == "int8"


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({f"{Q}__weight": torch.zeros(64, 64, dtype=torch.uint8)}, r"shape \[64, 64\], .* needs \[64, 48\]"),
        ({f"{Q}__weight_scale": torch.zeros(64, 2)}, "has type F32, but its declared scheme needs U8 or F8_E8M0"),
    ],
)
def test_tensors_that_do_not_fit_six_bits_are_told(
    tensors: dict[str, torch.Tensor], sentence: str, tmp_path: Path
) -> None:
    plan = Packed(changed(MXFP6, tmp_path / "a", **tensors), hooks).method.plan(LAYER)
    assert isinstance(plan, Unsupported)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(plan.reason)


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({f"{Q}__weight_scale": torch.ones(64, 2)}, r"shape \[64, 2\], but its declared scheme needs \[2, 64\]"),
        ({f"{Q}__weight": torch.ones(64, 64).to(torch.int8)}, "has type I8, but its declared scheme needs I32"),
        ({f"{Q}__weight": torch.ones(64, 64)}, "plain and has a scale: .*'real_quantized'"),
    ],
)
def test_tensors_that_do_not_fit_their_scheme_are_told(
    tensors: dict[str, torch.Tensor], sentence: str, tmp_path: Path
) -> None:
    plan = Packed(changed(MIXED, tmp_path / "a", **tensors), hooks).method.plan(LAYER)
    assert isinstance(plan, Unsupported)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(plan.reason)

"""Checkpoints that ModelOpt exported: the matrices that its own classes mean, the model's tokens, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.api.errors import UserError
from core.api.specs import LayerSpec, PartPlan, Unsupported
from core_quantization.modelopt import manifest as hooks
from core_runtime.weights.formats import Codebook
from tests.quantization.packed import KEPT, Packed, changed, check_tokens, digest

HERE = KEPT / "modelopt"
FORMATS = {
    "fp8": "fp8_e4m3", "fp8_blocks": "fp8_e4m3", "fp8_rows": "fp8_e4m3", "int8": "int8_channel", "mxfp4": "mxfp4",
    "mxfp8": "fp8_e4m3", "nvfp4": "nvfp4", "nvfp4_of_32": "nvfp4",
}  # fmt: skip
Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("name", FORMATS)
def test_matrices_and_tokens_are_those_of_the_tool(name: str, tmp_path: Path) -> None:
    packed = Packed(HERE / name, hooks)
    told = json.loads((packed.path / "digests.json").read_text())["float32"]
    stored = load_file(packed.path / "model.safetensors")
    weights = packed.weights()
    assert weights.keys() == told.keys()
    for module, weight in weights.items():
        assert weight.name == FORMATS[name]
        if isinstance(weight, Codebook) and weight.row_scale is not None:  # told without the scale of the whole matrix
            assert (weight.row_scale == stored[f"{module}.weight_scale_2"]).all()
            weight = replace(weight, row_scale=None)
        assert digest(weight.dequantize() + 0.0) == told[module], module
    check_tokens(packed, tmp_path / "plain")


def test_blocks_of_inputs_have_their_own_scales() -> None:
    """The tool writes scales of blocks with two sides more, and one number where there is but one block."""
    packed = Packed(HERE / "fp8_blocks", hooks)
    down = "model.layers.0.mlp.down_proj"
    assert packed.manifest.tensors[f"{down}.weight_scale"].shape == (1, 1, 2, 1)
    assert packed.manifest.tensors[f"{Q_PROJ}.weight_scale"].shape == ()
    weights = packed.weights()
    assert weights[down].group_size == 128
    assert weights[Q_PROJ].group_size == 64


def test_inputs_that_are_scaled_first_are_refused(tmp_path: Path) -> None:
    name = f"{Q_PROJ}.pre_quant_scale".replace(".", "__")
    path = changed(HERE / "int8", tmp_path / "copy", **{name: torch.ones(64)})
    plan = Packed(path, hooks).method.plan(LayerSpec(Q_PROJ, "linear", (64, 64)))
    assert isinstance(plan, Unsupported) and "inputs are scaled before the product" in plan.reason


def test_scales_of_other_blocks_are_refused(tmp_path: Path) -> None:
    name = f"{Q_PROJ}.weight_scale".replace(".", "__")
    layer = LayerSpec(Q_PROJ, "linear", (64, 64))
    other = torch.ones(2, 1, 2, 1)
    plan = Packed(changed(HERE / "fp8_blocks", tmp_path / "a", **{name: other}), hooks).method.plan(layer)
    assert isinstance(plan, Unsupported) and "has shape [2, 1, 2, 1]" in plan.reason
    narrow = torch.ones(64, 3).to(torch.float8_e4m3fn)
    plan = Packed(changed(HERE / "nvfp4", tmp_path / "b", **{name: narrow}), hooks).method.plan(layer)
    assert isinstance(plan, Unsupported) and "needs [64, 4]" in plan.reason


def test_other_algorithms_are_refused(tmp_path: Path) -> None:
    def other(declaration: dict[str, Any]) -> None:
        declaration["quant_algo"] = "W3A16"

    with pytest.raises(UserError, match=r"quant_algo 'W3A16'; expected one of FP8"):
        Packed(changed(HERE / "int8", tmp_path / "copy", other), hooks)


def test_weights_are_as_small_as_in_the_file() -> None:
    packed = Packed(HERE / "nvfp4_of_32", hooks)
    plan = packed.plans()[Q_PROJ][1]
    assert isinstance(plan, PartPlan)
    stored = sum(packed.manifest.tensors[f"{Q_PROJ}.{suffix}"].nbytes for suffix in ("weight", "weight_scale"))
    rows_with_the_whole_scale = 64 * 4
    assert plan.nbytes == stored + rows_with_the_whole_scale

"""Integers in tiles: the matrices that the packers of Marlin, compressed-tensors and QQQ were given, and bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_twins import assert_same_numbers, write_twins
from safetensors.torch import load_file
from tiny_models import save_checkpoint
from torch import Tensor

from core.api.specs import PartPlan, Unsupported
from core_quantization.compressed.declaration import read_declared
from core_quantization.compressed.layouts import Choice
from core_quantization.declared.layout import Layout
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run
from core_quantization.declared.refusal import Refusal
from core_quantization.gptq.declaration import Declaration
from core_quantization.gptq.method import gptq_layouts
from core_runtime.specs.checkpoint import TensorInfo
from core_runtime.weights.formats import CanonicalWeight
from core_runtime.weights.input_rounding import InputRounding
from core_runtime.weights.prepared_inputs import PreparedInputs
from tests.quantization.packed import KEPT, digest

SHAPE = (64, 512)
DIGESTS = json.loads((KEPT / "gptq" / "tiles.json").read_text())
STORED = load_file(KEPT / "gptq" / "tiles.safetensors")
TYPES = {torch.int32: "I32", torch.int16: "I16", torch.float16: "F16", torch.float32: "F32"}
COMPRESSED = {"B_24": "weight_packed", "s": "scale_packed", "B_meta": "meta"}
RUN = Run("none", "float32", ())


def tensors_of(case: str) -> dict[str, Tensor]:
    return {name.rpartition("/")[2]: tensor for name, tensor in STORED.items() if name.startswith(f"{case}/")}


def declared(case: str, **changes: Any) -> dict[str, Any]:
    form, bits, scope = case.split("/")
    return {"bits": int(bits), "group_size": 128 if scope == "groups" else -1, "checkpoint_format": form, **changes}


def part_of(tensors: dict[str, Tensor], shape: tuple[int, int] = SHAPE) -> StoredPart:
    found = {}
    for name, tensor in tensors.items():
        full = f"down_proj.{name}"
        found[name] = TensorInfo(full, tuple(tensor.shape), TYPES[tensor.dtype], tensor.nbytes, 0, 0, full)
    return StoredPart("down_proj", "down_proj", shape, found)


def layout_of(case: str, part: StoredPart, run: Run = RUN, **changes: Any) -> Layout:
    layout = gptq_layouts(Declaration.read(declared(case, **changes)), run)(part)
    assert layout is not None and not isinstance(layout, Unsupported)
    return layout


def packed(layout: Layout, part: StoredPart, tensors: dict[str, Tensor]) -> CanonicalWeight:
    plan = layout.plan(part)
    assert isinstance(plan, PartPlan), plan
    weight = layout.pack(part, tensors)
    assert weight.nbytes == plan.nbytes and weight.shape == part.shape and weight.name == plan.format
    return weight


@pytest.mark.parametrize("case", DIGESTS)
def test_matrices_are_those_that_the_packers_were_given(case: str) -> None:
    tensors = tensors_of(case)
    part = part_of(tensors)
    weight = packed(layout_of(case, part), part, tensors)
    assert digest(weight.dequantize() + 0.0) == DIGESTS[case]


@pytest.mark.parametrize("case", [case for case in DIGESTS if case.startswith("marlin_24")])
def test_compressed_tensors_names_them_otherwise(case: str) -> None:
    tensors = {COMPRESSED[name]: tensor for name, tensor in tensors_of(case).items()}
    part = part_of(tensors)
    _, bits, scope = case.split("/")
    scheme: dict[str, Any] = {"num_bits": int(bits), "type": "int", "symmetric": True, "strategy": "channel"}
    if scope == "groups":
        scheme.update(strategy="group", group_size=128)
    groups = read_declared({"format": "marlin-24", "config_groups": {"a": {"targets": ["Linear"], "weights": scheme}}})
    layout = Choice(groups, RUN)(part)
    assert layout is not None and not isinstance(layout, Unsupported)
    assert digest(packed(layout, part, tensors).dequantize() + 0.0) == DIGESTS[case]


def test_products_of_qqq_have_inputs_of_8_bits() -> None:
    """As its kernel: 127 steps for the largest input of a token. The products of integers are exact."""
    tensors = tensors_of("qqq/4/groups")
    part = part_of(tensors)
    weight = layout_of("qqq/4/groups", part, Run("declared", "float32", ())).pack(part, tensors)
    assert isinstance(weight, PreparedInputs) and weight.steps == (InputRounding("int8", "largest"),)
    x = torch.randn(5, 512)
    scale = x.abs().amax(1, keepdim=True).div(127.0)
    assert torch.equal(weight.steps[0](x), (x / scale).round().clamp(-128, 127) * scale)
    assert layout_of("qqq/4/groups", part, Run("int8_row", "bfloat16", ())).plan(part).activation == "int8_row"  # type: ignore[union-attr]


@pytest.mark.parametrize("case", ["marlin/4/groups", "marlin_24/8/rows", "qqq/4/groups"])
def test_models_have_the_numbers_of_plain_ones(case: str, tmp_path: Path) -> None:
    plain = save_checkpoint(tmp_path / "model", hidden_size=64, intermediate_size=512)
    tensors = tensors_of(case)
    part = part_of(tensors)
    matrix = layout_of(case, part).pack(part, tensors).dequantize()
    form, bits, scope = case.split("/")
    method = {"marlin": "marlin", "marlin_24": "gptq_marlin_24", "qqq": "qqq"}[form]
    size = 128 if scope == "groups" else -1
    named = {"wbits": int(bits)} if form == "qqq" else {"bits": int(bits)}

    def copied() -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in tensors.items()}

    twins = write_twins(
        plain,
        tmp_path,
        {"quant_method": method, "group_size": size, **named},
        lambda module, _: (copied(), matrix.clone()) if module.endswith("down_proj") else None,
    )
    assert_same_numbers(*twins)


@pytest.mark.parametrize(
    ("case", "shape", "changes", "sentence"),
    [
        ("marlin/4/groups", (96, 512), {}, "96 outputs and 512 inputs do not fill tiles of 64 outputs and 16 inputs"),
        ("marlin_24/4/groups", (64, 528), {}, "64 outputs and 528 inputs do not fill tiles of 64 outputs and 32"),
        ("marlin/4/groups", (64, 576), {}, "its 576 inputs are not a multiple of 128, its group size"),
        ("marlin/4/groups", (64, 640), {}, r"'down_proj.B' has shape \[32, 128\], .* needs \[40, 128\]"),
        ("marlin/4/groups", SHAPE, {"bits": 8}, "integers of 4 bits, but the declaration says 8"),
        ("marlin/4/groups", SHAPE, {"group_size": 64}, r"'down_proj.s' has shape \[4, 64\], .* needs \[8, 64\]"),
    ],
)
def test_tiles_of_the_wrong_size_are_told(
    case: str, shape: tuple[int, int], changes: dict[str, Any], sentence: str
) -> None:
    part = part_of(tensors_of(case), shape)
    plan = layout_of(case, part, **changes).plan(part)
    assert isinstance(plan, Unsupported)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(plan.reason)


def test_damaged_indices_and_scales_are_told() -> None:
    tensors = tensors_of("marlin_24/4/groups")
    part = part_of(tensors)
    with pytest.raises(ValueError, match="name one of four inputs twice; the file is damaged"):
        layout_of("marlin_24/4/groups", part).pack(part, {**tensors, "B_meta": torch.zeros_like(tensors["B_meta"])})
    tensors = tensors_of("qqq/4/groups")
    part = part_of(tensors)
    with pytest.raises(ValueError, match="'s_group' that is not finite"):
        layout_of("qqq/4/groups", part).pack(part, {**tensors, "s_group": tensors["s_group"] * float("inf")})


def test_tiles_have_no_zero_points() -> None:
    with pytest.raises(Refusal, match="sym: needs true for the format marlin, got False"):
        Declaration.read(declared("marlin/4/groups", sym=False))
    assert Declaration.read({"bits": 4, "group_size": 128, "is_marlin_format": True}).tiles == "marlin"
    assert Declaration.read({"group_size": 128, "quant_method": "marlin"}).scheme.bits == 4

"""Checkpoints of FP-Quant: products of rotated inputs, as its reference multiplies them, and bad input.

No tool runs on a processor: the packer here follows fp_quant 0.3, whose reference in Triton rotates groups of inputs and rounds
to mxfp4 with three quarters of the usual scale.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from packed_twins import assert_same_numbers, write_twins
from tiny_models import save_checkpoint
from torch import Tensor

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run
from core_quantization.declared.refusal import Refusal
from core_quantization.fp_quant.declaration import read_declaration
from core_quantization.fp_quant.layout import fp_quant_layouts
from core_runtime.layers.kernels import KernelSet
from core_runtime.specs.checkpoint import TensorInfo
from core_runtime.weights.codebook import E2M1
from core_runtime.weights.input_rotation import walsh
from core_runtime.weights.input_rounding import NUMBERS, nearest

SIZE = 32
SHAPE = (48, 96)
TYPES = {torch.uint8: "U8", torch.float32: "F32", torch.bfloat16: "BF16"}


def rotation() -> Tensor:
    return (walsh(torch.eye(SIZE)) * SIZE**-0.5).bfloat16()


def codes_of(numbers: Tensor) -> Tensor:
    table = torch.tensor(E2M1[:8])
    magnitude = (numbers.abs().unsqueeze(-1) == table).int().argmax(-1)
    return (magnitude + 8 * (numbers < 0)).to(torch.uint8)


def packed(w: Tensor, form: str, padded: bool = False) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of a module, and its matrix [N, K] of rotated inputs."""
    n, k = w.shape
    turned = (w.view(n, -1, SIZE) @ rotation().float()).view(n, k)
    block, whole = (32, 3.0) if form == "mxfp4" else (16, 10.0)
    blocks = turned.view(n, -1, block)
    largest = blocks.abs().amax(-1, keepdim=True)
    if form == "mxfp4":
        scale = 2.0 ** (largest.log2().floor() - 2)
        stored = (scale.log2() + 2 + 127).to(torch.uint8).squeeze(-1)
        numbers = nearest(blocks / scale * 0.75, NUMBERS["fp4"])
        matrix = numbers * (4 * scale) / whole  # 4 / 3 of the scale
    else:
        narrow = (largest / 6 * whole).to(torch.float8_e4m3fn)
        stored = narrow.view(torch.uint8).squeeze(-1)
        numbers = nearest(blocks / (narrow.float() / whole), NUMBERS["fp4"])
        matrix = numbers * narrow.float() / whole
    codes = codes_of(numbers).view(n, k)
    if padded:
        stored = torch.nn.functional.pad(stored, (0, -stored.shape[1] % 4, 0, -n % 128))
    tensors = {
        "qweight": codes[:, ::2] | (codes[:, 1::2] << 4),
        "scales": stored,
        "weight_global_scale": torch.tensor([whole]).bfloat16(),
        "act_global_scale": torch.tensor([whole]).bfloat16(),
        "forward_hadamard_matrix": rotation(),
        "backward_hadamard_matrix": rotation(),
    }
    return tensors, matrix.reshape(n, k)


def part_of(tensors: dict[str, Tensor], shape: tuple[int, int] = SHAPE) -> StoredPart:
    found = {}
    for name, tensor in tensors.items():
        full = f"down_proj.{name}"
        found[name] = TensorInfo(full, tuple(tensor.shape), TYPES[tensor.dtype], tensor.nbytes, 0, 0, full)
    return StoredPart("down_proj", "down_proj", shape, found)


def declared(form: str = "mxfp4", **changes: Any) -> dict[str, Any]:
    return {"quant_method": "fp_quant", "forward_dtype": form, "hadamard_group_size": SIZE, **changes}


@pytest.mark.parametrize("form", ["mxfp4", "nvfp4", "simulated"])
@pytest.mark.parametrize("padded", [False, True])
def test_products_are_those_of_rotated_inputs(form: str, padded: bool) -> None:
    torch.manual_seed(0)
    tensors, matrix = packed(torch.randn(SHAPE), "mxfp4" if form == "simulated" else form, padded)
    if form == "simulated":
        kept = {name: tensors[name] for name in ("forward_hadamard_matrix", "act_global_scale")}
        tensors = {"dqweight": matrix.contiguous(), **kept}
    part = part_of(tensors)
    own = declared("mxfp4" if form == "simulated" else form)
    layout = fp_quant_layouts(read_declaration(own), Run("none", "float32", ()))(part)
    assert layout is not None
    plan = layout.plan(part)
    assert isinstance(plan, PartPlan)
    weight = layout.pack(part, tensors)
    assert weight.nbytes == plan.nbytes
    x, out = torch.randn(5, 96), torch.empty(5, 48)
    KernelSet([]).linear(weight, activation="none")(x, out)
    turned = (x.view(5, -1, SIZE) @ rotation().float()).view(5, 96)
    torch.testing.assert_close(out, turned @ matrix.T, rtol=1e-5, atol=1e-5)


def test_models_have_the_numbers_of_plain_ones(tmp_path: Path) -> None:
    """The plain twin has the matrix that the rotation turns the packed one back to."""
    plain = save_checkpoint(tmp_path / "model", intermediate_size=96)

    def pack(module: str, w: Tensor) -> tuple[dict[str, Tensor], Tensor] | None:
        if not module.endswith("down_proj"):
            return None
        tensors, matrix = packed(w, "mxfp4")
        back = (matrix.view(len(w), -1, SIZE) @ rotation().float().T).view(w.shape)
        return tensors, back

    assert_same_numbers(*write_twins(plain, tmp_path, declared(), pack))


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (declared("mxfp8"), "forward_dtype: needs mxfp4 or nvfp4, got mxfp8"),
        (declared(store_master_weights=True), "save the model again with store_master_weights=False"),
        (declared(hadamard_group_size=256), "needs a number from 1 to 128, got 256"),
        (declared(magic=1), "magic: needs a known key"),
    ],
)
def test_declarations_that_are_not_served_are_told(found: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        read_declaration(found)


@pytest.mark.parametrize(
    ("changes", "shape", "sentence"),
    [
        ({}, (48, 80), "its 80 inputs are not a multiple of 32, which are rotated together"),
        ({"scales": torch.zeros(48, 2, dtype=torch.uint8)}, SHAPE, r"scales' has shape \[48, 2\]"),
        ({"forward_hadamard_matrix": torch.ones(16, 16)}, SHAPE, r"matrix' has shape \[16, 16\]"),
    ],
)
def test_tensors_that_do_not_fit_are_told(changes: dict[str, Tensor], shape: tuple[int, int], sentence: str) -> None:
    tensors = {**packed(torch.randn(SHAPE), "mxfp4")[0], **changes}
    part = part_of(tensors, shape)
    layout = fp_quant_layouts(read_declaration(declared()), Run("none", "float32", ()))(part)
    assert layout is not None
    plan = layout.plan(part)
    assert isinstance(plan, Unsupported)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(plan.reason)


def test_damage_is_told() -> None:
    tensors, _ = packed(torch.randn(SHAPE), "mxfp4")
    part = part_of(tensors)
    layout = fp_quant_layouts(read_declaration(declared()), Run("none", "float32", ()))(part)
    assert layout is not None
    with pytest.raises(ValueError, match=r"'weight_global_scale' of 0\.0; expected a positive number"):
        layout.pack(part, {**tensors, "weight_global_scale": torch.zeros(1)})
    with pytest.raises(ValueError, match="'forward_hadamard_matrix' that is not finite"):
        layout.pack(part, {**tensors, "forward_hadamard_matrix": torch.full((32, 32), torch.nan)})

"""Checkpoints of torchao: formats, memory, and bad input."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from core.api.errors import CheckpointError
from core.api.specs import LayerSpec, PartPlan, Unsupported
from core.plugin.hookspecs import LoadContext
from core_quantization.declared.refusal import Refusal
from core_quantization.torchao import manifest as hooks
from core_quantization.torchao.declaration import check_declaration
from core_runtime.specs.checkpoint import CheckpointFacts
from tests.quantization.packed import KEPT, Packed, changed

HERE = KEPT / "torchao"
INTEGERS = HERE / "integers"
FLOATS = HERE / "floats"
Q_PROJ = "model.layers.0.self_attn.q_proj"
Q = LayerSpec(Q_PROJ, "linear", (64, 64))


def test_each_module_is_held_as_its_header_says() -> None:
    held = {}
    for path in (INTEGERS, FLOATS):
        for name, (_, plan) in Packed(path, hooks, dtype="bfloat16").plans().items():
            if isinstance(plan, PartPlan):
                held[f"{path.name}: {name.removeprefix('model.layers.')}"] = plan.format
    assert held["integers: 0.self_attn.q_proj"] == "int8_channel"
    assert held["integers: 0.self_attn.v_proj"] == "int8_groups"
    assert held["integers: 0.mlp.down_proj"] == "int4_groups"
    assert held["integers: model.embed_tokens"] == "int8_groups"
    assert held["floats: 0.self_attn.v_proj"] == "fp8_e5m2"
    assert held["floats: 0.mlp.down_proj"] == held["floats: 1.self_attn.q_proj"] == "mxfp4"
    assert held["floats: 1.mlp.down_proj"] == "nvfp4"


def test_packed_integers_take_no_more_memory_than_the_file() -> None:
    packed = Packed(INTEGERS, hooks)
    weights = packed.weights()
    for module in ("model.layers.1.mlp.gate_proj", "model.layers.1.mlp.down_proj"):
        stored = [
            packed.manifest.tensors[f"{module}._weight_{part}"].nbytes for part in ("qdata", "scale", "zero_point")
        ]
        assert weights[module].nbytes == sum(stored)


def test_only_files_without_code_and_known_keys_are_opened() -> None:
    found = json.loads((INTEGERS / "config.json").read_text())["quantization_config"]
    facts = CheckpointFacts("x", "safetensors", "llama", quantization="torchao", declaration=found)
    assert hooks.core_supports(facts) == []
    pickled = msgspec.structs.replace(facts, format="pt")
    assert "save the checkpoint again with safe_serialization=True" in str(hooks.core_supports(pickled)[0])
    with pytest.raises(Refusal, match="rotation: needs a known key"):
        check_declaration({**found, "rotation": "spin"})


def plan_of(header: str | None) -> str:
    """Why a matrix is refused, of which a file's header says this."""
    manifest = Packed(INTEGERS, hooks).manifest
    metadata = {**manifest.metadata, f"{Q_PROJ}.weight": header}
    if header is None:
        del metadata[f"{Q_PROJ}.weight"]
    context = LoadContext(manifest=msgspec.structs.replace(manifest, metadata=metadata), dtype="float32")
    plan = hooks.core_load(context).plan(Q)
    assert isinstance(plan, Unsupported)
    return plan.reason


def header(kind: str = "Int8Tensor", tensors: tuple[str, ...] = ("qdata", "scale"), **attributes: Any) -> str:
    data = {"block_size": [1, 64], **attributes}
    return json.dumps({"_type": kind, "_data": data, "_tensor_data_names": tensors})


WORD = {"_type": "torch.dtype", "_data": "int9"}


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (
            None,
            "do not describe 'model.layers.0.self_attn.q_proj.weight', though it is packed; save the checkpoint again",
        ),
        ("{", "is not understood; the file is damaged"),
        ("[" * 5000, "is not understood"),
        ('{"_type": "Int8Tensor"}', "has no _data or _tensor_data_names"),
        (header("Int4TilePackedTo4dTensor"), "lie in tiles of one kind of chip; quantize the model again"),
        (header("NF4Tensor"), "is a NF4Tensor of torchao; expected one of Float8Tensor, Int4Tensor"),
        (header(tensors=("qdata", "scale", "act_pre_scale")), "inputs are scaled before the product"),
        (header(tensors=("qdata", "scale", "outliers")), "a tensor 'outliers' that is not known"),
        (header(rotation=1), "with 'rotation', which is not known"),
        (header(block_size=[8, 64]), r"share scales in blocks of \[8, 64\]; expected 1 row"),
        (header(block_size=[1, 48]), r"_weight_scale' has shape \[64, 1\].* needs \[64, 2\]"),
        (header("IntxUnpackedToInt8Tensor", target_dtype=WORD), "integers of type int9; expected int1 to int8"),
        (header("Float8Tensor"), "_weight_qdata' has type I8"),
        (header("Int4Tensor"), r"_weight_qdata' has shape \[64, 64\].* needs \[64, 32\]"),
        (header("NVFP4Tensor", block_size=16), "elements of type float4_e2m1fn_x2 in a tensor of type I8"),
        (header("MXTensor", block_size=[1, 32]), r"block_size \[1, 32\]; expected a number of inputs"),
    ],
)
def test_headers_that_are_not_served_are_told(written: str | None, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(plan_of(written))


@pytest.mark.parametrize(
    ("module", "suffix", "tensor", "sentence"),
    [
        (Q_PROJ, "scale", torch.full((64, 1), torch.inf), "not finite"),
        (Q_PROJ, "zero_point", torch.ones(64, 1, dtype=torch.int8), "has zero points other than 0"),
        (
            "model.layers.0.mlp.up_proj",
            "qdata",
            torch.full((96, 64), 8, dtype=torch.int8),
            "integers from 8 to 8, but those of 4 bits are from -8 to 7",
        ),
    ],
)
def test_values_that_lie_are_told(module: str, suffix: str, tensor: Tensor, sentence: str, tmp_path: Path) -> None:
    name = f"{module}._weight_{suffix}".replace(".", "__")
    with pytest.raises(CheckpointError, match=sentence):
        Packed(changed(INTEGERS, tmp_path / "copy", **{name: tensor}), hooks).weights()


def test_zero_points_may_be_floats(tmp_path: Path) -> None:
    """As those of stretched integers, which have no zero: the middle of the range lies between two of them."""
    name = "model.layers.0.mlp.up_proj"
    zero = torch.full((96, 2), -0.5, dtype=torch.bfloat16)
    path = changed(INTEGERS, tmp_path / "copy", **{f"{name}._weight_zero_point".replace(".", "__"): zero})
    packed = Packed(path, hooks)
    plan = packed.plans()[name][1]
    read = dict(packed.iter(packed.manifest, plan.reads))
    scale = read[f"{name}._weight_scale"].float().repeat_interleave(32, 1)
    expected = (read[f"{name}._weight_qdata"].float() + 0.5) * scale
    assert torch.equal(packed.weights()[name].dequantize(), expected)


def test_a_missing_tensor_is_told(tmp_path: Path) -> None:
    name = f"{Q_PROJ}._weight_scale".replace(".", "__")
    plan = Packed(changed(INTEGERS, tmp_path / "copy", **{name: None}), hooks).method.plan(Q)
    assert isinstance(plan, Unsupported) and "has no tensor '_weight_scale'" in plan.reason

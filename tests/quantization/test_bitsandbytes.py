"""Checkpoints of bitsandbytes: blocks, plain checkpoints, and bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.api.errors import CheckpointError, UserError
from core.api.specs import LayerSpec, PartPlan, Unsupported
from core.plugin.hookspecs import LoadContext
from core_quantization.bitsandbytes import manifest as hooks
from core_quantization.online.manifest import OnlineArguments
from core_quantization.online.method import OnlineMethod
from core_runtime.specs.checkpoint import CheckpointFacts
from tests.quantization.packed import KEPT, Packed, changed

HERE = KEPT / "bitsandbytes"
Q_PROJ = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.0.mlp.down_proj"
STATE = f"{Q_PROJ}.weight.quant_state.bitsandbytes__fp4"


def test_blocks_that_cross_rows_are_cut() -> None:
    """96 inputs and blocks of 64 have 32 in common."""
    packed = Packed(HERE / "nf4", hooks, dtype="bfloat16")
    sizes = {}
    for name in (Q_PROJ, DOWN):
        sizes[name] = packed.weights()[name].attributes()["block_size"]
    assert sizes == {Q_PROJ: 64, DOWN: 32}
    plan = packed.method.plan(LayerSpec(Q_PROJ, "linear", (512, 8)))
    assert isinstance(plan, Unsupported) and "only 8 inputs in common" in plan.reason
    plan = packed.method.plan(LayerSpec(Q_PROJ, "linear", (64, 64)))
    assert isinstance(plan, PartPlan) and (plan.format, plan.activation) == ("nf4", "bf16")


def test_a_plain_checkpoint_is_rounded_to_nf4() -> None:
    facts = CheckpointFacts("x", "safetensors", "llama")
    assert hooks.core_supports(facts) == []
    method = hooks.core_load(LoadContext(facts=facts))
    assert isinstance(method, OnlineMethod) and method.linear.name == "nf4"


def state_with(**changes: Any) -> torch.Tensor:
    """The JSON of the nested checkpoint's first matrix, changed."""
    packed = Packed(HERE / "nested", hooks)
    stored = dict(packed.iter(packed.manifest, [STATE]))[STATE]
    found = {**json.loads(bytes(stored.tolist())), **changes}
    return torch.tensor(list(json.dumps(found).encode()), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("suffix", "tensor", "sentence"),
    [
        ("quant_state.bitsandbytes__fp4", state_with(shape=[64, 32]), r"quant_state whose shape is \[64, 32\]"),
        ("quant_state.bitsandbytes__fp4", state_with(blocksize=128), "quant_state whose blocksize is 128"),
        ("quant_state.bitsandbytes__fp4", state_with(nested_offset=None), "without nested_offset"),
        ("quant_state.bitsandbytes__fp4", torch.zeros(4, dtype=torch.uint8), "not valid JSON"),
        ("quant_map", torch.zeros(16), "not the table of fp4"),
        ("nested_absmax", torch.full((1,), torch.inf), "not finite"),
    ],
)
def test_values_that_lie_are_told(suffix: str, tensor: torch.Tensor, sentence: str, tmp_path: Path) -> None:
    copy = _changed(tmp_path / "copy", f"{Q_PROJ}.weight.{suffix}", tensor)
    with pytest.raises(CheckpointError, match=rf"q_proj'.*{sentence}"):
        Packed(copy, hooks).weights()


def test_tensors_that_lie_are_told(tmp_path: Path) -> None:
    copy = _changed(tmp_path / "copy", f"{Q_PROJ}.weight.absmax", torch.zeros(63, dtype=torch.uint8))
    plan = Packed(copy, hooks).method.plan(LayerSpec(Q_PROJ, "linear", (64, 64)))
    assert isinstance(plan, Unsupported) and "no size of blocks" in plan.reason


def test_tiles_of_gpus_are_refused(tmp_path: Path) -> None:
    source = HERE / "int8"
    name = f"{Q_PROJ}.weight_format".replace(".", "__")
    copy = changed(source, tmp_path / "copy", **{name: torch.tensor(3, dtype=torch.uint8)})
    with pytest.raises(CheckpointError, match=r"tiles of one kind of GPU \(weight_format 3\)"):
        Packed(copy, hooks).weights()


def test_declarations_and_arguments_that_are_not_served_are_refused() -> None:
    declaration = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    for key, value in (("bnb_4bit_quant_storage", "bfloat16"), ("load_in_2bit", True), ("load_in_4bit", False)):
        facts = CheckpointFacts(
            "x", "safetensors", "llama", quantization="bitsandbytes", declaration={**declaration, key: value}
        )
        (reason,) = hooks.core_supports(facts)
        assert reason.code == key
    manifest = Packed(HERE / "nf4", hooks).manifest
    with pytest.raises(UserError, match="head int8: the checkpoint is packed already"):
        hooks.core_load(LoadContext(manifest=manifest, arguments=OnlineArguments(head="int8")))


def _changed(directory: Path, name: str, tensor: torch.Tensor) -> Path:
    """A copy of the nested checkpoint; its names hold two underscores themselves."""

    copy = changed(HERE / "nested", directory)
    state = load_file(copy / "model.safetensors")
    state[name] = tensor
    save_file(state, copy / "model.safetensors", metadata={"format": "pt"})
    return copy

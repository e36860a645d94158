"""Checkpoints of GPTQ: fused modules, memory, and bad input."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.api.errors import CheckpointError
from core.api.specs import DensePlan, LayerSpec, PartPlan, Unsupported
from core_quantization.declared.refusal import Refusal
from core_quantization.gptq import manifest as hooks
from core_quantization.gptq.declaration import Declaration
from core_runtime.specs.checkpoint import CheckpointFacts
from tests.quantization.packed import KEPT, Packed, changed, check_tokens

HERE = KEPT / "gptq"
ORDER = HERE / "order"
Q_PROJ = "model.layers.0.self_attn.q_proj"


def test_fused_modules_are_those_of_a_reference(tmp_path: Path) -> None:
    """AutoRound wrote this checkpoint; no tool opens it today, so the reference is here: bytes of words, 128 is zero."""
    packed = Packed(HERE / "phi3", hooks)
    stored = load_file(HERE / "phi3" / "model.safetensors")
    weights = packed.weights()
    assert "model.layers.0.self_attn.qkv_proj" in weights and "model.layers.1.mlp.gate_up_proj" in weights
    for name, weight in weights.items():
        octets = stored[f"{name}.qweight"].T.contiguous().view(torch.uint8)
        by_input = stored[f"{name}.scales"].T.float().repeat_interleave(32, dim=1)
        assert torch.equal(weight.dequantize(), (octets.float() - 128) * by_input), name
    check_tokens(packed, tmp_path / "plain")


def test_each_module_is_held_as_its_declaration_says() -> None:
    packed = Packed(ORDER, hooks, dtype="bfloat16")
    plans = {name: plan for name, (_, plan) in packed.plans().items()}
    assert isinstance(plans["model.layers.0.mlp.up_proj"], DensePlan)
    assert isinstance(plans["model.embed_tokens"], DensePlan)
    query = plans[Q_PROJ]
    assert isinstance(query, PartPlan)
    assert (query.format, query.activation) == ("int4_groups", "int8")
    back_to_8 = plans["model.layers.1.mlp.down_proj"]
    assert isinstance(back_to_8, PartPlan) and back_to_8.format == "int8_groups"
    weights = packed.weights()
    own_order = weights[Q_PROJ].attributes()["order"]
    assert own_order is not None and own_order == weights["model.layers.0.self_attn.k_proj"].attributes()["order"]


@pytest.mark.parametrize(("name", "ratio"), [("order", 1.05), ("three_bits", 1.05), ("two_bits", 1.08)])
def test_bytes_in_memory_are_near_those_of_the_file(name: str, ratio: float) -> None:
    """Zero points are bytes, which counts beside 2 bits in groups of 32.

    Orders of inputs are shared by all rows, of which tiny matrices have few.
    """
    packed = Packed(HERE / name, hooks)
    held = stored = 0
    for plan_name, weight in packed.weights().items():
        order = weight.attributes().get("order")
        held += weight.nbytes - (0 if order is None else order.nbytes)
        for suffix in ("qweight", "qzeros", "scales"):
            stored += packed.manifest.tensors[f"{plan_name}.{suffix}"].nbytes
    assert held / stored < ratio


def test_a_bias_of_zeros_that_nobody_needs_is_read_and_dropped(tmp_path: Path) -> None:
    """As old packers wrote one for every module."""
    name = f"{Q_PROJ}.bias".replace(".", "__")
    packed = Packed(changed(ORDER, tmp_path / "zeros", **{name: torch.zeros(64)}), hooks)
    assert f"{Q_PROJ}.bias" in packed.plans()[Q_PROJ][1].reads
    assert torch.equal(packed.weights()[Q_PROJ].dequantize(), Packed(ORDER, hooks).weights()[Q_PROJ].dequantize())
    needed = Packed(changed(ORDER, tmp_path / "ones", **{name: torch.ones(64)}), hooks)
    with pytest.raises(CheckpointError, match=r"q_proj' has a bias that is not zero"):
        needed.weights()


def test_zero_points_borrow_from_their_neighbours(tmp_path: Path) -> None:
    """A packer takes one off each word: a zero point of 0 in front of one of 8 is stored as 15 and 6."""
    stored = load_file(ORDER / "model.safetensors")[f"{Q_PROJ}.qzeros"].clone()
    stored[:, 0] = 0x77777780 - 0x11111111
    name = f"{Q_PROJ}.qzeros".replace(".", "__")
    weight = Packed(changed(ORDER, tmp_path / "copy", **{name: stored}), hooks).weights()[Q_PROJ]
    assert weight.tensors()["zeros"][:8, 0].tolist() == [0, 8, 7, 7, 7, 7, 7, 7]


def declared(**changes: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False, **changes}


@pytest.mark.parametrize(
    ("declaration", "sentence"),
    [
        (declared(bits=5), "bits: needs 2, 3, 4 or 8, got 5"),
        (declared(bits=None), "bits: needs a whole number"),
        (declared(group_size=0), "group_size: needs -1 or a number from 1, got 0"),
        (declared(checkpoint_format="exl2"), "checkpoint_format: needs gptq or gptq_v2 or marlin or .*serve the GPTQ"),
        (declared(pack_dtype="int64"), "pack_dtype: needs int32, got int64"),
        (declared(desc_acts=True), "desc_acts: needs a known key.*Did you mean 'desc_act'"),
        (declared(rotation="hadamard"), "rotation: needs none, got hadamard"),
        (declared(dynamic={"+:[": {}}), "a regular expression"),
        (declared(dynamic={"+:.*": {"bits": 7}}), r"dynamic\.\+:\.\*\.bits: needs 2, 3, 4 or 8, got 7"),
        (declared(dynamic={"+:.*": {"bit": 8}}), r"bit: needs a known key"),
    ],
)
def test_declarations_that_are_not_served_are_refused_by_key(declaration: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        Declaration.read(declaration)
    facts = CheckpointFacts("x", "safetensors", "llama", quantization="gptq", declaration=declaration)
    assert len(hooks.core_supports(facts)) == 1


def test_older_declarations_and_overrides_are_read() -> None:
    old = {
        "bits": 4,
        "group_size": 128,
        "damp_percent": 0.01,
        "desc_act": True,
        "static_groups": True,
        "quant_method": "gptq",
    }
    scheme = Declaration.read(old).scheme
    assert scheme.sym and not scheme.desc_act, "static groups lie together"
    dynamic = {r"-:.*\.0\.": {}, r"+:.*down": {"bits": 8}, r".*up": {"group_size": -1}}
    found = Declaration.read(declared(dynamic=dynamic, checkpoint_format="gptq_v2"))
    assert not found.minus_one
    assert found.scheme_of("layers.0.down") is None
    bits = [found.scheme_of(f"layers.1.{name}").bits for name in ("down", "up", "gate")]
    assert bits == [8, 4, 4] and found.scheme_of("layers.1.up").group_size == -1


def scales(edit: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    tensor = load_file(ORDER / "model.safetensors")[f"{Q_PROJ}.scales"].clone()
    edited = edit(tensor)
    return tensor if edited is None else edited


@pytest.mark.parametrize(
    ("suffix", "tensor", "sentence"),
    [
        ("scales", scales(lambda t: t.fill_(torch.nan)), "not finite"),
        ("g_idx", torch.zeros(64, dtype=torch.int32), r"not made of 32 inputs each"),
    ],
)
def test_values_that_lie_are_told(suffix: str, tensor: torch.Tensor, sentence: str, tmp_path: Path) -> None:
    name = f"{Q_PROJ}.{suffix}".replace(".", "__")
    with pytest.raises(CheckpointError, match=rf"q_proj'.*{sentence}"):
        Packed(changed(ORDER, tmp_path / "copy", **{name: tensor}), hooks).weights()


@pytest.mark.parametrize(
    ("suffix", "tensor", "sentence"),
    [
        ("scales", torch.zeros(3, 64, dtype=torch.float16), r"scales' has shape \[3, 64\].*needs \[2, 64\]"),
        ("scales", torch.zeros(2, 64, dtype=torch.int32), "has type I32"),
        ("g_idx", None, "has no tensor 'g_idx'"),
        ("qweight", torch.zeros(8, 32, dtype=torch.int32), r"needs \[8, 64\]"),
    ],
)
def test_tensors_that_lie_are_told(suffix: str, tensor: torch.Tensor | None, sentence: str, tmp_path: Path) -> None:
    name = f"{Q_PROJ}.{suffix}".replace(".", "__")
    packed = Packed(changed(ORDER, tmp_path / "copy", **{name: tensor}), hooks)
    plan = packed.method.plan(LayerSpec(Q_PROJ, "linear", (64, 64)))
    assert isinstance(plan, Unsupported)
    assert re.search(sentence, plan.reason), plan.reason


def test_declarations_that_contradict_the_tensors_are_told(tmp_path: Path) -> None:
    def symmetric(config: dict[str, Any]) -> None:
        config["sym"] = True

    def in_order(config: dict[str, Any]) -> None:
        config["desc_act"] = False

    def other_groups(config: dict[str, Any]) -> None:
        config["group_size"] = 48

    with pytest.raises(CheckpointError, match=r"'sym'.* zero point of \d+ where 8 is the middle"):
        Packed(changed(ORDER, tmp_path / "sym", symmetric), hooks).weights()
    with pytest.raises(CheckpointError, match="g_idx that mixes groups"):
        Packed(changed(ORDER, tmp_path / "order", in_order), hooks).weights()
    plan = Packed(changed(ORDER, tmp_path / "groups", other_groups), hooks).method.plan(
        LayerSpec(Q_PROJ, "linear", (64, 64))
    )
    assert isinstance(plan, Unsupported) and "64 inputs are not a multiple of 48" in plan.reason

"""Checkpoints of AWQ and AutoRound: words of other versions, memory, and bad input."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.api.specs import DensePlan, LayerSpec, PartPlan, Unsupported
from core_quantization.auto_round import manifest as auto_round
from core_quantization.auto_round.declaration import Declaration as AutoRoundDeclaration
from core_quantization.awq import manifest as awq
from core_quantization.awq.declaration import Declaration
from core_quantization.declared.refusal import Refusal
from core_runtime.specs.checkpoint import CheckpointFacts
from tests.quantization.packed import KEPT, Packed, changed

AWQ = KEPT / "awq"
AUTO_ROUND = KEPT / "auto-round"
Q_PROJ = "model.layers.0.self_attn.q_proj"
QUERY = LayerSpec(Q_PROJ, "linear", (64, 64))


def test_modules_of_autoround_have_schemes_of_their_own() -> None:
    plans = {name: plan for name, (_, plan) in Packed(AUTO_ROUND / "mixed", auto_round).plans().items()}
    assert isinstance(plans["model.layers.0.mlp.up_proj"], DensePlan)
    formats = {}
    for name in ("model.layers.1.mlp.down_proj", Q_PROJ):
        plan = plans[name]
        assert isinstance(plan, PartPlan)
        formats[name] = plan.format
    assert formats == {"model.layers.1.mlp.down_proj": "int8_groups", Q_PROJ: "int4_groups"}


def test_bytes_in_memory_are_near_those_of_the_file() -> None:
    packed = Packed(AWQ / "gemm", awq)
    held = stored = 0
    for name, weight in packed.weights().items():
        held += weight.nbytes
        for suffix in ("qweight", "qzeros", "scales"):
            stored += packed.manifest.tensors[f"{name}.{suffix}"].nbytes
    assert held / stored < 1.05


def in_rows(words: torch.Tensor) -> torch.Tensor:
    """A reference packer of version gemv: integers [N, K] in words along K, in order."""
    shifts = torch.arange(0, 32, 4)
    fields = words.long().unflatten(1, (-1, 8)) << shifts
    return fields.sum(-1).to(torch.int32)


def test_words_of_version_gemv(tmp_path: Path) -> None:
    """The tool has this version for GPUs only: the reference packer above repacks a matrix of version gemm."""
    gemm = Packed(AWQ / "gemm", awq)
    weight = gemm.weights()[Q_PROJ]
    values = weight.unpacked()  # type: ignore[attr-defined]
    tensors = weight.tensors()
    zeros = torch.zeros(64, 32, dtype=torch.uint8)
    zeros[:, :2] = tensors["zeros"]
    scales = torch.zeros(64, 32, dtype=torch.float16)
    scales[:, :2] = tensors["scale"]
    stored = {"qweight": in_rows(values), "qzeros": in_rows(zeros), "scales": scales}
    named = {f"{Q_PROJ}.{suffix}".replace(".", "__"): tensor for suffix, tensor in stored.items()}

    def gemv(config: dict[str, Any]) -> None:
        config["version"] = "GEMV"

    packed = Packed(changed(AWQ / "gemm", tmp_path / "copy", gemv, **named), awq)
    plan = packed.method.plan(QUERY)
    assert isinstance(plan, PartPlan)
    found = packed.method.pack(QUERY, dict(packed.iter(packed.manifest, plan.reads)))
    assert torch.equal(found.dequantize(), weight.dequantize())
    assert found.nbytes == plan.nbytes


def test_without_zero_points_the_middle_is_zero(tmp_path: Path) -> None:
    name = f"{Q_PROJ}.qzeros".replace(".", "__")
    packed = Packed(changed(AWQ / "gemm", tmp_path / "copy", **{name: None}), awq)
    assert packed.weights()[Q_PROJ].attributes()["zero"] == 8


def test_tensors_that_lie_are_told(tmp_path: Path) -> None:
    name = f"{Q_PROJ}.qweight".replace(".", "__")
    swapped = load_file(AWQ / "gemm" / "model.safetensors")[f"{Q_PROJ}.qweight"].T.contiguous()
    plan = Packed(changed(AWQ / "gemm", tmp_path / "copy", **{name: swapped}), awq).method.plan(QUERY)
    assert isinstance(plan, Unsupported) and "needs [64, 8] for 64 outputs" in plan.reason
    plan = Packed(AWQ / "gemm", awq).method.plan(LayerSpec(Q_PROJ, "linear", (64, 48)))
    assert isinstance(plan, Unsupported) and "48 inputs are not a multiple of 32" in plan.reason


def declared(**changes: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM", **changes}


@pytest.mark.parametrize(
    ("declaration", "sentence"),
    [
        (declared(w_bit=3), "w_bit: needs 4, got 3"),
        (declared(bits=8), "bits: needs 4, got 8"),
        (declared(q_group_size="all"), "q_group_size: needs a whole number"),
        (declared(version="marlin"), "version: needs gemm or gemv, got marlin .*save the checkpoint again"),
        (declared(zero_points=True), "zero_points: needs a known key.*Did you mean 'zero_point'"),
    ],
)
def test_declarations_of_awq_that_are_not_served_are_refused_by_key(declaration: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        Declaration.read(declaration)
    facts = CheckpointFacts("x", "safetensors", "llama", quantization="awq", declaration=declaration)
    assert len(awq.core_supports(facts)) == 1


def test_older_declarations_of_awq_are_read() -> None:
    assert Declaration.read(declared()) == Declaration(128, "gemm")
    assert Declaration.read({"quant_method": "awq", "bits": 4, "group_size": -1, "version": "gemv"}).version == "gemv"


def rounded(**changes: Any) -> dict[str, Any]:
    return {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True, "data_type": "int", **changes}


@pytest.mark.parametrize(
    ("declaration", "sentence"),
    [
        (rounded(packing_format="auto_round:fp8"), "packing_format: needs auto_round, .*got auto_round:fp8"),
        (rounded(data_type="mx_fp"), "data_type: needs int, got mx_fp .*llm_compressor"),
        (rounded(act_bits=8), "act_bits: needs 16, got 8"),
        (rounded(bits=6), "bits: needs 2, 3, 4 or 8, got 6"),
        (rounded(bits=8, packing_format="auto_round:auto_awq"), "needs 4 in packing_format auto_round:auto_awq, got 8"),
        (rounded(extra_config={"lm_head": {"bits": 5}}), r"extra_config\.lm_head\.bits: needs 2, 3, 4 or 8, got 5"),
        (rounded(extra_config={"lm_head": {"bit": 5}}), r"extra_config\.lm_head\.bit: needs a known key"),
        (rounded(extra_config={"*": {"bits": 8}}), "a module's name or a regular expression"),
    ],
)
def test_declarations_of_autoround_that_are_not_served_are_refused_by_key(
    declaration: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Refusal, match=sentence):
        AutoRoundDeclaration.read(declaration)


def test_exact_names_of_autoround_come_before_patterns() -> None:
    own = {".*mlp.*": {"bits": 8}, "layers.0.mlp.up": {"bits": 16}}
    found = AutoRoundDeclaration.read(rounded(extra_config=own))
    assert found.packing.minus_one, "without a packing format it is that of AutoGPTQ"
    assert found.scheme_of("layers.0.mlp.up") is None
    assert [found.scheme_of(name).bits for name in ("layers.1.mlp.up", "layers.1.attn.q")] == [8, 4]

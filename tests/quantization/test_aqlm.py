"""Checkpoints of AQLM: bad input. `test_kept` compares matrices and tokens with those of the tool."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from core.api.errors import CheckpointError
from core.api.specs import LayerSpec, PartPlan, Unsupported
from core_quantization.aqlm import manifest as hooks
from core_quantization.aqlm.declaration import read_declaration
from core_quantization.declared.refusal import Refusal
from core_runtime.specs.checkpoint import CheckpointFacts
from tests.quantization.packed import KEPT, Packed, changed

WORDS = KEPT / "aqlm" / "words"
Q_PROJ = "model.layers.0.self_attn.q_proj"
CODEBOOKS = (1, 1024, 1, 8)


def test_sizes_that_are_not_declared_are_those_of_the_tool() -> None:
    books = read_declaration({"quant_method": "aqlm"})
    assert (books.inputs, books.outputs, books.count, books.bits) == (8, 1, 1, 16)


def test_modules_are_held_plain_in_the_type_of_the_run() -> None:
    packed = Packed(WORDS, hooks, dtype="bfloat16")
    plans = {name: plan for name, (_, plan) in packed.plans().items() if isinstance(plan, PartPlan)}
    assert len(plans) == 14 and {plan.format for plan in plans.values()} == {"bfloat16"}


@pytest.mark.parametrize(
    ("declaration", "sentence"),
    [
        ({"nbits_per_codebook": 17}, "nbits_per_codebook: needs a number from 1 to 16, got 17"),
        ({"num_codebooks": 0}, "num_codebooks: needs a number from 1 to 32, got 0"),
        ({"in_group_size": "8"}, "in_group_size: needs a whole number, got '8'"),
        ({"out_group_size": 1 << 40}, "out_group_size: needs a number from 1 to 256"),
        ({"bits": 2}, "bits: needs a known key"),
    ],
)
def test_declarations_that_are_not_served_are_refused_by_key(declaration: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        read_declaration(declaration)
    facts = CheckpointFacts("x", "safetensors", "llama", quantization="aqlm", declaration=declaration)
    assert len(hooks.core_supports(facts)) == 1


@pytest.mark.parametrize(
    ("suffix", "tensor", "sentence"),
    [
        ("scales", None, "has no tensor 'scales'"),
        ("scales", torch.ones(32, 1, 1, 1, dtype=torch.float16), r"scales' has shape \[32, 1, 1, 1\]"),
        ("codes", torch.zeros(64, 8, 1, dtype=torch.int8), "codes' has type I8"),
        ("codes", torch.zeros(64, 8, 2, dtype=torch.int16), r"codes' has shape \[64, 8, 2\]"),
        ("codebooks", torch.zeros(1, 512, 1, 8, dtype=torch.float16), r"codebooks' has shape \[1, 512, 1, 8\]"),
        ("codebooks", torch.zeros(CODEBOOKS, dtype=torch.int16), "codebooks' has type I16"),
    ],
)
def test_tensors_that_lie_are_told(suffix: str, tensor: Tensor | None, sentence: str, tmp_path: Path) -> None:
    name = f"{Q_PROJ}.{suffix}".replace(".", "__")
    packed = Packed(changed(WORDS, tmp_path / "copy", **{name: tensor}), hooks)
    plan = packed.method.plan(LayerSpec(Q_PROJ, "linear", (64, 64)))
    assert isinstance(plan, Unsupported)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(plan.reason)


def test_vectors_that_do_not_divide_a_matrix_are_told() -> None:
    plan = Packed(WORDS, hooks).method.plan(LayerSpec(Q_PROJ, "linear", (64, 60)))
    assert isinstance(plan, Unsupported) and "64 outputs and 60 inputs, which vectors" in plan.reason


@pytest.mark.parametrize("suffix", ["codebooks", "scales"])
def test_values_that_are_not_finite_are_told(suffix: str, tmp_path: Path) -> None:
    shape = CODEBOOKS if suffix == "codebooks" else (64, 1, 1, 1)
    name = f"{Q_PROJ}.{suffix}".replace(".", "__")
    damaged = {name: torch.full(shape, torch.inf, dtype=torch.float16)}
    with pytest.raises(CheckpointError, match=f"q_proj'.*holds {suffix} that are not finite"):
        Packed(changed(WORDS, tmp_path / "copy", **damaged), hooks).weights()

"""Transforms beside the weights: by compressed-tensors' own forward pass, in any company, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from core.api.errors import CheckpointError, UserError
from core.api.sampling_params import SamplingParams
from core.api.specs import LayerSpec, Unsupported
from core_frontend.llm import LLM
from core_platforms.cpu.kernels import NativeKernels
from core_quantization.compressed import manifest as compressed
from core_quantization.compressed.transforms import read_transforms
from core_quantization.declared.refusal import Refusal
from core_runtime.layers.kernels import KernelSet
from core_runtime.weights.formats import CanonicalWeight, Dense
from core_runtime.weights.input_rotation import HadamardRotation, MatrixRotation, walsh
from core_runtime.weights.prepared_inputs import InputStep, PreparedInputs
from tests.quantization.packed import KEPT, PROMPT, Packed, changed

TRANSFORMS = KEPT / "compressed-tensors" / "transforms"


def matrix_of(size: int) -> torch.Tensor:
    """Hadamard's matrix in Sylvester's order, by Kronecker's product."""
    found = torch.ones(1, 1)
    while len(found) < size:
        found = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), found)
    return found


def test_logits_are_those_of_compressed_tensors() -> None:
    """Its own forward pass, with transforms of inputs and outputs, fast, stored and reordered, and rounded inputs."""
    told = json.loads((TRANSFORMS / "logits.json").read_text())
    expected = torch.tensor(told["logits"])
    found = Packed(TRANSFORMS, compressed, activation="declared").logits(told["ids"])
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_every_kind_is_in_the_checkpoint() -> None:
    weights = Packed(TRANSFORMS, compressed).weights()
    steps = [step for weight in weights.values() if isinstance(weight, PreparedInputs) for step in weight.steps]
    behind = [step for weight in weights.values() if isinstance(weight, PreparedInputs) for step in weight.behind]
    assert {type(step) for step in steps} == {HadamardRotation, MatrixRotation}
    assert any(isinstance(step, HadamardRotation) and step.order for step in steps)
    signed = [name for name, weight in weights.items() if _signs(weight)]
    assert len(signed) == 6, "modules share a matrix, which the file has once"
    assert behind and all(isinstance(step, HadamardRotation) for step in behind)


def _signs(weight: CanonicalWeight) -> bool:
    return isinstance(weight, PreparedInputs) and bool(getattr(weight.steps[0], "signs", b""))


def test_signs_are_those_of_rows() -> None:
    signs = torch.randint(0, 2, (64,)).mul(2).sub(1)
    x = torch.randint(-9, 9, (5, 64)).float()
    matrix = signs.unsqueeze(1) * matrix_of(64)
    for transposed, expected in ((False, x @ matrix), (True, x @ matrix.T)):
        step = HadamardRotation(64, 8.0, b"", signs.to(torch.int8).numpy().tobytes(), transposed)
        assert torch.equal(step(x), expected / 8.0)


@pytest.mark.parametrize("size", [1, 2, 64, 256])
def test_the_fast_transform_is_the_product_with_the_matrix(size: int) -> None:
    x = torch.randint(-9, 9, (5, size)).float()
    assert torch.equal(walsh(x), x @ matrix_of(size))


def test_an_order_moves_rows_and_columns() -> None:
    order = torch.randperm(32)
    x = torch.randint(-9, 9, (5, 64)).float()
    step = HadamardRotation(32, 4.0, order.numpy().tobytes())
    moved = matrix_of(32)[order][:, order]
    assert torch.equal(step(x), (x.view(5, 2, 32) @ moved / 4.0).flatten(1))


@pytest.mark.parametrize("kind", ["hadamard", "matrix"])
def test_a_row_has_the_same_bits_in_company(kind: str) -> None:
    torch.manual_seed(0)
    stored = torch.randn(32, 32).numpy().tobytes()
    step: InputStep = HadamardRotation(32, 32**0.5) if kind == "hadamard" else MatrixRotation(32, 2.0, stored)
    weight = PreparedInputs(Dense(torch.randn(64, 96)), (step,), (step,))
    kernel = KernelSet([NativeKernels(1)]).linear(weight, activation="none", bias=torch.randn(64))
    x = torch.randn(9, 96)
    out, alone, more = torch.empty(9, 64), torch.empty(1, 64), torch.ones(9, 64)
    kernel(x, out)
    kernel(x, more, accumulate=True)
    assert torch.equal(more, 1.0 + out)
    for row in range(9):
        kernel(x[row : row + 1], alone)
        assert torch.equal(alone[0], out[row])
    reference = KernelSet([]).linear(weight, activation="none")
    plain = torch.empty(9, 64)
    reference(x, plain)
    torch.testing.assert_close(plain, step(step(x) @ weight.weight.dequantize().T), rtol=1e-4, atol=1e-4)


def test_the_engine_serves_them() -> None:
    settings: dict[str, Any] = {"device": "cpu", "max_model_len": 64, "kv_cache_memory_bytes": 1 << 22}
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    with LLM(model=str(TRANSFORMS), dtype="float32", use_tqdm_on_load=False, **settings) as llm:
        found = llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)[0].outputs[0].token_ids
    logits = Packed(TRANSFORMS, compressed).logits([*PROMPT, *found])
    assert logits[len(PROMPT) - 1 : -1].argmax(-1).tolist() == found


def test_ranks_and_orders_take_whole_blocks() -> None:
    step = HadamardRotation(32, 1.0)
    weight = PreparedInputs(Dense(torch.randn(64, 64)), (step,), (step,))
    assert weight.columns(slice(0, 32)).shape == (64, 32) and weight.rows(slice(32, 64)).shape == (32, 64)
    with pytest.raises(ValueError, match="not whole groups"):
        weight.columns(slice(0, 16))
    with pytest.raises(UserError, match="outputs that a transform mixes cannot be taken apart or reordered"):
        weight.rows(torch.arange(63, -1, -1))


def scheme(*locations: str, **changes: Any) -> dict[str, Any]:
    steps = [{"targets": ["Linear"], "location": location} for location in locations]
    return {"config_groups": {"t": {"type": "hadamard", "apply": steps, **changes}}}


def test_queries_and_keys_are_rotated_together() -> None:
    """Their products are those of the plain ones, so nothing is done."""
    assert read_transforms(scheme("q_attn", "k_cache", head_dim=16)) == ()
    assert read_transforms(scheme("weight_input", "weight_output")) == ()
    with pytest.raises(Refusal, match="its scales are those of rotated keys; leave them out"):
        read_transforms(scheme("q_attn", "k_cache", head_dim=16), cache_scales=True)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (scheme("v_cache"), "location: needs weight_input or .*got v_cache"),
        (scheme("q_attn"), "needs an orthonormal matrix for both q_attn and k_cache"),
        (scheme("q_attn", "k_cache", type="random-matrix"), "got random-matrix at q_attn, k_cache"),
        (scheme("input", type="fourier"), "type: needs hadamard or random-hadamard or random-matrix, got fourier"),
        (scheme("input", precision="torch.bfloat16"), "precision: needs float32 or float64, got bfloat16"),
        (scheme("input", head_dim=0), "head_dim: needs a positive number"),
        (scheme("input", magic=1), "magic: needs a known key"),
        ({"config_groups": 7}, "needs an object with keys"),
    ],
)
def test_transforms_that_are_not_served_are_told(found: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        read_transforms(found)


@pytest.mark.parametrize(
    ("module", "changes", "tensors", "sentence"),
    [
        ("layers.0.self_attn.k_proj", {}, {"h_input.weight": None}, "has no tensor 'h_input.weight' beside"),
        ("layers.0.self_attn.k_proj", {}, {"h_input.weight": torch.ones(32, 32)}, r"shape \[32, 32\], .* \[64, 64\]"),
        ("layers.0.mlp.down_proj", {"R4": {"head_dim": 36}}, {}, "has blocks of 36, which do not divide 96"),
        ("layers.0.mlp.down_proj", {"R4": {"head_dim": 12}}, {}, "Hadamard's matrices here have a power of two"),
    ],
)
def test_modules_that_cannot_have_theirs_are_told(
    module: str, changes: dict[str, Any], tensors: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    def redeclare(declaration: dict[str, Any]) -> None:
        for name, own in changes.items():
            declaration["transform_config"]["config_groups"][name].update(own)

    named = {f"model.{module}.{name}".replace(".", "__"): tensor for name, tensor in tensors.items()}
    path = changed(TRANSFORMS, tmp_path / "copy", redeclare, **named)
    shape = (64, 96) if "down" in module else (32, 64)
    plan = Packed(path, compressed).method.plan(LayerSpec(f"model.{module}", "linear", shape))
    assert isinstance(plan, Unsupported)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(plan.reason)


@pytest.mark.parametrize(
    ("name", "tensor", "sentence"),
    [
        (
            "model.layers.0.mlp.down_proj.R4_input.weight",
            torch.eye(32),
            "is not Hadamard's matrix; the file is damaged",
        ),
        ("model.layers.0.self_attn.k_proj.h_input.weight", torch.full((64, 64), torch.inf), "is not finite"),
        ("model.layers.0.self_attn.k_proj.h_input.weight", torch.eye(64), "is not Hadamard's matrix with signs"),
        ("model.layers.1.self_attn.q_proj.p_input.perm", torch.zeros(64, dtype=torch.int64), "name each number once"),
    ],
)
def test_matrices_that_are_not_what_they_are_named_are_damage(
    name: str, tensor: torch.Tensor, sentence: str, tmp_path: Path
) -> None:
    packed = Packed(changed(TRANSFORMS, tmp_path / "copy", **{name.replace(".", "__"): tensor}), compressed)
    with pytest.raises(CheckpointError, match=sentence):
        packed.weights()

"""Inputs that are rounded as a checkpoint declares: by the tool's own numbers, in any company, and what is refused."""

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.api.errors import CheckpointError, UserError
from core.api.sampling_params import SamplingParams
from core.api.specs import LayerSpec, PartPlan, Unsupported
from core_frontend.llm import LLM
from core_platforms.cpu.kernels import NativeKernels
from core_platforms.cpu.native_linear import NativeLinear
from core_quantization.awq import manifest as awq
from core_quantization.compressed import manifest as compressed
from core_quantization.compressed.inputs import input_scheme
from core_quantization.declared.inputs import InputScheme
from core_quantization.declared.part import StoredPart
from core_quantization.declared.refusal import Refusal
from core_quantization.gptq import manifest as gptq
from core_quantization.modelopt import manifest as modelopt
from core_quantization.online.manifest import FP8, INT8
from core_quantization.quark import manifest as quark
from core_quantization.quark.inputs import input_scheme as quark_scheme
from core_quantization.scaled.inputs import BOUNDS, SCALES, declared_inputs
from core_runtime.layers.kernels import KernelSet
from core_runtime.weights.formats import Dense
from core_runtime.weights.input_rounding import InputRounding
from core_runtime.weights.prepared_inputs import PreparedInputs
from tests.quantization.inputs_grid import grid
from tests.quantization.packed import KEPT, PROMPT, Packed, changed, digest

INPUTS = KEPT / "compressed-tensors" / "inputs"
O_PROJ = "model.layers.0.self_attn.o_proj"
Q_PROJ = "model.layers.0.self_attn.q_proj"
QUARK = json.loads((KEPT / "quark" / "inputs.json").read_text())


def test_logits_are_those_of_compressed_tensors() -> None:
    """Its own forward pass, with static, token, group, nvfp4 and mx inputs in one model each."""
    told = json.loads((INPUTS / "logits.json").read_text())
    expected = torch.tensor(told["logits"])
    found = Packed(INPUTS, compressed, activation="declared").logits(told["ids"])
    unrounded = Packed(INPUTS, compressed).logits(told["ids"])
    largest = expected.abs().max()
    assert (found - expected).abs().max() <= 1e-5 * largest
    assert (unrounded - expected).abs().max() > 1e-2 * largest  # the default stays


@pytest.mark.parametrize("case", QUARK)
def test_groups_are_rounded_as_quark_does(case: str) -> None:
    numbers, mode = case.split("/")
    rule: Any = mode
    assert digest(InputRounding(numbers, rule, 32)(grid()) + 0.0) == QUARK[case]


def test_a_bound_cuts_off_as_fbgemm_does() -> None:
    """The formula of `quantize_fp8_per_row` in FBGEMM, in steps of float32."""
    x = grid()
    largest = x.abs().amax(1, keepdim=True).clamp(1e-12, 3.0)
    factor = 448.0 / largest
    codes = (x * factor).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(InputRounding("fp8_e4m3", "inverse", bound=3.0)(x), codes.float() * (1.0 / factor))
    assert x.abs().max() > 3.0 and InputRounding("fp8_e4m3", "inverse", bound=3.0)(x).abs().max() <= 3.0


def test_scales_named_ue8m0_are_the_next_power_of_two() -> None:
    x = grid()
    largest = x.unflatten(-1, (-1, 128)).abs().amax(-1, keepdim=True)
    exponent = torch.tensor([math.ceil(math.log2(m / 448)) if m else 0 for m in largest.flatten().tolist()])
    scale = (2.0 ** exponent.double()).float().view_as(largest)
    expected = (x.unflatten(-1, (-1, 128)) / scale).to(torch.float8_e4m3fn).float() * scale
    assert torch.equal(InputRounding("fp8_e4m3", "quotient", 128)(x), expected.flatten(-2))


@pytest.mark.parametrize(
    ("path", "hooks", "steps"),
    [
        ("fp8/blocks", FP8, InputRounding("fp8_e4m3", "divide", 16)),
        ("fp8/exponents", FP8, InputRounding("fp8_e4m3", "quotient", 32)),
        ("modelopt/fp8", modelopt, "input_scale"),
        ("modelopt/fp8_rows", modelopt, InputRounding("fp8_e4m3", "divide")),
        ("modelopt/mxfp4", modelopt, InputRounding("fp4", "quotient", 32)),
        ("modelopt/mxfp8", modelopt, InputRounding("fp8_e4m3", "quotient", 32)),
        ("modelopt/nvfp4_of_32", modelopt, "input_scale"),
        ("quark/fp8-cache", quark, "input_scale"),
    ],
)
def test_each_declaration_has_its_rounding(path: str, hooks: Any, steps: InputRounding | str) -> None:
    """By the checkpoint that the tool itself wrote."""
    packed = Packed(KEPT / path, hooks, dtype="bfloat16", activation="declared")
    stored = load_file(packed.path / "model.safetensors")
    found = {name: weight for name, weight in packed.weights().items() if isinstance(weight, PreparedInputs)}
    assert len(found) >= 4
    for name, weight in found.items():
        expected = steps
        if isinstance(steps, str):
            expected = InputRounding("fp8_e4m3", "fixed", scale=float(stored[f"{name}.{steps}"].float()))
        assert weight.steps == (expected,), name
    plans = [plan for _, plan in packed.plans().values() if isinstance(plan, PartPlan)]
    assert {plan.activation for plan in plans} == {"none"} and all(plan.ordered for plan in plans)


@pytest.mark.parametrize(
    ("declaration", "scheme"),
    [
        (
            {"quant_method": "fbgemm_fp8", "activation_scale_ub": 2.5},
            InputScheme("fp8_e4m3", "inverse", bound=2.5, bounds=BOUNDS),
        ),
        ({"quant_method": "ptpc_fp8"}, InputScheme("fp8_e4m3", "divide")),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, InputScheme("fp8_e4m3", "divide")),
        ({"quant_method": "fp8", "activation_scheme": "static"}, InputScheme("fp8_e4m3", "fixed", scales=SCALES)),
    ],
)
def test_other_names_of_fp8_have_their_own_rounding(declaration: dict[str, Any], scheme: InputScheme) -> None:
    part = StoredPart("q_proj", "q_proj", (64, 64), {})
    assert declared_inputs(declaration, declaration["quant_method"], None)(part) == scheme


@pytest.mark.parametrize("bound", [0, -1.0, "high", True, math.inf])
def test_bounds_that_are_no_numbers_are_told(bound: Any) -> None:
    with pytest.raises(UserError, match=r"activation_scale_ub .*expected a positive number"):
        declared_inputs({"activation_scale_ub": bound}, "fbgemm_fp8", None)


def test_the_common_scale_of_modelopts_nvfp4_is_inverted() -> None:
    packed = Packed(KEPT / "modelopt" / "nvfp4", modelopt, activation="declared")
    stored = load_file(packed.path / "model.safetensors")[f"{Q_PROJ}.input_scale"]
    weight = packed.weights()[Q_PROJ]
    assert isinstance(weight, PreparedInputs)
    assert weight.steps == (InputRounding("fp4", "fp8", 16, scale=float(1 / stored)),)


@pytest.mark.parametrize(
    "step",
    [
        InputRounding("fp8_e4m3", "divide"),
        InputRounding("int8", "range"),
        InputRounding("fp4", "fp8", 16, scale=20.0),
        InputRounding("fp6_e3m2", "even", 32),
        InputRounding("int8", "fixed", scale=0.05, zero=3),
    ],
)
def test_a_row_has_the_same_bits_in_company(step: InputRounding) -> None:
    """The rounding, and the native product behind it, which is that of a layer of rounded inputs."""
    torch.manual_seed(0)
    x = torch.randn(9, 96) * 3
    whole = step(x)
    native = KernelSet([NativeKernels(1)])
    weight = PreparedInputs(Dense(torch.randn(40, 96)), (step,))
    kernel = native.linear(weight, activation="none")
    assert isinstance(kernel, NativeLinear)  # it rounds by itself
    out, alone, plain = torch.empty(9, 40), torch.empty(1, 40), torch.empty(9, 40)
    kernel(x, out)
    native.linear(weight.weight, activation="none")(whole, plain)
    assert torch.equal(out, plain)
    for row in range(9):
        assert torch.equal(step(x[row : row + 1])[0], whole[row])
        kernel(x[row : row + 1], alone)
        assert torch.equal(alone[0], out[row])


@pytest.mark.parametrize("drafts", [{}, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}])
def test_the_engine_serves_them_in_company_in_chunks_and_after_sleep(drafts: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"device": "cpu", "max_model_len": 64, "kv_cache_memory_bytes": 1 << 22, **drafts}
    declared = {"quantization_config": {"activation": "declared"}, "dtype": "float32", "use_tqdm_on_load": False}
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, logprobs=0)
    prompts: list[Any] = [{"prompt_token_ids": PROMPT[: 4 + 2 * index]} for index in range(4)]
    settings |= {"max_num_batched_tokens": 16, "enable_sleep_mode": True, "enable_prefix_caching": False}
    with LLM(model=str(INPUTS), **declared, **settings) as llm:
        together = [one.outputs[0] for one in llm.generate(prompts, params, use_tqdm=False)]
        alone = [llm.generate([one], params, use_tqdm=False)[0].outputs[0] for one in prompts]
        llm.sleep(level=2)
        llm.wake_up()
        later = [one.outputs[0] for one in llm.generate(prompts, params, use_tqdm=False)]
    for others in (alone, later):
        assert [one.token_ids for one in together] == [one.token_ids for one in others]
        assert [one.cumulative_logprob for one in together] == [one.cumulative_logprob for one in others]
    logits = Packed(INPUTS, compressed, activation="declared").logits([*PROMPT, *together[3].token_ids])
    assert logits[len(PROMPT) - 1 : -1].argmax(-1).tolist() == together[3].token_ids


def test_ranks_divide_what_has_a_scale_of_its_own() -> None:
    half = slice(0, 32)
    weight = Dense(torch.randn(8, 64))
    fixed = PreparedInputs(weight, (InputRounding("int8", "fixed", scale=0.1),))
    groups = PreparedInputs(weight, (InputRounding("fp4", "even", 32),))
    rows = PreparedInputs(weight, (InputRounding("fp8_e4m3", "divide"),))
    x = torch.randn(3, 64)
    for one in (fixed, groups):
        assert torch.equal(one.columns(half).steps[0](x[:, half]), one.steps[0](x)[:, half])
    with pytest.raises(ValueError, match="one scale for a row"):
        rows.columns(half)
    with pytest.raises(ValueError, match="not whole groups"):
        groups.columns(slice(0, 16))


@pytest.mark.parametrize(
    ("path", "hooks", "sentence"),
    [
        ("modelopt/int8", modelopt, "declares no rounding of inputs .modelopt's W8A16."),
        ("quark/mxfp6", quark, "declares no rounding of inputs .quark."),
        ("compressed-tensors/w4a16-asym-experts", compressed, "declares no rounding of inputs"),
    ],
)
def test_a_checkpoint_that_declares_none_is_told(path: str, hooks: ModuleType, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Packed(KEPT / path, hooks, activation="declared")


def test_methods_without_declared_inputs_are_told() -> None:
    with pytest.raises(UserError, match=r"declares no rounding of inputs \(gptq\); leave the argument out"):
        Packed(KEPT / "gptq" / "order", gptq, activation="declared")
    plans = Packed(KEPT / "awq" / "gemm", awq, activation="declared").plans()
    reasons = [plan.reason for _, plan in plans.values() if isinstance(plan, Unsupported)]
    assert reasons and all("activation declared is not served for checkpoints of this kind" in one for one in reasons)
    with pytest.raises(UserError, match="'int8' has no such inputs; choose int8 or int8_row or none"):
        INT8.core_load(_plain_context("declared"))


def _plain_context(activation: str) -> Any:
    from core.plugin.hookspecs import LoadContext

    arguments = INT8.core_spec().arguments
    assert arguments is not None
    return LoadContext(arguments=arguments(activation=activation), dtype="bfloat16")


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"input_scale": None}, "has no tensor 'input_scale', the scale of its inputs; leave"),
        ({"input_scale": torch.ones(64)}, r"shape \[64\], but its declared scheme needs \[\] or \[1\]"),
        ({"input_zero_point": torch.ones(3, dtype=torch.int8)}, r"input_zero_point' has shape \[3\]"),
    ],
)
def test_tensors_of_inputs_that_do_not_fit_are_told(
    tensors: dict[str, torch.Tensor | None], sentence: str, tmp_path: Path
) -> None:
    named = {f"{O_PROJ}.{name}".replace(".", "__"): tensor for name, tensor in tensors.items()}
    path = changed(INPUTS, tmp_path / "copy", **named)
    plan = Packed(path, compressed, activation="declared").method.plan(LayerSpec(O_PROJ, "linear", (64, 64)))
    assert isinstance(plan, Unsupported)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(plan.reason)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_scale_that_cannot_be_one_is_damage(scale: float, tmp_path: Path) -> None:
    path = changed(INPUTS, tmp_path / "copy", **{f"{O_PROJ}.input_scale".replace(".", "__"): torch.tensor([scale])})
    packed = Packed(path, compressed, activation="declared")
    with pytest.raises(CheckpointError, match=r"has a 'input_scale' of .*expected a positive number"):
        packed.weights()


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({"num_bits": 3}, "num_bits: needs 4 or 8 bits of int or float, got 3 bits of int"),
        ({"type": "float", "symmetric": False}, "symmetric: needs true for floats"),
        ({"strategy": "group", "group_size": 16}, "dynamic: needs true for strategy group, got False"),
        ({"strategy": "channel", "dynamic": True}, "strategy: needs tensor, token, group or tensor_group"),
        ({"strategy": "tensor_group", "group_size": 16, "dynamic": "local"}, "needs groups of 4-bit floats"),
        (
            {"type": "float", "strategy": "group", "group_size": 16, "dynamic": True, "scale_dtype": "torch.uint8"},
            "group_size: needs 32 floats",
        ),
        ({"strategy": "group", "group_size": 8, "dynamic": True, "scale_dtype": "torch.int4"}, "scale_dtype: needs"),
        ({"magic": 1}, "magic: needs a known key"),
        (7, "needs an object with keys"),
    ],
)
def test_inputs_that_weights_cannot_have_are_told(inputs: Any, sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        input_scheme("config_groups.a.input_activations", inputs, None)


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({"dtype": "mx6"}, "dtype: needs fp4 or .*got mx6"),
        ({"dtype": "fp8_e4m3", "qscheme": "per_channel"}, "needs per_tensor for static scales"),
        ({"dtype": "int8", "qscheme": "per_tensor", "is_dynamic": True}, "served as .*int8_row"),
        ({"dtype": "fp4", "qscheme": "per_group", "is_dynamic": True, "scale_format": "e5m3"}, "scales of e5m3"),
        (
            {
                "dtype": "fp4",
                "qscheme": "per_group",
                "is_dynamic": True,
                "scale_format": "e8m0",
                "group_size": 32,
                "scale_calculation_mode": "odd",
            },
            "scale_calculation_mode: needs even or floor or ceil, got 'odd'",
        ),
    ],
)
def test_inputs_of_quark_that_are_not_served_are_told(inputs: Any, sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        quark_scheme("global_quant_config.input_tensors", inputs)

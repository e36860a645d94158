"""Plain checkpoints quantized at load: accuracy of the rounding, the plan, and the running engine."""

import shutil

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from core.api.errors import CheckpointError, ConfigError, UserError
from core.api.sampling_params import SamplingParams
from core.api.specs import ACTIVATIONS, DensePlan, LayerSpec, PartPlan, Unsupported
from core.plugin.hookspecs import LoadContext
from core.plugin.registry import PluginRegistry
from core_frontend.llm import LLM
from core_quantization.online import manifest as manifests
from core_quantization.online.manifest import OnlineArguments
from core_quantization.online.rounding import quantize
from core_quantization.online.schemes import SCHEMES
from core_runtime.specs.checkpoint import CheckpointFacts, CheckpointManifest, TensorInfo, TokenizerSource
from core_runtime.weights.input_rounding import InputRounding
from tests.configuration.test_memory_plan import compare
from tests.quantization.inputs_grid import grid
from tests.tiny_models import save_checkpoint

# Error of the squares of normal weights, relative: 8 bits far below 1%; 4-bit floats as their publications have them.
ERRORS = {"int8": 1e-3, "fp8": 1e-3, "nf4": 0.011, "fp4": 0.02, "mxfp4": 0.02, "mxfp6": 2e-3, "nvfp4": 0.011}


def manifest(dtype="BF16", shape=(64, 128)):
    info = TensorInfo("layer.weight", shape, dtype, 0, 0, 0, "layer")
    return CheckpointManifest("m", "safetensors", ["m"], {"layer.weight": info}, {}, TokenizerSource())


def method(scheme, found=None, dtype="bfloat16", roundings=ACTIVATIONS, **arguments):
    hooks = getattr(manifests, scheme.upper())
    given = OnlineArguments(**arguments)
    context = LoadContext(manifest=found or manifest(), dtype=dtype, arguments=given, roundings=roundings)
    return hooks.core_load(context)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rounding_is_close_and_takes_the_planned_bytes(scheme):
    torch.manual_seed(1)
    w = torch.randn(300, 1536) * torch.rand(300, 1)
    weight = quantize(w.bfloat16(), SCHEMES[scheme].rounding)
    error = (weight.dequantize() - w).square().sum() / w.square().sum()
    assert error < ERRORS[scheme], error
    assert weight.nbytes == SCHEMES[scheme].nbytes(300, 1536)
    assert weight.name == SCHEMES[scheme].format and weight.problem() is None
    again = quantize(weight.dequantize(), SCHEMES[scheme].rounding)  # what can be represented stays
    assert (again.dequantize() - weight.dequantize()).square().sum() / w.square().sum() < 1e-4


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_of_zeros_stay_zero(scheme):
    weight = quantize(torch.zeros(3, 64), SCHEMES[scheme].rounding)
    assert (weight.dequantize() == 0).all() and weight.problem() is None


def test_six_bits_are_those_of_quark():
    """`test_groups_are_rounded_as_quark_does` has the tool's own numbers for this rule."""
    w = grid()
    weight = quantize(w, "mxfp6")
    assert torch.equal(weight.dequantize(), InputRounding("fp6_e2m3", "even", 32)(w))


def test_microscaling_rounds_ties_to_even_and_cuts_at_six():
    row = torch.zeros(32)
    row[:10] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0, 6.0, -0.25])
    found = quantize(row.view(1, -1), "mxfp4").dequantize()[0, :10]
    assert found.tolist() == [0, 1, 1, 2, 2, 4, 4, -4, 6, 0]


def test_the_plan_names_what_each_role_becomes():
    spec = LayerSpec("layer", "linear", (64, 128))
    plan = method("nf4").plan(spec)
    assert isinstance(plan, PartPlan) and (plan.format, plan.activation) == ("nf4", "bf16")
    assert plan.nbytes == method("nf4").pack(spec, {"layer.weight": torch.randn(64, 128)}).nbytes
    assert method("nf4").plan(replace_role(spec, "head")).format == "int8_groups"
    assert method("nf4", head="same").plan(replace_role(spec, "embedding")).format == "nf4"
    assert isinstance(method("nf4", head="none").plan(replace_role(spec, "embedding")), DensePlan)
    assert isinstance(method("int8", ignore=["lay"]).plan(spec), DensePlan)
    assert method("int8").plan(spec).activation == "int8"
    assert method("int8", dtype="float32").plan(spec).activation == "none"
    on_gpu = method("int8", roundings=("none", "bf16", "int8_row")).plan(spec)
    assert (on_gpu.format, on_gpu.activation) == ("int8_groups", "none")
    assert method("mxfp4", activation="bf16").plan(spec).activation == "bf16"


def test_int8_has_a_scale_a_row_for_inputs_no_block_divides_and_where_it_is_asked_for():
    odd = LayerSpec("layer", "linear", (64, 577))
    tensors = {"layer.weight": torch.randn(64, 577)}
    even = LayerSpec("layer", "linear", (64, 128))
    for found, spec, form in (
        (method("int8"), even, "int8_groups"),
        (method("int8"), odd, "int8_channel"),
        (method("int8", activation="int8_row"), even, "int8_channel"),
        (method("mxfp4"), replace_role(odd, "head"), "int8_channel"),
    ):
        plan = found.plan(spec)
        assert plan.format == form
        packed = found.pack(spec, {"layer.weight": torch.randn(spec.shape)})
        assert (packed.name, packed.nbytes) == (form, plan.nbytes)
    assert method("int8", activation="int8_row").plan(even).activation == "int8_row"
    assert method("int8").pack(odd, tensors).shape == (64, 577)


def replace_role(spec, role):
    return LayerSpec(spec.name, role, spec.shape)


def test_what_cannot_be_quantized_is_told():
    odd = method("nf4").plan(LayerSpec("layer", "linear", (64, 577)))
    assert isinstance(odd, Unsupported) and "577 inputs are not a multiple of 64" in odd.reason
    packed = method("int8", manifest("F8_E4M3")).plan(LayerSpec("layer", "linear", (64, 128)))
    assert isinstance(packed, Unsupported) and "F8_E4M3" in packed.reason
    with pytest.raises(UserError, match="'int8' has no such inputs; choose int8 or int8_row or none"):
        method("int8", activation="bf16")
    broken = torch.randn(4, 64)
    broken[1, 2] = float("nan")
    with pytest.raises(CheckpointError, match=r"'layer.weight' holds values that are not finite"):
        method("int8").pack(LayerSpec("layer", "linear", (4, 64)), {"layer.weight": broken})
    facts = CheckpointFacts(ref="m", format="gguf", model_type="llama")
    assert manifests.INT8.core_supports(facts)[0].actual == "GGUF file"
    assert manifests.INT8.core_supports(msgspec.structs.replace(facts, format="safetensors")) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantized_model_uses_what_was_planned_and_generates(tiny_llama, scheme):
    own = {"ignore": ["down_proj"]} if SCHEMES[scheme].block == 64 else {}  # of its 96 inputs
    found = compare(PluginRegistry(), tiny_llama, quantization=scheme, quantization_config=own)
    (planned, used), *_, numerics = found
    assert planned == pytest.approx(used, rel=0.01) and numerics[0] == numerics[1]


def test_the_same_tokens_alone_and_in_company(tiny_llama):
    llm = LLM(model=str(tiny_llama), quantization="int8", max_model_len=64, kv_cache_memory_bytes=1 << 24, device="cpu")
    params = SamplingParams(max_tokens=12, temperature=0, logprobs=1)
    prompts = ["a", "hello there", "one two three four"]
    together = llm.generate(prompts, params, use_tqdm=False)
    for prompt, other in zip(prompts, together, strict=True):
        alone = llm.generate([prompt], params, use_tqdm=False)[0]
        assert alone.outputs[0].token_ids == other.outputs[0].token_ids
        assert alone.outputs[0].cumulative_logprob == other.outputs[0].cumulative_logprob


@pytest.fixture(scope="module")
def plain_experts(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("experts"), "mixtral")


def scores(path, **arguments):
    llm = LLM(
        model=str(path), dtype="float32", max_model_len=64, kv_cache_memory_bytes=1 << 24, device="cpu", **arguments
    )
    try:
        return llm.generate(["one two three"], SamplingParams(max_tokens=8, temperature=0, logprobs=1), use_tqdm=False)[
            0
        ]
    finally:
        llm.close()


def test_experts_are_rounded_alone(plain_experts, tmp_path):
    """As in a checkpoint whose experts were rounded before it was saved, and whose other matrices were not."""
    shutil.copytree(plain_experts, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    rounded = {name: tensor for name, tensor in tensors.items() if ".experts." in name}
    assert rounded
    tensors |= {name: quantize(tensor, "int8_groups").dequantize().contiguous() for name, tensor in rounded.items()}
    save_file(tensors, file, {"format": "pt"})
    found, expected = scores(plain_experts, quantization="experts_int8"), scores(tmp_path)
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    assert found.outputs[0].cumulative_logprob == pytest.approx(expected.outputs[0].cumulative_logprob, abs=1e-4)
    (planned, used), *_ = compare(PluginRegistry(), plain_experts, quantization="experts_int8")
    (whole, _), *_ = compare(PluginRegistry(), plain_experts, quantization="int8")
    assert planned == pytest.approx(used, rel=0.01) and whole < planned


def test_experts_that_are_not_there_cannot_be_rounded(tiny_llama):
    with pytest.raises(
        ConfigError, match="experts_int8: the model has no experts to round; choose --quantization int8"
    ):
        compare(PluginRegistry(), tiny_llama, quantization="experts_int8")
    context = LoadContext(
        manifest=None, dtype="bfloat16", arguments=OnlineArguments(head="int8"), roundings=ACTIVATIONS
    )
    with pytest.raises(UserError, match="head int8: experts_int8 rounds the experts alone"):
        manifests.EXPERTS_INT8.core_load(context)

"""GGUF block types against the `gguf` package's own dequantization, bit for bit."""

import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from core.api.errors import CheckpointError, UserError
from core.api.specs import DensePlan, LayerSpec, PartPlan, Unsupported
from core.plugin.hookspecs import LoadContext
from core_loaders.gguf.loader import GGUFLoader
from core_platforms.cpu.kernels import NativeKernels
from core_quantization.gguf import manifest as gguf_manifest
from core_quantization.gguf.blocks import FORMATS
from core_quantization.gguf.method import GGUFMethod
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo, TokenizerSource
from core_runtime.weights.canonical import CanonicalWeight
from tests.real_models import gemma3_path, smollm2_path

LARGER = {
    "IQ3_S": 1.55, "IQ3_XXS": 2.94, "IQ2_S": 3.91, "IQ2_XS": 4.33, "IQ2_XXS": 4.37, "IQ1_M": 5.72, "IQ1_S": 3.84,
    "TQ1_0": 1.38, "TQ2_0": 1.13,
}  # fmt: skip
"""Type → bytes in memory over bytes in the file, where canonical formats have no place for points of a grid."""
SPEC = LayerSpec("layer", "linear", (0, 0))


def one_tensor(dtype: str, shape: tuple[int, int]) -> CheckpointManifest:
    info = TensorInfo("layer.weight", shape, dtype, 0, 0, 0, "layer")
    return CheckpointManifest("m", "gguf", ["m"], {"layer.weight": info}, {"model_type": "llama"}, TokenizerSource())


def random_blocks(dtype: str, rows: int, blocks: int) -> np.ndarray:
    """Random bits everywhere but in the float16 scales, which are small and finite."""
    rng = np.random.default_rng(sum(map(ord, dtype)))
    raw = rng.integers(0, 256, (rows, blocks, FORMATS[dtype].block_bytes), dtype=np.uint8)
    scale = rng.standard_normal((rows, blocks, 2)).astype(np.float16).view(np.uint8)
    places = {"Q2_K": slice(80, 84), "Q3_K": slice(108, 110), "Q6_K": slice(208, 210), "Q4_0": slice(0, 2)}
    places |= dict.fromkeys(("Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), slice(0, 2))
    places |= dict.fromkeys(("IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S"), slice(0, 2))
    places |= {"TQ1_0": slice(52, 54), "TQ2_0": slice(64, 66), "MXFP4": slice(0, 0), "IQ1_M": slice(0, 0)}
    place = places.get(dtype, slice(0, 4))
    raw[:, :, place] = scale[:, :, : place.stop - place.start]
    if dtype == "MXFP4":  # the largest powers of two overflow
        raw[:, :, 0] %= 250
    if dtype == "NVFP4":  # without a sign
        raw[:, :, :4] = rng.integers(0, 127, (rows, blocks, 4), dtype=np.uint8)
    if dtype == "IQ1_M":  # the highest bit of the factor's exponent, which is in pieces
        raw[:, :, 55] &= 0xBF
    return raw.reshape(rows, -1)


def packed(dtype: str, raw: np.ndarray) -> CanonicalWeight:
    """The weight that rows of blocks become."""
    rows, row_bytes = raw.shape
    row = FORMATS[dtype]
    shape = (rows, row_bytes // row.block_bytes * row.block_size)
    method = GGUFMethod(one_tensor(dtype, shape), "int8")
    return method.pack(SPEC, {"layer.weight": torch.from_numpy(raw)})


@pytest.mark.parametrize("dtype", FORMATS)
def test_random_blocks_equal_the_gguf_package(dtype: str) -> None:
    raw = random_blocks(dtype, 33, 5)
    shape = (33, 5 * FORMATS[dtype].block_size)
    method = GGUFMethod(one_tensor(dtype, shape), "int8")
    weight = method.pack(SPEC, {"layer.weight": torch.from_numpy(raw)})
    plan = method.plan(SPEC)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[dtype])
    assert np.array_equal(weight.dequantize().numpy(), expected)
    assert isinstance(plan, PartPlan) and plan.nbytes == weight.nbytes and plan.format == weight.name


@pytest.mark.parametrize("dtype", FORMATS)
def test_weights_take_the_memory_of_their_file(dtype: str) -> None:
    raw = random_blocks(dtype, 64, 4)
    shape = (64, 4 * FORMATS[dtype].block_size)
    weight = packed(dtype, raw)
    kernels = NativeKernels(1)
    assert weight.shape == shape
    assert weight.nbytes <= LARGER.get(dtype, 1.05) * raw.nbytes
    assert kernels.prepared_nbytes(weight, activation="int8") == weight.nbytes
    assert kernels.linear(weight, activation="int8").nbytes == weight.nbytes


@pytest.mark.parametrize("path", [smollm2_path, gemma3_path])
def test_every_tensor_of_the_real_models(path) -> None:
    """Rows of each packed tensor (all of the small ones) equal the file's; row order is the loader's own matter."""
    file: Path = path()
    loader = GGUFLoader()
    manifest = loader.resolve(str(file))
    method = GGUFMethod(manifest, "int8")
    checked = set()
    for name, tensor in loader.iter(
        manifest, [name for name, info in manifest.tensors.items() if len(info.shape) == 2]
    ):
        info = manifest.tensors[name]
        spec = LayerSpec(name.removesuffix(".weight"), "linear", info.shape)
        weight, plan = method.pack(spec, {name: tensor}), method.plan(spec)
        assert isinstance(plan, PartPlan) and (plan.nbytes, plan.format) == (weight.nbytes, weight.name)
        if info.dtype in checked and ".layers.1." not in name:
            continue
        checked.add(info.dtype)
        rows = torch.arange(0, info.shape[0], max(1, info.shape[0] // 512))
        expected = gguf.dequantize(tensor[rows].numpy(), gguf.GGMLQuantizationType[info.dtype])
        assert np.array_equal(weight.rows(rows).dequantize().numpy(), expected), name
    assert checked == {"Q4_1", "Q8_0"} or checked == {"Q4_K", "Q5_0", "Q6_K", "Q8_0"}


@pytest.mark.parametrize("dtype", ["Q4_1", "Q6_K"])
def test_no_dense_copy_is_made(dtype: str) -> None:
    shape = (4096, 2048)
    raw = random_blocks(dtype, shape[0], shape[1] // FORMATS[dtype].block_size)
    method = GGUFMethod(one_tensor(dtype, shape), "int8")
    tracemalloc.start()
    weight = method.pack(SPEC, {"layer.weight": torch.from_numpy(raw)})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < weight.nbytes + 12e6 < shape[0] * shape[1] * 4


def test_plans() -> None:
    def plan(dtype: str, spec: LayerSpec = SPEC):
        return GGUFMethod(one_tensor(dtype, (64, 256)), "int8").plan(spec)

    assert plan("F32") == DensePlan(reads=("layer.weight",))
    assert plan("BF16") == DensePlan(reads=("layer.weight",))
    assert plan("Q4_0").fuse_key != plan("Q4_1").fuse_key
    assert plan("Q4_K").fuse_key != plan("Q4_1").fuse_key
    assert plan("Q4_1").format == "int4_groups" and plan("Q5_0").format == "int5_super"
    assert plan("IQ4_NL").format == plan("IQ4_XS").format == "iq4_super"
    assert plan("IQ4_NL").fuse_key != plan("IQ4_XS").fuse_key
    for dtype, spec in (("Q1_0", SPEC), ("Q4_0", LayerSpec("other", "linear", (1, 1)))):
        assert isinstance(plan(dtype, spec), Unsupported)


def test_activation_follows_the_dtype_unless_given() -> None:
    manifest = one_tensor("Q4_0", (64, 256))

    def activation(dtype: str, **arguments: str) -> str:
        given = gguf_manifest.GGUFArguments(**arguments) if arguments else None
        method = gguf_manifest.core_load(LoadContext(dtype=dtype, manifest=manifest, arguments=given))
        return method.plan(SPEC).activation

    assert activation("bfloat16") == "int8" and activation("float32") == "none"
    on_gpu = gguf_manifest.core_load(LoadContext(manifest=manifest, roundings=("none", "bf16")))
    assert on_gpu.plan(SPEC).activation == "none"
    assert activation("float32", activation="int8") == "int8" and activation("bfloat16", activation="none") == "none"


def test_wrong_input_is_named() -> None:
    method = GGUFMethod(one_tensor("Q4_0", (4, 64)), "int8")
    with pytest.raises(CheckpointError, match=r"layer\.weight"):
        method.pack(SPEC, {"layer.weight": torch.zeros(4, 35, dtype=torch.uint8)})
    with pytest.raises(CheckpointError, match="not finite"):
        method.pack(SPEC, {"layer.weight": torch.full((4, 36), 255, dtype=torch.uint8)})
    with pytest.raises(UserError, match="GGUF"):
        gguf_manifest.core_load(LoadContext())


def test_nvfp4_may_have_a_scale_of_the_whole_matrix() -> None:
    raw = random_blocks("NVFP4", 16, 4)
    manifest = one_tensor("NVFP4", (16, 256))
    scale = TensorInfo("layer.weight_scale_2", (1,), "F32", 4, 0, 0, "layer.scale")
    manifest.tensors["layer.weight_scale_2"] = scale
    method = GGUFMethod(manifest, "none")
    plan = method.plan(SPEC)
    assert isinstance(plan, PartPlan) and plan.reads == ("layer.weight", "layer.weight_scale_2")
    weight = method.pack(SPEC, {"layer.weight": torch.from_numpy(raw), "layer.weight_scale_2": torch.tensor([0.375])})
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType.NVFP4)
    assert np.array_equal(weight.dequantize().numpy(), 0.375 * expected)
    assert plan.nbytes == weight.nbytes

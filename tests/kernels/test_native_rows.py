"""Rows that are packed as they lie in a file: to the byte what their canonical form is packed to."""

import pytest
import torch

from core.api.errors import CheckpointError
from core.api.specs import Activation, LayerSpec
from core_platforms.cpu.kernels import NativeKernels
from core_platforms.cpu.native_linear import ROW_LAYOUTS
from core_quantization.gguf.blocks import FORMATS
from core_quantization.gguf.method import GGUFMethod
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.rows import RowKernels
from core_runtime.weights.formats import CanonicalWeight, Dense, StoredRows, can_fuse, fuse
from core_runtime.weights.stored_rows import plain_rows
from tests.quantization.test_gguf_quantization import SPEC, one_tensor, random_blocks

K = 2304
"""Inputs: whole blocks of each type, and more than are packed before the next row's turn."""
PLAIN: dict[str, tuple[torch.dtype, Activation]] = {
    "float32": (torch.float32, "none"),
    "float16": (torch.float16, "none"),
    "bfloat16": (torch.bfloat16, "bf16"),
}
BLOCKS = [layout for layout in ROW_LAYOUTS if layout not in PLAIN]


def both(layout: str, n: int, seed: int = 0) -> tuple[StoredRows, CanonicalWeight]:
    """A weight as it lies in a file, and in its canonical form."""
    torch.manual_seed(seed)
    if layout in PLAIN:
        matrix = torch.randn(n, K).to(PLAIN[layout][0])
        return plain_rows("layer.weight", matrix), Dense(matrix)
    method = GGUFMethod(one_tensor(layout, (n, K)), "int8")
    raw = torch.from_numpy(random_blocks(layout, n, K // FORMATS[layout].block_size)).view(n, -1)
    tensors = {"layer.weight": raw.roll(seed, 0)}
    stored = method.stored(SPEC, tensors)
    assert stored is not None
    return stored, method.pack(SPEC, tensors)


def packed(weight: CanonicalWeight, activation: Activation) -> torch.Tensor:
    """The bytes of a packed weight. Its memory held something else before."""
    kernels = NativeKernels(2)
    memory = torch.full((kernels.prepared_nbytes(weight, activation=activation) + 8192,), 0xA5, dtype=torch.uint8)
    start = -memory.data_ptr() % 4096
    kernels.linear(weight, activation=activation, into=memory[start:])
    return memory[start : start + kernels.prepared_nbytes(weight, activation=activation)]


def activation_of(layout: str) -> Activation:
    return PLAIN[layout][1] if layout in PLAIN else "int8"


@pytest.mark.parametrize("n", [32, 70])
@pytest.mark.parametrize("layout", ROW_LAYOUTS)
def test_packed_bytes_are_those_of_the_canonical_form(layout: str, n: int) -> None:
    stored, canonical = both(layout, n)
    assert stored.shape == canonical.shape and stored.name == canonical.name
    activation = activation_of(layout)
    assert torch.equal(packed(stored, activation), packed(canonical, activation))
    assert torch.equal(stored.dequantize(), canonical.dequantize())


@pytest.mark.parametrize("layout", ["bfloat16", "Q4_K", "Q8_0", "MXFP4"])
def test_rows_are_taken_and_joined_where_they_lie(layout: str) -> None:
    first, first_whole = both(layout, 40)
    second, second_whole = both(layout, 9, seed=1)
    order = torch.randperm(40)
    assert can_fuse([first, second])
    stored = fuse([first.rows(order), second])
    canonical = fuse([first_whole.rows(order), second_whole])
    activation = activation_of(layout)
    assert torch.equal(packed(stored, activation), packed(canonical, activation))
    assert torch.equal(stored.dequantize(), canonical.dequantize())


def test_rows_of_different_types_are_not_joined() -> None:
    assert not can_fuse([both("Q4_K", 32)[0], both("Q5_K", 32)[0]])


def test_odd_inputs_are_padded_with_zeros() -> None:
    matrix = torch.randn(33, 77).bfloat16()
    mine = packed(plain_rows("m", matrix), "bf16")
    assert torch.equal(mine, packed(Dense(matrix), "bf16"))
    assert not mine.view(torch.bfloat16).view(2, 39, 32, 2)[:, -1, :, 1].any()


@pytest.mark.parametrize("layout", BLOCKS)
def test_a_scale_that_is_not_finite_is_an_error_with_the_tensors_name(layout: str) -> None:
    row = FORMATS[layout]
    good, _ = both(layout, 64)
    place = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208, "TQ2_0": 64}.get(layout, 0)
    raw = good.memory[0][1].clone()
    blocks = raw.view(64, K // row.block_size, row.block_bytes)
    blocks[63, -1, place : place + 2] = torch.tensor([255, 255] if layout == "MXFP4" else [0, 0x7C], dtype=torch.uint8)
    bad = GGUFMethod(one_tensor(layout, (64, K)), "int8").stored(
        LayerSpec("layer", "linear", (0, 0)), {"layer.weight": raw}
    )
    assert bad is not None
    for kernels in (NativeKernels(2), KernelSet([RowKernels()])):
        with pytest.raises(CheckpointError, match=r"Tensor 'layer.weight' holds scales that are not finite"):
            kernels.linear(fuse([good, bad]), activation="none")


def test_other_providers_get_the_canonical_form() -> None:
    stored, canonical = both("Q4_K", 32)
    x = torch.randn(2, K)
    out, expected = torch.empty(2, 32), torch.empty(2, 32)
    KernelSet([RowKernels()]).linear(stored, activation="none")(x, out)
    KernelSet([RowKernels()]).linear(canonical, activation="none")(x, expected)
    assert torch.equal(out, expected)

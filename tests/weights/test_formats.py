"""Canonical formats against torch's own types, the `gguf` package and the tables of the publications."""

from dataclasses import dataclass, replace

import gguf
import numpy as np
import pytest
import torch

from core_runtime.weights.canonical import CanonicalWeight
from core_runtime.weights.codebook import CODES
from core_runtime.weights.formats import FP8, Codebook, Dense, Int8Channel, IntGroups, SuperGroups, can_fuse, fuse
from core_runtime.weights.input_order import InputOrder

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def examples():
    generator = torch.Generator().manual_seed(3)

    def integers(*shape):
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)

    def scale(*shape):
        return torch.rand(shape, generator=generator) + 0.01

    return {
        "dense": Dense(scale(6, 64).bfloat16()),
        "int4_groups": IntGroups(4, 32, integers(6, 32), scale(6, 2).half(), -scale(6, 2).half()),
        "int8_groups": IntGroups(8, 16, integers(6, 64), scale(6, 4), None, 128),
        "int8_channel": Int8Channel(integers(6, 64).view(torch.int8), scale(6, 1)),
        "fp8_e4m3": FP8.from_scale(scale(6, 64).to(E4M3), scale(6)),
        "fp8_e5m2": FP8.from_scale(scale(6, 64).to(E5M2), scale(2, 2), (4, 48)),
        "nf4": Codebook("nf4", 64, integers(6, 32), scale(6, 1)),
        "fp4": Codebook("fp4", 32, integers(6, 32), scale(6, 2).half()),
        "mxfp4": Codebook("mxfp4", 32, integers(6, 32), integers(6, 2) // 2 + 60),
        "nvfp4": Codebook("nvfp4", 16, integers(6, 32), scale(6, 4).to(E4M3), scale(6, 1)),
        "int2_super": SuperGroups(
            bits=2,
            group_size=16,
            super_size=64,
            low=integers(6, 16),
            scale=scale(6, 1).half(),
            sub_scale=integers(6, 4),
            minimum_scale=-scale(6, 1).half(),
        ),
        "int5_super": SuperGroups(
            bits=5,
            group_size=32,
            super_size=64,
            low=integers(6, 32),
            high=integers(6, 8),
            scale=scale(6, 1).half(),
            sub_scale=integers(6, 2).view(torch.int8),
            minimum_scale=-scale(6, 1).half(),
            sub_minimum=integers(6, 2).view(torch.int8),
        ),
        "iq4_super": SuperGroups(4, 32, 32, integers(6, 32), scale(6, 2).half(), table="iq4"),
    }


@pytest.mark.parametrize("name", examples())
def test_rows_and_fusing_keep_every_value(name):
    weight = examples()[name]
    whole = weight.dequantize()
    assert weight.name == name and weight.shape == (6, 64) and weight.problem() is None
    assert torch.equal(weight.rows(torch.tensor([4, 0, 4])).dequantize(), whole[[4, 0, 4]])
    assert torch.equal(weight.rows(slice(2, 5)).dequantize(), whole[2:5])
    assert torch.equal(fuse([weight, weight.rows(slice(0, 1))]).dequantize(), torch.cat([whole, whole[:1]]))
    assert weight.nbytes == sum(tensor.nbytes for tensor in weight.tensors().values())


@pytest.mark.parametrize("name", examples())
def test_columns_are_whole_groups_with_their_scales(name):
    weight = examples()[name]
    whole = weight.dequantize()
    group = 48 if name == "fp8_e5m2" else 64 if name == "nf4" else 32
    for index in (slice(0, group), slice(group, 64), slice(0, 64), torch.arange(group)):
        if len(whole[0, index]):
            part = weight.columns(index)
            assert torch.equal(part.dequantize(), whole[:, index])
            assert part.name == name and part.nbytes <= weight.nbytes
            assert all(tensor.is_contiguous() for tensor in part.tensors().values())
    if name in ("dense", "int8_channel", "fp8_e4m3"):
        assert torch.equal(weight.columns(torch.tensor([5, 0, 63])).dequantize(), whole[:, [5, 0, 63]])
        return
    for wrong in (slice(8, 40), slice(0, 24), torch.tensor([1, 0]), torch.arange(64).flip(0), slice(0, 0)):
        with pytest.raises(ValueError, match=f"a {name} weight of 64 inputs .* whole groups"):
            weight.columns(wrong)


def test_super_groups_that_are_not_cut_stay_whole():
    weight = examples()["int5_super"]
    twice = SuperGroups(
        **weight.attributes(), **{name: torch.cat([t, t], dim=1) for name, t in weight.tensors().items()}
    )
    assert twice.shape == (6, 128)
    assert twice.columns(slice(0, 64)).super_size == 64
    assert twice.columns(slice(32, 96)).super_size == 32
    swapped = torch.cat([torch.arange(64, 128), torch.arange(64)])
    assert twice.columns(swapped).super_size == 64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 7}, "bits are 2 to 6"),
        ({"group_size": 64}, "group_size is 16 or 32"),
        ({"super_size": 48}, "multiple of 32 that divides the 64 inputs; got 48"),
        ({"table": "iq4"}, "table iq4 is for 4 bits without a zero"),
        ({"zeros": torch.ones(6, 1, dtype=torch.uint8)}, "zeros stand in place of a zero, minima and a table"),
        ({"order": InputOrder.of(torch.arange(32))}, "an order has the 64 inputs; got 32"),
        ({"minimum_scale": None}, "sub_minimum needs minimum_scale"),
        ({"sub_minimum": None}, "sub_scale is torch.int8 .* expected torch.uint8"),
        ({"high": None}, "the plane of the high bits has 1 bits an input"),
        ({"scale": torch.ones(6, 1)}, r"scale is torch.float32 \(6, 1\), expected torch.float16"),
    ],
)
def test_super_groups_of_other_kinds_are_refused(change, words):
    with pytest.raises(ValueError, match=f"^super-groups of . bits: .*{words}"):
        replace(examples()["int5_super"], **change)


def test_a_smaller_last_group_stays_the_last():
    weight = examples()["fp8_e5m2"]
    with pytest.raises(ValueError, match="whole groups"):
        weight.columns(torch.cat([torch.arange(48, 64), torch.arange(48)]))


def test_a_format_that_cannot_be_cut_says_so():
    @dataclass(frozen=True, slots=True)
    class Foreign(Dense):
        name = "foreign"
        columns = CanonicalWeight.columns

    with pytest.raises(NotImplementedError, match="format 'foreign' cannot be cut along its inputs"):
        Foreign(torch.zeros(2, 2)).columns(slice(0, 1))


def test_only_equal_formats_are_fused():
    every = list(examples().values())
    for first in every:
        for second in every:
            assert can_fuse([first, second]) == (first is second)
    with pytest.raises(ValueError, match="different formats cannot be fused: dense, int4_groups"):
        fuse(every[:2])


def test_fp8_scales_of_a_tensor_a_row_and_a_block():
    values = torch.randn(5, 10).to(E4M3)
    assert torch.equal(FP8.from_scale(values, torch.tensor(0.5)).dequantize(), values.float() * 0.5)
    rows = torch.rand(5)
    assert torch.equal(FP8.from_scale(values, rows).dequantize(), values.float() * rows[:, None])
    blocks = torch.rand(3, 3)
    spread = blocks.repeat_interleave(2, 0)[:5].repeat_interleave(4, 1)[:, :10]
    assert torch.equal(FP8.from_scale(values, blocks, (2, 4)).dequantize(), values.float() * spread)


def test_mxfp4_equals_the_gguf_package():
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (7, 3, 17), dtype=np.uint8)
    raw[:, :, 0] = rng.integers(100, 150, (7, 3))
    want = gguf.dequantize(raw.reshape(7, -1), gguf.GGMLQuantizationType.MXFP4)
    nibbles = raw[:, :, 1:]
    codes = np.concatenate((nibbles & 15, nibbles >> 4), axis=2).reshape(7, 96)
    values = torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4)
    weight = Codebook("mxfp4", 32, values, torch.from_numpy(np.ascontiguousarray(raw[:, :, 0])))
    assert np.array_equal(weight.dequantize().numpy(), want)


def test_mxfp4_scales_are_powers_of_two_as_torch_reads_them():
    scale = torch.arange(255, dtype=torch.uint8).view(-1, 1)
    weight = Codebook("mxfp4", 32, torch.full((255, 16), 0x22, dtype=torch.uint8), scale)  # code 2 is 1.0
    want = scale.view(torch.float8_e8m0fnu).float()
    assert torch.equal(weight.dequantize()[1:, :1], want[1:])


def test_nf4_splits_a_normal_distribution_into_equal_parts():
    """The construction of the QLoRA paper: quantiles of the normal distribution, 8 below and 9 above zero, to [-1, 1]."""
    offset = 0.9677083
    normal = torch.distributions.Normal(0.0, 1.0)
    above = normal.icdf(torch.linspace(offset, 0.5, 9, dtype=torch.float64)[:-1])
    below = -normal.icdf(torch.linspace(offset, 0.5, 8, dtype=torch.float64)[:-1])
    want = torch.cat((above, below, torch.zeros(1))).sort().values
    torch.testing.assert_close(torch.tensor(CODES["nf4"], dtype=torch.float64), want / want.max(), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Int8Channel(torch.zeros(4, 8), torch.ones(4, 1)), "needs int8"),
        (lambda: Int8Channel(torch.zeros(4, 8, dtype=torch.int8), torch.ones(4)), r"float32 \[N, 1\]"),
        (lambda: FP8.from_scale(torch.zeros(4, 8), torch.ones(4)), "float8_e4m3fn or float8_e5m2"),
        (lambda: FP8.from_scale(torch.zeros(4, 8).to(E4M3), torch.ones(3)), "one, or one a row"),
        (lambda: FP8.from_scale(torch.zeros(4, 8).to(E4M3), torch.ones(2, 3), (2, 4)), r"it needs \(2, 2\)"),
        (lambda: Codebook("nf5", 16, torch.zeros(1), torch.zeros(1)), "nf4, fp4, mxfp4, nvfp4"),
        (
            lambda: Codebook("nf4", 64, torch.zeros(2, 40, dtype=torch.uint8), torch.ones(2, 1)),
            "must divide the inputs",
        ),
        (lambda: Codebook("mxfp4", 32, torch.zeros(2, 16, dtype=torch.uint8), torch.ones(2, 1)), r"torch\.uint8"),
    ],
)
def test_what_does_not_fit_is_refused_by_a_sentence(make, words):
    with pytest.raises(ValueError, match=words):
        make()

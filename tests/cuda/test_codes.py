"""Codes of weights are decoded exactly: every byte, by PTX and by what chips without it compute."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from core_kernels.triton.products import codes
from core_kernels.triton.products.packed import Form, packed
from core_runtime.weights.codebook import E2M1
from core_runtime.weights.formats import IntGroups
from tests.cuda import ptx

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
BYTES = torch.arange(256).to(torch.uint8)
OTHERS = BYTES[torch.randperm(256, generator=torch.Generator().manual_seed(1))]
"""Neighbours of each byte in its word; a code must not feel them."""


def _words() -> tuple[np.ndarray, torch.Tensor]:
    """Words in which every byte stands at each place, and these bytes: [words, 4]."""
    places = []
    for place in range(4):
        columns = [BYTES if at == place else OTHERS.roll(at) for at in range(4)]
        places.append(torch.stack(columns, 1))
    octets = torch.cat(places)
    return octets.contiguous().numpy().view(np.uint32).reshape(-1), octets


def _numbers(kind: str, field: int, octets: torch.Tensor, zero: int) -> torch.Tensor:
    if kind == "signed":
        return octets.view(torch.int8).double()
    nibbles = octets >> (4 * field) & 15
    if kind == "e2m1":
        return torch.tensor(E2M1, dtype=torch.float64)[nibbles.long()]
    return (octets if kind == "bytes" else nibbles).double() - zero


def _offsets(kind: str, name: str, zero: int, threads: int) -> list[np.ndarray]:
    if kind == "e2m1":
        return []
    own = zero + 128 if kind == "signed" else zero
    width = "nibbles" if kind == "nibbles" else "bytes"
    offset = -(own + codes.LEADING.value[f"{width} {name}"])
    if width == "bytes" and name == "bf16":
        return [np.full(threads, offset, np.float32).view(np.uint32)] * 4
    pair = torch.full((threads, 2), offset, dtype=TYPES[name])
    assert float(pair[0, 0]) == offset
    return [pair.view(torch.int16).numpy().reshape(-1).view(np.uint32)] * 2


@pytest.mark.parametrize("text", codes.TEXTS.value)
def test_ptx_decodes_every_byte(text):
    kind, name, field = text.split()
    words, octets = _words()
    for zero in (0,) if kind in ("signed", "e2m1") else (0, 8, 16, 128):
        found = ptx.run(codes.TEXTS.value[text], 2, [words, *_offsets(kind, name, zero, len(words))])
        read = torch.cat([ptx.halves(word, TYPES[name]) for word in found], 1)
        expected = _numbers(kind, int(field), octets, zero).to(TYPES[name])
        assert torch.equal(read.view(torch.int16), expected.view(torch.int16))


@triton.jit
def _decode(raw, out, zero, field: tl.constexpr, FORM: tl.constexpr, DECODING: tl.constexpr):
    at = tl.arange(0, 256)
    found = codes.decoded(tl.load(raw + at), zero, field, FORM, tl.float16, DECODING)
    tl.store(out + at, found)


FORMS = [
    pytest.param(Form("e4m3"), lambda: BYTES.view(torch.float8_e4m3fn), id="e4m3"),
    pytest.param(Form("e5m2"), lambda: BYTES.view(torch.float8_e5m2), id="e5m2"),
    pytest.param(Form("int8"), lambda: BYTES.view(torch.int8), id="int8"),
    pytest.param(Form("int", 8), lambda: BYTES.double() - 3, id="bytes"),
    pytest.param(Form("int", 4), lambda: (BYTES >> 4).double() - 3, id="nibbles"),
    pytest.param(Form("e2m1", 4), lambda: torch.tensor(E2M1)[(BYTES >> 4).long()], id="e2m1"),
]


@pytest.mark.parametrize(("form", "numbers"), FORMS)
def test_chips_without_ptx_decode_every_byte(form, numbers):
    out = torch.empty(256, dtype=torch.float16)
    _decode[(1,)](BYTES, out, 3, field=form.fields - 1, FORM=form, DECODING="portable")
    np.testing.assert_array_equal(out.numpy(), numbers().half().numpy())
    zero = out == 0
    assert torch.equal(out[zero].signbit(), numbers().float()[zero].signbit())


def test_zero_points_that_bfloat16_could_not_subtract_are_refused():
    values = torch.zeros(2, 16, dtype=torch.uint8)
    weight = IntGroups(4, 32, values, torch.ones(2, 1), zeros=torch.tensor([[8], [129]], dtype=torch.uint8))
    with pytest.raises(TypeError, match="zero points up to 129; expected at most 128"):
        packed(weight)


def test_what_a_chip_has():
    names = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_120", "gfx942", "interpreter"]
    assert [codes.decoding_for(name, "e4m3") for name in names] == [
        *("ptx", "ptx", "ptx_floats8", "ptx_floats8", "ptx_floats8", "portable", "portable")
    ]
    assert codes.decoding_for("sm_90", "int") == "ptx"

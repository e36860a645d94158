"""Decoding of stored codes to numbers of a product's type, exactly: scales multiply sums, not numbers.

Owns: the decoding, in Triton and in PTX. Never does: scale, multiply. Called by: the sums of products.

A code is an integer of up to 8 bits less its zero point, or a float of 4 or 8 bits: bfloat16 and float16 hold each of
them exactly. Chips of NVIDIA decode four codes of a 32-bit register at once. An integer is put into the low bits of a
float whose exponent gives these bits the value 1, so that the sum of that float and a constant is the integer.

DECODING says what the chip has: `portable`, `ptx`, or `ptx_floats8` (and instructions for 8-bit floats).
"""

from __future__ import annotations

from typing import Final, Literal

import triton
import triton.language as tl

from core_kernels.triton import portable

Decoding = Literal["portable", "ptx", "ptx_floats8"]
FLOATS8_FROM: Final = 89
"""Compute capability from which NVIDIA's chips convert 8-bit floats."""
FLOATS8: Final = ("e4m3", "e5m2")

LOW = "and.b32 n, $2, 0x0f0f0f0f;"
HIGH = "shr.b32 n, $2, 4; and.b32 n, n, 0x0f0f0f0f;"
PLAIN = "mov.b32 n, $2;"
SIGNED = "xor.b32 n, $2, 0x80808080;"

INTEGERS_16 = """{{
.reg .b32 n, a, b, one;
{first}
mov.b32 one, {one};
prmt.b32 a, n, {magic}, 0x4140;
prmt.b32 b, n, {magic}, 0x4342;
fma.rn.{type} $0, a, one, $3;
fma.rn.{type} $1, b, one, $4;
}}"""
"""$2: four integers. $3, $4: -(zero + the float without its low bits), four times. $0, $1: four floats."""

INTEGERS_32 = """{{
.reg .b32 n, a, b, c, d;
{first}
prmt.b32 a, n, 0x4b000000, 0x7440;
prmt.b32 b, n, 0x4b000000, 0x7441;
prmt.b32 c, n, 0x4b000000, 0x7442;
prmt.b32 d, n, 0x4b000000, 0x7443;
add.rn.f32 a, a, $3;
add.rn.f32 b, b, $4;
add.rn.f32 c, c, $5;
add.rn.f32 d, d, $6;
cvt.rn.bf16x2.f32 $0, b, a;
cvt.rn.bf16x2.f32 $1, d, c;
}}"""
"""As INTEGERS_16, by way of float32: 8 bits and the leading one of a float are too many for bfloat16."""

FLOATS_4 = """{{
.reg .b32 n, a, b, s, t, power, zero;
{first}
mov.b32 power, {power};
mov.b32 zero, 0x80008000;
prmt.b32 a, n, 0, 0x1404;
prmt.b32 b, n, 0, 0x3424;
and.b32 s, a, 0x80008000;
and.b32 t, b, 0x80008000;
shr.b32 a, a, {shift};
shr.b32 b, b, {shift};
lop3.b32 a, a, {mask}, s, 0xea;
lop3.b32 b, b, {mask}, t, 0xea;
fma.rn.{type} $0, a, power, zero;
fma.rn.{type} $1, b, power, zero;
}}"""
"""$2: four bytes with e2m1 in their high halves. Exponent and mantissa go where the wide type has them, and a power of
two mends the difference of the biases; the addend -0 keeps the sign of zero."""

BF16 = {"type": "bf16x2", "one": "0x3f803f80", "magic": "0x43434343"}
FP16 = {"type": "f16x2", "one": "0x3c003c00", "magic": "0x64646464"}
E2M1_BF16 = {"type": "bf16x2", "shift": "6", "mask": "0x01c001c0", "power": "0x7e807e80"}
E2M1_FP16 = {"type": "f16x2", "shift": "3", "mask": "0x0e000e00", "power": "0x74007400"}
TEXTS: Final = tl.constexpr(
    {
        "nibbles bf16 0": INTEGERS_16.format(first=LOW, **BF16),
        "nibbles bf16 1": INTEGERS_16.format(first=HIGH, **BF16),
        "nibbles fp16 0": INTEGERS_16.format(first=LOW, **FP16),
        "nibbles fp16 1": INTEGERS_16.format(first=HIGH, **FP16),
        "bytes bf16 0": INTEGERS_32.format(first=PLAIN),
        "signed bf16 0": INTEGERS_32.format(first=SIGNED),
        "bytes fp16 0": INTEGERS_16.format(first=PLAIN, **FP16),
        "signed fp16 0": INTEGERS_16.format(first=SIGNED, **FP16),
        "e2m1 bf16 0": FLOATS_4.format(first="shl.b32 n, $2, 4;", **E2M1_BF16),
        "e2m1 bf16 1": FLOATS_4.format(first=PLAIN, **E2M1_BF16),
        "e2m1 fp16 0": FLOATS_4.format(first="shl.b32 n, $2, 4;", **E2M1_FP16),
        "e2m1 fp16 1": FLOATS_4.format(first=PLAIN, **E2M1_FP16),
    }
)
"""PTX by codes, type and field of the byte; a constant of Triton, so that other texts make other kernels."""
LEADING: Final = tl.constexpr(
    {"nibbles bf16": 128.0, "nibbles fp16": 1024.0, "bytes bf16": 8388608.0, "bytes fp16": 1024.0}
)
"""The float whose low bits an integer replaces."""


def decoding_for(architecture: str, code: str) -> Decoding:
    """Return what a chip such as `sm_90` or `gfx942` has for decoding. code: of a `Form`."""
    number = architecture.removeprefix("sm_")
    if number == architecture or not number.isdigit():
        return "portable"
    return "ptx_floats8" if int(number) >= FLOATS8_FROM and code in FLOATS8 else "ptx"


@triton.constexpr_function
def _text(kind: str, compute: tl.dtype, field: int) -> str:
    text: str = TEXTS.value[f"{kind} {compute} {field}"]
    return text


@triton.constexpr_function
def _leading(kind: str, compute: tl.dtype) -> float:
    leading: float = LEADING.value[f"{kind} {compute}"]
    return leading


@triton.jit
def _integers(
    raw: tl.tensor, zero: tl.tensor, kind: tl.constexpr, width: tl.constexpr, field: tl.constexpr, dtype: tl.constexpr
) -> tl.tensor:
    """Return the integers of a field less their zero points. kind: `nibbles`, `bytes`, or `signed`: bytes whose zero is
    128 more than it was. width: `nibbles` or `bytes`.
    """
    offset = -(zero.to(tl.float32) + _leading(width, dtype))
    narrow = offset.to(dtype)
    text: tl.constexpr = _text(kind, dtype, field)
    if width == "bytes" and dtype == tl.bfloat16:
        result = tl.inline_asm_elementwise(text, "=r,=r,r,r,r,r,r", [raw, offset], narrow.dtype, is_pure=True, pack=4)
    else:
        result = tl.inline_asm_elementwise(text, "=r,=r,r,r,r", [raw, narrow], narrow.dtype, is_pure=True, pack=4)
    return result


@triton.jit
def _by_ptx(raw: tl.tensor, zero: tl.tensor, field: tl.constexpr, FORM: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
    if FORM.code == "e2m1":
        text: tl.constexpr = _text("e2m1", dtype, field)
        kind = tl.full([], 0.0, dtype).dtype
        result = tl.inline_asm_elementwise(text, "=r,=r,r", [raw], kind, is_pure=True, pack=4)
    elif FORM.code == "int8":
        result = _integers(raw, zero + 128, "signed", "bytes", field, dtype)
    elif FORM.low_bits == 8:
        result = _integers(raw, zero, "bytes", "bytes", field, dtype)
    else:
        result = _integers(raw, zero, "nibbles", "nibbles", field, dtype)
    return result


@triton.jit
def portable_number(raw: tl.tensor, field: tl.constexpr, FORM: tl.constexpr) -> tl.tensor:
    """Decode the codes of a field, without zero points: float32."""
    if FORM.code == "e4m3":
        result = portable.decode_e4m3(raw)
    elif FORM.code == "e5m2":
        result = portable.decode_e5m2(raw)
    elif FORM.code == "int8":
        result = raw.to(tl.int8, bitcast=True).to(tl.float32)
    else:
        code = raw.to(tl.int32)
        if FORM.low_bits < 8:
            code = (code >> (field * FORM.low_bits)) & ((1 << FORM.low_bits) - 1)
        if FORM.code == "e2m1":
            result = portable.decode_e2m1(code)
        else:
            result = code.to(tl.float32)
    return result


@triton.jit
def decoded(
    raw: tl.tensor,
    zero: tl.tensor,
    field: tl.constexpr,
    FORM: tl.constexpr,
    dtype: tl.constexpr,
    DECODING: tl.constexpr,
) -> tl.tensor:
    """Return the codes of a field less their zero points, in the product's type: [rows, width]. zero: int32 [rows, 1] or
    one.
    """
    if dtype == tl.float8e4nv:
        result = raw.to(tl.float8e4nv, bitcast=True)
    elif FORM.code == "e4m3" and DECODING == "ptx_floats8":
        result = raw.to(tl.float8e4nv, bitcast=True).to(dtype)
    elif FORM.code == "e5m2" and DECODING == "ptx_floats8":
        result = raw.to(tl.float8e5, bitcast=True).to(dtype)
    elif DECODING == "portable" or FORM.is_float8 or dtype == tl.float32:
        number = portable_number(raw, field, FORM)
        if FORM.code == "int":
            number = number - zero.to(tl.float32)
        result = portable.cast(number, dtype)
    else:
        result = _by_ptx(raw, zero, field, FORM, dtype)
    return result

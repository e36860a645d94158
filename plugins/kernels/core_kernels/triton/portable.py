"""Operations that Triton's interpreter computes differently from a GPU, written so that both give the same results.

Owns: products, rounding and division for every kernel here. Never does: know what a kernel is for.
Called by: all Triton kernels, including attention.

The interpreter multiplies the bits of bfloat16 as if they were integers, cuts bfloat16 off where it should round, and
rounds 8-bit floats wrongly. 8-bit floats are therefore bytes everywhere, encoded and decoded by integer arithmetic: the
same bits on every chip, including those without instructions for them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.language.target_info import is_hip

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether kernels run in the interpreter; decided when triton is imported."""
WAVE = tl.constexpr(64)
WAIT = tl.constexpr("s_waitcnt vmcnt(0)\nv_mov_b32 $0, $1")
"""AMD's instructions that wait for a wave's own stores."""


@triton.jit
def begin(EARLY: tl.constexpr) -> None:
    """Begin a kernel. EARLY: it is launched while the kernels before it still run, whose results it waits for here; the
    next kernel may then be launched likewise.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def finish_stores() -> None:
    """Wait until all threads of a program have stored, so that what one of them then publishes covers the stores of all."""
    if not INTERPRETED and is_hip():
        # A barrier of AMD's does not wait for the stores of other waves.
        tl.inline_asm_elementwise(WAIT, "=v,v,~{memory}", [tl.arange(0, WAVE)], tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()


@triton.jit
def dot(a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> tl.tensor:
    """Return acc + a @ b, float32 [M, N]; a [M, K] and b [K, N] have one type: bfloat16, float16 or float32.

    float32 is multiplied as such, never as tf32.
    """
    if INTERPRETED:
        # in float64 the order of summation leaves no trace; the interpreter's order differs from a GPU tile's
        product = tl.dot(widen(a).to(tl.float64), widen(b).to(tl.float64), out_dtype=tl.float64)
        return acc + product.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def dot_int8(a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> tl.tensor:
    """Return acc + a @ b, exactly: int32 [M, N] of int8 a [M, K] and b [K, N]."""
    if INTERPRETED:
        product = tl.dot(a.to(tl.float64), b.to(tl.float64), out_dtype=tl.float64)
        return acc + product.to(tl.int32)
    return tl.dot(a, b, acc, out_dtype=tl.int32)


@triton.jit
def widen(x: tl.tensor) -> tl.tensor:
    """Convert x to float32, exactly; x is bfloat16, float16, float32 or an integer."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        bits = x.to(tl.uint16, bitcast=True).to(tl.uint32)
        return (bits << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def cast(x: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Round float32 x to another type, to the nearest, ties to even. dtype: bfloat16, float16 or float32."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        odd = (bits >> 16) & 1
        rounded = (bits + 0x7FFF + odd) >> 16
        quiet = (bits >> 16) | 0x40
        short = tl.where(x == x, rounded, quiet)
        return short.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)


@triton.jit
def store(pointer: tl.tensor, x: tl.tensor, mask: tl.tensor = None) -> None:
    """Store float32 x, rounded to the pointer's type as `cast` rounds."""
    value = cast(x, pointer.dtype.element_ty)
    tl.store(pointer, value, mask=mask)


@triton.jit
def div(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """Return x / y in float32, correctly rounded."""
    return tl.math.div_rn(x, y)


@triton.jit
def encode_e4m3(x: tl.tensor) -> tl.tensor:
    """Encode float32 x as bytes of float8_e4m3fn: to the nearest, ties to even; clamped to ±448, 0x7F for NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = bits & 0x7FFFFFFF
    odd = (size >> 20) & 1
    normal = ((size + 0x7FFFF + odd) >> 20) - 960  # 8 * (127 - 7): the difference of the exponent biases
    # From 2^14 on, a float32's last bit is 2^-9, the last bit of the type's smallest numbers: the addition rounds.
    near_zero = (tl.abs(x) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(size < 0x3C800000, near_zero, normal)
    code = tl.where(size > 0x43E00000, 0x7E, code)
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (sign | code).to(tl.uint8)


@triton.jit
def encode_e5m2(x: tl.tensor) -> tl.tensor:
    """Encode float32 x as bytes of float8_e5m2: to the nearest, ties to even; clamped to ±57344, 0x7F for NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = bits & 0x7FFFFFFF
    odd = (size >> 21) & 1
    normal = ((size + 0xFFFFF + odd) >> 21) - 448  # 4 * (127 - 15)
    near_zero = (tl.abs(x) + 128.0).to(tl.uint32, bitcast=True) - 0x43000000
    code = tl.where(size < 0x38800000, near_zero, normal)
    code = tl.where(size > 0x47600000, 0x7B, code)
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (sign | code).to(tl.uint8)


@triton.jit
def decode_e4m3(codes: tl.tensor) -> tl.tensor:
    """Decode bytes of float8_e4m3fn to float32, exactly. codes: uint8."""
    code = codes.to(tl.uint16)
    half = ((code & 0x80) << 8) | ((code & 0x7F) << 7)  # float16 with its exponent 8 too small
    value = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((code & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def decode_e5m2(codes: tl.tensor) -> tl.tensor:
    """Decode bytes of float8_e5m2 to float32, exactly. codes: uint8."""
    half = codes.to(tl.uint16) << 8
    return half.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def decode_e2m1(codes: tl.tensor) -> tl.tensor:
    """Decode integers of 4 bits as e2m1 to float32, exactly. codes: int32."""
    half = ((codes & 8) << 12) | ((codes & 7) << 9)  # float16 with its exponent 14 too small
    return half.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """Return 1 / (1 + e^-x) in float32."""
    return div(1.0, 1.0 + tl.exp(-x))


@triton.jit
def tanh(x: tl.tensor) -> tl.tensor:
    """Return the hyperbolic tangent in float32, accurate also near 0, where 1 - e^-2x would lose its digits."""
    size = tl.abs(x)
    square = x * x
    tail = 62.0 / 2835.0
    tail = tail * square - 17.0 / 315.0
    tail = tail * square + 2.0 / 15.0
    tail = tail * square - 1.0 / 3.0
    near_zero = x + x * square * tail
    decay = tl.exp(-2.0 * size)
    far = div(1.0 - decay, 1.0 + decay)
    return tl.where(size < 0.25, near_zero, tl.where(x < 0, -far, far))


@triton.jit
def expm1(x: tl.tensor) -> tl.tensor:
    """Return e^x - 1 in float32, accurate also near 0, where the difference would lose its digits."""
    tail = x * (1.0 / 5040.0) + 1.0 / 720.0
    tail = tail * x + 1.0 / 120.0
    tail = tail * x + 1.0 / 24.0
    tail = tail * x + 1.0 / 6.0
    tail = tail * x + 0.5
    near_zero = x + x * x * tail
    return tl.where(tl.abs(x) < 0.25, near_zero, tl.exp(x) - 1.0)

"""The keyed noise of `core_runtime.sampling.noise`, bit for bit.

Owns: Philox, the logarithm and the noise as Triton functions. Never does: read logits. Called by: the race.

Every product and every sum is rounded separately, so kernels with this noise are compiled without fused multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def philox(
    group: tl.tensor, index: tl.tensor, choice: tl.tensor, purpose: tl.tensor, low: tl.tensor, high: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return four random words, uint32, of the counter (group, index, choice, purpose) under the key (low, high)."""
    first = group
    second = index + tl.zeros_like(group)
    third = choice + tl.zeros_like(group)
    fourth = purpose + tl.zeros_like(group)
    first_key = low + tl.zeros_like(group)
    second_key = high + tl.zeros_like(group)
    for _ in tl.static_range(10):
        product_high = tl.umulhi(first, tl.full(first.shape, 0xD2511F53, tl.uint32))
        product_low = first * tl.full(first.shape, 0xD2511F53, tl.uint32)
        other_high = tl.umulhi(third, tl.full(first.shape, 0xCD9E8D57, tl.uint32))
        other_low = third * tl.full(first.shape, 0xCD9E8D57, tl.uint32)
        first = other_high ^ second ^ first_key
        third = product_high ^ fourth ^ second_key
        second = other_low
        fourth = product_low
        first_key = first_key + tl.full(first.shape, 0x9E3779B9, tl.uint32)
        second_key = second_key + tl.full(first.shape, 0xBB67AE85, tl.uint32)
    return first, second, third, fourth


@triton.jit
def natural_log(values: tl.tensor) -> tl.tensor:
    """Return ln of positive normal float32 values."""
    bits = values.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    mantissa = bits - (exponent << 23)
    fraction = mantissa.to(tl.float32, bitcast=True) - 1.0
    scale = exponent.to(tl.float32)
    tail = tl.full(fraction.shape, -0.07636810094118118, tl.float32)
    tail = tail * fraction + 0.12765076756477356
    tail = tail * fraction - 0.13160982728004456
    tail = tail * fraction + 0.14201347529888153
    tail = tail * fraction - 0.1662323921918869
    tail = tail * fraction + 0.20001240074634552
    tail = tail * fraction - 0.2500082552433014
    tail = tail * fraction + 0.3333333134651184
    near_one = fraction * fraction * (fraction * tail - 0.5) + fraction
    low = scale * 1.4286068203094172e-06 + near_one
    return scale * 0.693145751953125 + low


@triton.jit
def uniform(words: tl.tensor) -> tl.tensor:
    """Return x = (w + 1/2) * 2^-32, rounded once. words: uint32."""
    doubled = words.to(tl.int64) * 2 + 1
    return doubled.to(tl.float32) * 1.1641532182693481e-10


@triton.jit
def gumbel(words: tl.tensor) -> tl.tensor:
    """Return -ln E for each word, E = -log1p(-x), restoring what the rounding of 1 - x lost. words: uint32."""
    x = uniform(words)
    u = uniform(~words)
    rounding = (1.0 - u) - x
    lost = tl.where(u >= 0.5, rounding, 0.0)
    correction = lost + lost * x
    exponential = -(natural_log(u) + correction)
    return -natural_log(exponential)

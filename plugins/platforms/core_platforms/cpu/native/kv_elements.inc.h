// Element types of a KV cache: how each is packed, and its conversion to and from the type that products read.
//
// 8-bit numbers widen exactly to pairs of bfloat16; float16 widens to float32. E4M3 has no infinity (OCP 8-bit
// floating point specification 1.0). Values beyond a type's largest number are stored as that number, NaN as NaN.

// Bytes of some numbers of keys and of values, and the number of neighbouring elements that a product sums and that are
// stored together.
LANE long key_bytes(int element, long numbers) {
    return element == kCacheF32 ? numbers * 4 : element <= kCacheF16 ? numbers * 2 : numbers;
}
LANE long value_bytes(int element, long numbers) { return element == kCacheK8V4 ? numbers / 2 : key_bytes(element, numbers); }
LANE long element_pair(int element) { return element == kCacheF32 || element == kCacheF16 ? 1 : 2; }
LANE bool element_widens(int element) { return element > kCacheBF16; }

// The exact value of an 8-bit float in the low byte (`Shift` 0) or in the next byte (8) of each lane.
template <int Element, int Shift> LANE F small_float(I w) {
    constexpr int mantissa = Element == kCacheE4M3 ? 20 : 21; // position in float32 of the lowest mantissa bit
    constexpr float bias = Element == kCacheE4M3 ? 0x1p120f : 0x1p112f;
    // Any magnitude above the largest number becomes infinity when multiplied by this.
    constexpr float beyond = Element == kCacheE4M3 ? 7.3e35f : 5.67e33f;
    I magnitude = shift_left<mantissa - Shift>(iand(w, iset1(0x7f << Shift)));
    F x = mul(as_float(ixor(magnitude, shift_left<24 - Shift>(iand(w, iset1(0x80 << Shift))))), set1(bias));
    return fma(mul(x, set1(beyond)), zero(), x); // infinity * 0 is NaN
}

// Pairs of signed bytes, in the low half of each lane, as floats: 2^23 + x + 128 - (2^23 + 128).
LANE void split_int8(I w, F &even, F &odd) {
    w = ixor(w, iset1(0x8080));
    const F offset = set1(8388608.0f + 128);
    even = sub(as_float(ixor(iand(w, iset1(0xff)), iset1(0x4b000000))), offset);
    odd = sub(as_float(ixor(shift_right<8>(w), iset1(0x4b000000))), offset);
}

// 32 bytes to 16 lanes: pairs of bfloat16, or float32 from float16.
template <int Element> LANE I widen(const uint8_t *p) {
    if (Element == kCacheF16) return as_int(load_half((const uint16_t *)p));
#ifdef CORE_WIDEN
    return Element == kCacheI8 ? widen_int8(p) : Element == kCacheE4M3 ? widen_float8<3>(p) : widen_float8<2>(p);
#else
    I w = load_u16((const uint16_t *)p);
    F even, odd;
    if (Element == kCacheI8)
        split_int8(w, even, odd);
    else
        even = small_float<Element, 0>(w), odd = small_float<Element, 8>(w);
    return ixor(iand(as_int(odd), iset1((int32_t)0xffff0000)), shift_right<16>(as_int(even)));
#endif
}

template <int Element> static void widen_all(const uint8_t *from, uint8_t *to, long bytes) {
    for (long i = 0; i < bytes; i += 32) istore(to + 2 * i, widen<Element>(from + i));
}

// Widens 16 keys or values of `width` numbers; 4-bit codes are widened by kv_codes.inc.h.
static void widen_any(int element, const uint8_t *from, uint8_t *to, long width) {
    const long bytes = key_bytes(element, 16 * width);
    if (element == kCacheF16) widen_all<kCacheF16>(from, to, bytes);
    if (element == kCacheE4M3) widen_all<kCacheE4M3>(from, to, bytes);
    if (element == kCacheE5M2) widen_all<kCacheE5M2>(from, to, bytes);
    if (element >= kCacheI8) widen_all<kCacheI8>(from, to, bytes);
}

// The bits of x as a float with Mantissa bits, rounded to the nearest, ties to even. Adding and subtracting a large
// enough power of two rounds to the last place; below the least normal number that power stays constant, which rounds
// subnormals correctly.
template <int Mantissa, int Bits> LANE I narrow_float(F x, float most, float least, float unbias) {
    F a = min(set1(most), abs(x)); // keeps NaN
    F power = max(as_float(iand(as_int(a), iset1(0x7f800000))), set1(least));
    F place = mul(power, set1(1.5f * (1 << (23 - Mantissa))));
    I code = shift_right<23 - Mantissa>(as_int(mul(sub(add(a, place), place), set1(unbias))));
    I mask = iset1((1 << (Bits - 1)) - 1), nan = shift_right<7>(code);
    // Only NaN has more than seven bits.
    if (Bits == 8) code = ixor(iand(code, ixor(nan, iset1(-1))), iand(nan, iset1(0xf)));
    return ixor(iand(code, mask), shift_left<Bits - 1>(shift_right<31>(as_int(x))));
}

// The bits of x * inverse in the low end of each lane.
template <int Element> LANE I narrow(F x, F inverse) {
    if (Element == kCacheBF16 || Element == kCacheF32) x = mul(x, inverse);
    if (Element == kCacheF32) return as_int(x);
    if (Element == kCacheBF16) return shift_right<16>(bf16_bits(x));
    if (Element == kCacheF16) return narrow_float<10, 16>(mul(x, inverse), 65504, 0x1p-14f, 0x1p-112f);
    if (Element == kCacheE4M3) return narrow_float<3, 8>(mul(x, inverse), 448, 0x1p-6f, 0x1p-120f);
    if (Element == kCacheE5M2) return narrow_float<2, 8>(mul(x, inverse), 57344, 0x1p-14f, 0x1p-112f);
    return iand(round_to_int(mul(x, inverse)), iset1(0xff));
}

// Largest magnitude of the types that may have a scale per token and head.
LANE float element_most(int element) { return element == kCacheI8 ? 127.0f : element == kCacheE4M3 ? 448.0f : 57344.0f; }

// Sixteen lanes in one AVX-512 register (F, BW, VL, DQ; VNNI and BF16 where the including file is compiled for them).
#include <immintrin.h>
#include <string.h>

#define LANE static inline __attribute__((always_inline))

constexpr int kWideRows = 12; // rows of a linear's inner block that keep both vectors of a panel in registers
constexpr int kWideIntRows = 6; // same, where integer and float sums share the registers
constexpr int kMaxRows = 12;
constexpr int kAttentionSums = 24; // accumulators of one block of rows that fit into registers
constexpr int kMaxIntRows = 6;
constexpr bool kDirectPlanes = true; // bit planes are multiplied without expanding a panel when rows are few

typedef __m512 F;
// With the lanes' own type the compiler keeps integer sums in registers.
typedef int32_t I __attribute__((vector_size(64)));

LANE F zero() { return _mm512_setzero_ps(); }
LANE F set1(float x) { return _mm512_set1_ps(x); }
LANE F load(const float *p) { return _mm512_loadu_ps(p); }
LANE F load_part(const float *p, long n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
LANE F load_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
#define CORE_HALF 1
// To the nearest, ties to even; numbers beyond the largest become it.
LANE void store_half(uint16_t *p, F x) {
    x = _mm512_min_ps(set1(65504), _mm512_max_ps(set1(-65504), x));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
LANE F round_half(F x) {
    x = _mm512_min_ps(set1(65504), _mm512_max_ps(set1(-65504), x));
    return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
LANE void store(float *p, F x) { _mm512_storeu_ps(p, x); }
LANE void store_part(float *p, F x, long n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x); }
LANE F add(F a, F b) { return _mm512_add_ps(a, b); }
LANE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
LANE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
LANE F div(F a, F b) { return _mm512_div_ps(a, b); }
LANE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
LANE F max(F a, F b) { return _mm512_max_ps(a, b); }
LANE F min(F a, F b) { return _mm512_min_ps(a, b); }
LANE F abs(F a) { return _mm512_abs_ps(a); }

LANE I izero() { return (I)_mm512_setzero_si512(); }
LANE I iset1(int32_t x) { return (I)_mm512_set1_epi32(x); }
LANE I iload(const void *p) { return (I)_mm512_loadu_si512(p); }
LANE I iota() { return (I)_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
LANE I iadd(I a, I b) { return (I)_mm512_add_epi32((__m512i)a, (__m512i)b); }
LANE I iand(I a, I b) { return a & b; }
LANE I ior(I a, I b) { return a | b; }
LANE I ixor(I a, I b) { return a ^ b; }
LANE void istore(void *p, I a) { _mm512_storeu_si512(p, (__m512i)a); }
// Low halves of the 64-bit products of unsigned lanes and m; the high halves go to `high`.
LANE I multiply_wide(I a, uint32_t m, I &high) {
    __m512i factor = _mm512_set1_epi32((int32_t)m), even = _mm512_mul_epu32((__m512i)a, factor);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), factor);
    high = (I)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    return (I)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
// Lane 4 * b + i holds 4 * i + b, so that four such vectors are in order after a transposition in blocks of four
// lanes.
LANE I transposed_iota() { return (I)_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15); }
LANE void transpose(I (&x)[4]) {
    __m512i a = _mm512_unpacklo_epi32((__m512i)x[0], (__m512i)x[1]), b = _mm512_unpackhi_epi32((__m512i)x[0], (__m512i)x[1]);
    __m512i c = _mm512_unpacklo_epi32((__m512i)x[2], (__m512i)x[3]), d = _mm512_unpackhi_epi32((__m512i)x[2], (__m512i)x[3]);
    x[0] = (I)_mm512_unpacklo_epi64(a, c), x[1] = (I)_mm512_unpackhi_epi64(a, c);
    x[2] = (I)_mm512_unpacklo_epi64(b, d), x[3] = (I)_mm512_unpackhi_epi64(b, d);
}
LANE uint32_t lanes_above(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); } // bit i: a > b in lane i
template <int S> LANE I shift_right(I a) { return (I)_mm512_srli_epi32((__m512i)a, S); }
template <int S> LANE I shift_left(I a) { return (I)_mm512_slli_epi32((__m512i)a, S); }
LANE F to_float(I a) { return _mm512_cvtepi32_ps((__m512i)a); }
LANE I round_to_int(F a) { return (I)_mm512_cvtps_epi32(a); } // nearest, ties to even
#define CORE_SCALE_POWER 1
LANE F fraction(F a) { return _mm512_reduce_ps(a, 1); } // a - floor(a); 0 for infinities
LANE F scale_power(F a, F x) { return _mm512_scalef_ps(a, x); } // a * 2^floor(x)
LANE I truncate(F a) { return (I)_mm512_cvttps_epi32(a); } // toward zero
LANE F as_float(I a) { return (F)a; }
LANE I as_int(F a) { return (I)a; }
LANE I load_u16(const uint16_t *p) { return (I)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)); }
LANE I load_u8(const uint8_t *p) { return (I)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
LANE I load_i8(const uint8_t *p) { return (I)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
// Looks up, in a table of sixteen entries, the entry named by the lower four bits of each lane, or of each byte below
// 16.
LANE F lookup(F table, I index) { return _mm512_permutexvar_ps((__m512i)index, table); }
LANE I load_pair(const uint8_t *p) { // 64 bits, repeated
    int64_t pair;
    memcpy(&pair, p, 8);
    return (I)_mm512_set1_epi64(pair);
}
LANE I load_bytes(const uint8_t *p) { return (I)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p)); }
LANE I lookup_bytes(I table, I index) { return (I)_mm512_shuffle_epi8((__m512i)table, (__m512i)index); }
#define CORE_PICK 1
// Where `lanes` has a bit, the lane of `from` that `index` names; else the lane of x.
LANE I pick(I x, uint32_t lanes, I from, I index) {
    return (I)_mm512_mask_permutexvar_epi32((__m512i)x, (__mmask16)lanes, (__m512i)index, (__m512i)from);
}
// The lanes of x that have a bit, one after the other.
LANE I compress(I x, uint32_t lanes) { return (I)_mm512_maskz_compress_epi32((__mmask16)lanes, (__m512i)x); }
LANE void store_i8(int8_t *p, I a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)a)); }
LANE void store_u16(uint16_t *p, I a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)a)); }
// value where low <= lane < high, else other
LANE F select_range(F value, F other, int32_t low, int32_t high) {
    __m512i lane = (__m512i)iota();
    __mmask16 mask = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(low));
    mask &= _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(high));
    return _mm512_mask_blend_ps(mask, other, value);
}

// Of each four lanes a0 + a1, a2 + a3, b0 + b1, b2 + b3.
LANE F add_neighbours(F a, F b) { return add(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd)); }
LANE float sum(F a) {
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
LANE float largest(F a) {
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
LANE int32_t isum(I a) { return _mm512_reduce_add_epi32((__m512i)a); }

// acc + four products of unsigned bytes `w` (u7: below 128) and signed bytes `x` a lane; exact.
#if defined(__AVX512VNNI__)
LANE I dot_u7(I acc, I w, I x) { return (I)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x); }
LANE I dot_u8(I acc, I w, I x) { return (I)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x); }
#else
LANE I dot_u7(I acc, I w, I x) { // below 128, so that the 16-bit pairs cannot saturate
    return iadd(acc, (I)_mm512_madd_epi16(_mm512_maddubs_epi16((__m512i)w, (__m512i)x), _mm512_set1_epi16(1)));
}
// The same in 16 bits, two sums a lane, each of two products; and acc + both sums of each lane.
#define CORE_PAIR_SUMS 1
LANE I add_products(I pairs, I w, I x) {
    return (I)_mm512_add_epi16((__m512i)pairs, _mm512_maddubs_epi16((__m512i)w, (__m512i)x));
}
LANE I add_pairs(I acc, I pairs) { return iadd(acc, (I)_mm512_madd_epi16((__m512i)pairs, _mm512_set1_epi16(1))); }
LANE I dot_u8(I acc, I w, I x) {
    I low = iand(w, iset1(0x0f0f0f0f)), high = iand(shift_right<4>(w), iset1(0x0f0f0f0f));
    return iadd(dot_u7(acc, low, x), shift_left<4>(dot_u7(izero(), high, x)));
}
#endif

#if defined(__AVX512BF16__)
#define CORE_BF16_DOT 1
LANE F dot_bf16(F acc, I w, I x) { return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x); }
LANE __m256i narrow_bf16(F a) { return (__m256i)_mm512_cvtneps_pbh(a); }
LANE void store_bf16(uint16_t *p, F a) { _mm256_storeu_si256((__m256i *)p, narrow_bf16(a)); }
// Widens bytes with each four in the order 0, 2, 1, 3: bytes expand to pairs of 16 bits that are two apart.
LANE void store_bf16_apart(uint16_t *p, F a) {
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    _mm256_storeu_si256((__m256i *)p, _mm256_shuffle_epi8(narrow_bf16(a), _mm256_broadcastsi128_si256(order)));
}
// A table of sixteen bf16, stored twice so that only the lower four bits of a 16-bit index matter.
LANE I bf16_table(const float *p) { return (I)_mm512_broadcast_i64x4(narrow_bf16(load(p))); }
LANE I lookup_bf16(I table, I index) { return (I)_mm512_permutexvar_epi16((__m512i)index, (__m512i)table); }
// `bits`, replaced by the table's entries where the 16-bit index is below `limit`.
LANE I replace_below(I bits, I table, I index, int limit) {
    __mmask32 low = _mm512_cmplt_epu16_mask((__m512i)index, _mm512_set1_epi16((short)limit));
    return (I)_mm512_mask_permutexvar_epi16((__m512i)bits, low, (__m512i)index, (__m512i)table);
}
LANE I pack_bf16(F low, F high) { return (I)_mm512_cvtne2ps_pbh(high, low); }
#endif

// Converts 32 8-bit numbers to bf16, exactly: floats of (exponent, mantissa) bits (4, 3) or (5, 2), and integers.
#define CORE_WIDEN 1
template <int Mantissa> LANE I widen_float8(const uint8_t *p) {
    constexpr short bias = Mantissa == 3 ? 120 << 7 : 112 << 7, exponent = Mantissa == 3 ? 0x78 : 0x7c;
    constexpr short special = Mantissa == 3 ? 0x7f : 0x7c; // magnitudes from here on are NaN (or infinity)
    const __m512i below = // multiples of the least number, replacing those with a zero exponent
        Mantissa == 3 ? _mm512_zextsi128_si512(_mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60))
                      : _mm512_zextsi128_si512(_mm_setr_epi16(0, 0x3780, 0x3800, 0x3840, 0, 0, 0, 0));
    const __m512i w = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
    __m512i x = _mm512_and_si512(_mm512_slli_epi16(w, 7 - Mantissa), _mm512_set1_epi16(0x7f << (7 - Mantissa)));
    x = _mm512_add_epi16(x, _mm512_set1_epi16(bias));
    x = _mm512_mask_permutexvar_epi16(x, _mm512_testn_epi16_mask(w, _mm512_set1_epi16(exponent)), w, below);
    const __m512i top = _mm512_and_si512(w, _mm512_set1_epi16(special));
    x = _mm512_or_si512(x, _mm512_and_si512(w, _mm512_set1_epi16((short)0x8000)));
    const __mmask32 odd = _mm512_cmpeq_epi16_mask(top, _mm512_set1_epi16(special));
    return (I)_mm512_mask_blend_epi16(odd, x, _mm512_set1_epi16(0x7fc0));
}
LANE I widen_int8(const uint8_t *p) {
    __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
    __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p + 16))));
#if defined(__AVX512BF16__)
    return pack_bf16(low, high);
#else
    __m256i a = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(low), 16));
    __m256i b = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(high), 16));
    return (I)_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
#endif
}

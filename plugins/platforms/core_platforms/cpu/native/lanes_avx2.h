// Sixteen lanes in two AVX2 registers (with FMA and F16C).
#include <immintrin.h>
#include <string.h>

#define LANE static inline __attribute__((always_inline))

constexpr int kWideRows = 2; // rows of a linear's inner block that keep both vectors of a panel in registers
constexpr int kWideIntRows = 1; // same, where integer and float sums share the registers
constexpr int kMaxRows = 4;
constexpr int kAttentionSums = 6; // accumulators of one block of rows that fit into registers
constexpr int kMaxIntRows = 4;
constexpr bool kDirectPlanes = true; // bit planes are multiplied without expanding a panel when rows are few

struct F {
    __m256 a, b;
};
struct I {
    __m256i a, b;
};

LANE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
LANE F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LANE F load(const float *p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LANE F load_part(const float *p, long n) {
    float part[16] = {0};
    memcpy(part, p, n * sizeof(float));
    return load(part);
}
LANE F load_half(const uint16_t *p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
LANE void store(float *p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
LANE void store_part(float *p, F x, long n) {
    float part[16];
    store(part, x);
    memcpy(p, part, n * sizeof(float));
}
LANE F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
LANE F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
LANE F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
LANE F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
LANE F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
LANE F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
LANE F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
LANE F abs(F x) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
#define CORE_HALF 1
// To the nearest, ties to even; numbers beyond the largest become it.
LANE F within_half(F x) { return min(set1(65504), max(set1(-65504), x)); }
LANE __m128i narrow_half(__m256 x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
LANE void store_half(uint16_t *p, F x) {
    x = within_half(x);
    _mm_storeu_si128((__m128i *)p, narrow_half(x.a));
    _mm_storeu_si128((__m128i *)(p + 8), narrow_half(x.b));
}
LANE F round_half(F x) {
    x = within_half(x);
    return {_mm256_cvtph_ps(narrow_half(x.a)), _mm256_cvtph_ps(narrow_half(x.b))};
}

LANE I izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
LANE I iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
LANE I iload(const void *p) {
    return {_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
LANE I iota() { return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)}; }
LANE I iadd(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
LANE I iand(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
LANE I ior(I x, I y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
LANE I ixor(I x, I y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
LANE void istore(void *p, I x) {
    _mm256_storeu_si256((__m256i *)p, x.a);
    _mm256_storeu_si256((__m256i *)p + 1, x.b);
}
// Low halves of the 64-bit products of unsigned lanes and m; the high halves go to `high`.
LANE __m256i multiply_wide_half(__m256i x, __m256i factor, __m256i &high) {
    __m256i even = _mm256_mul_epu32(x, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), factor);
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
LANE I multiply_wide(I x, uint32_t m, I &high) {
    __m256i factor = _mm256_set1_epi32((int32_t)m);
    I low;
    low.a = multiply_wide_half(x.a, factor, high.a);
    low.b = multiply_wide_half(x.b, factor, high.b);
    return low;
}
// Lane 4 * b + i holds 4 * i + b, so that four such vectors are in order after a transposition in blocks of four
// lanes.
LANE I transposed_iota() {
    return {_mm256_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13), _mm256_setr_epi32(2, 6, 10, 14, 3, 7, 11, 15)};
}
LANE void transpose_half(__m256i &x, __m256i &y, __m256i &z, __m256i &w) {
    __m256i a = _mm256_unpacklo_epi32(x, y), b = _mm256_unpackhi_epi32(x, y);
    __m256i c = _mm256_unpacklo_epi32(z, w), d = _mm256_unpackhi_epi32(z, w);
    x = _mm256_unpacklo_epi64(a, c), y = _mm256_unpackhi_epi64(a, c);
    z = _mm256_unpacklo_epi64(b, d), w = _mm256_unpackhi_epi64(b, d);
}
LANE void transpose(I (&x)[4]) {
    transpose_half(x[0].a, x[1].a, x[2].a, x[3].a);
    transpose_half(x[0].b, x[1].b, x[2].b, x[3].b);
}
LANE uint32_t lanes_above(F x, F y) { // bit i: x > y in lane i
    uint32_t low = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ));
    return low | (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ)) << 8;
}
template <int S> LANE I shift_right(I x) { return {_mm256_srli_epi32(x.a, S), _mm256_srli_epi32(x.b, S)}; }
template <int S> LANE I shift_left(I x) { return {_mm256_slli_epi32(x.a, S), _mm256_slli_epi32(x.b, S)}; }
LANE F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
LANE I round_to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; } // nearest, ties to even
LANE I truncate(F x) { return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)}; } // toward zero
LANE F as_float(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
LANE I as_int(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
LANE I load_u16(const uint16_t *p) {
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)),
            _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
LANE I load_u8(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
LANE I load_i8(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
// Looks up, in a table of sixteen entries, the entry named by the lower four bits of each lane, or of each byte below
// 16.
LANE __m256 lookup_half(F table, __m256i index) {
    __m256 low = _mm256_permutevar8x32_ps(table.a, index), high = _mm256_permutevar8x32_ps(table.b, index);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}
LANE F lookup(F table, I index) { return {lookup_half(table, index.a), lookup_half(table, index.b)}; }
LANE I load_pair(const uint8_t *p) { // 64 bits, repeated
    int64_t pair;
    memcpy(&pair, p, 8);
    return {_mm256_set1_epi64x(pair), _mm256_set1_epi64x(pair)};
}
LANE I load_bytes(const uint8_t *p) {
    __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return {table, table};
}
LANE I lookup_bytes(I table, I index) {
    return {_mm256_shuffle_epi8(table.a, index.a), _mm256_shuffle_epi8(table.b, index.b)};
}
LANE void store_i8(int8_t *p, I x) {
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
LANE void store_u16(uint16_t *p, I x) {
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xd8));
}
LANE __m256 range_mask(__m256i lanes, int32_t low, int32_t high) {
    __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(low), lanes);
    return _mm256_castsi256_ps(_mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lanes)));
}
// value where low <= lane < high, else other
LANE F select_range(F value, F other, int32_t low, int32_t high) {
    return {_mm256_blendv_ps(other.a, value.a, range_mask(iota().a, low, high)),
            _mm256_blendv_ps(other.b, value.b, range_mask(iota().b, low, high))};
}

LANE F add_neighbours(F x, F y) { return {_mm256_hadd_ps(x.a, y.a), _mm256_hadd_ps(x.b, y.b)}; } // see lanes_avx512.h
LANE float sum(F x) {
    __m256 b = _mm256_add_ps(x.a, x.b);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
LANE float largest(F x) {
    __m256 b = _mm256_max_ps(x.a, x.b);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
LANE int32_t isum(I x) {
    __m256i b = _mm256_add_epi32(x.a, x.b);
    __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}

// acc + four products of unsigned bytes `w` (u7: below 128) and signed bytes `x` a lane; exact.
LANE __m256i dot_u7_half(__m256i acc, __m256i w, __m256i x) { // below 128, so the 16-bit sums cannot saturate
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
LANE I dot_u7(I acc, I w, I x) { return {dot_u7_half(acc.a, w.a, x.a), dot_u7_half(acc.b, w.b, x.b)}; }
// The same in 16 bits, two sums a lane, each of two products; and acc + both sums of each lane.
#define CORE_PAIR_SUMS 1
LANE I add_products(I pairs, I w, I x) {
    return {_mm256_add_epi16(pairs.a, _mm256_maddubs_epi16(w.a, x.a)), _mm256_add_epi16(pairs.b, _mm256_maddubs_epi16(w.b, x.b))};
}
LANE I add_pairs(I acc, I pairs) {
    const __m256i ones = _mm256_set1_epi16(1);
    return iadd(acc, {_mm256_madd_epi16(pairs.a, ones), _mm256_madd_epi16(pairs.b, ones)});
}
LANE I dot_u8(I acc, I w, I x) {
    I low = iand(w, iset1(0x0f0f0f0f)), high = iand(shift_right<4>(w), iset1(0x0f0f0f0f));
    return iadd(dot_u7(acc, low, x), shift_left<4>(dot_u7(izero(), high, x)));
}

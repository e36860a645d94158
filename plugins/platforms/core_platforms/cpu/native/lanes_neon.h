// Sixteen lanes in four NEON registers of aarch64 (dot products, 8-bit matrix and BF16 instructions where the including
// file is compiled for them).
#include <arm_neon.h>
#include <string.h>

#define LANE static inline __attribute__((always_inline))

constexpr int kWideRows = 2; // rows of a linear's inner block that keep both vectors of a panel in registers
constexpr int kWideIntRows = 1; // same, where integer and float sums share the registers
constexpr int kMaxRows = 6;
constexpr int kAttentionSums = 6; // accumulators of one block of rows that fit into registers
constexpr int kMaxIntRows = 2;
constexpr bool kDirectPlanes = true; // bit planes are multiplied without expanding a panel when rows are few

struct F {
    float32x4_t v[4];
};
struct I {
    int32x4_t v[4];
};

#define EACH(TYPE, EXPRESSION)                                                                                         \
    TYPE r;                                                                                                            \
    for (int i = 0; i < 4; i++) r.v[i] = EXPRESSION;                                                                   \
    return r

LANE F set1(float x) { EACH(F, vdupq_n_f32(x)); }
LANE F zero() { return set1(0); }
LANE F load(const float *p) { EACH(F, vld1q_f32(p + 4 * i)); }
LANE F load_part(const float *p, long n) {
    float part[16] = {0};
    memcpy(part, p, n * sizeof(float));
    return load(part);
}
LANE F load_half(const uint16_t *p) { EACH(F, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)))); }
LANE void store(float *p, F x) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.v[i]);
}
LANE void store_part(float *p, F x, long n) {
    float part[16];
    store(part, x);
    memcpy(p, part, n * sizeof(float));
}
LANE F add(F a, F b) { EACH(F, vaddq_f32(a.v[i], b.v[i])); }
LANE F sub(F a, F b) { EACH(F, vsubq_f32(a.v[i], b.v[i])); }
LANE F mul(F a, F b) { EACH(F, vmulq_f32(a.v[i], b.v[i])); }
LANE F div(F a, F b) { EACH(F, vdivq_f32(a.v[i], b.v[i])); }
LANE F fma(F a, F b, F c) { EACH(F, vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
// Returns the second operand where the first is NaN, as the other lanes do; vmaxq_f32 would propagate the NaN.
LANE F max(F a, F b) { EACH(F, vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
LANE F min(F a, F b) { EACH(F, vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
LANE F abs(F a) { EACH(F, vabsq_f32(a.v[i])); }

LANE I iset1(int32_t x) { EACH(I, vdupq_n_s32(x)); }
LANE I izero() { return iset1(0); }
LANE I iload(const void *p) { EACH(I, vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)p + 16 * i))); }
LANE int32x4_t lanes_from(int32_t first, int32_t step) {
    const int32_t lanes[4] = {first, first + step, first + 2 * step, first + 3 * step};
    return vld1q_s32(lanes);
}
LANE I iota() { EACH(I, lanes_from(4 * i, 1)); }
LANE I iadd(I a, I b) { EACH(I, vaddq_s32(a.v[i], b.v[i])); }
LANE I iand(I a, I b) { EACH(I, vandq_s32(a.v[i], b.v[i])); }
LANE I ixor(I a, I b) { EACH(I, veorq_s32(a.v[i], b.v[i])); }
LANE I ior(I a, I b) { EACH(I, vorrq_s32(a.v[i], b.v[i])); }
LANE void istore(void *p, I a) {
    for (int i = 0; i < 4; i++) vst1q_u8((uint8_t *)p + 16 * i, vreinterpretq_u8_s32(a.v[i]));
}
// Low halves of the 64-bit products of unsigned lanes and m; the high halves go to `high`.
LANE I multiply_wide(I a, uint32_t m, I &high) {
    I low;
    const uint32x4_t factor = vdupq_n_u32(m);
    for (int i = 0; i < 4; i++) {
        uint32x4_t x = vreinterpretq_u32_s32(a.v[i]);
        uint32x4_t first = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(x), vget_low_u32(factor)));
        uint32x4_t second = vreinterpretq_u32_u64(vmull_high_u32(x, factor));
        low.v[i] = vreinterpretq_s32_u32(vuzp1q_u32(first, second));
        high.v[i] = vreinterpretq_s32_u32(vuzp2q_u32(first, second));
    }
    return low;
}
// Lane 4 * b + i holds 4 * i + b, so that four such vectors are in order after a transposition in blocks of four
// lanes.
LANE I transposed_iota() { EACH(I, lanes_from(i, 4)); }
LANE void transpose(I (&x)[4]) {
    for (int b = 0; b < 4; b++) {
        int64x2_t even = vreinterpretq_s64_s32(vtrn1q_s32(x[0].v[b], x[1].v[b]));
        int64x2_t odd = vreinterpretq_s64_s32(vtrn2q_s32(x[0].v[b], x[1].v[b]));
        int64x2_t even_high = vreinterpretq_s64_s32(vtrn1q_s32(x[2].v[b], x[3].v[b]));
        int64x2_t odd_high = vreinterpretq_s64_s32(vtrn2q_s32(x[2].v[b], x[3].v[b]));
        x[0].v[b] = vreinterpretq_s32_s64(vtrn1q_s64(even, even_high));
        x[1].v[b] = vreinterpretq_s32_s64(vtrn1q_s64(odd, odd_high));
        x[2].v[b] = vreinterpretq_s32_s64(vtrn2q_s64(even, even_high));
        x[3].v[b] = vreinterpretq_s32_s64(vtrn2q_s64(odd, odd_high));
    }
}
LANE uint32_t lanes_above(F a, F b) { // bit i: a > b in lane i
    const uint32_t bits[4] = {1, 2, 4, 8};
    uint32_t mask = 0;
    for (int i = 0; i < 4; i++) mask |= vaddvq_u32(vandq_u32(vcgtq_f32(a.v[i], b.v[i]), vld1q_u32(bits))) << (4 * i);
    return mask;
}
template <int S> LANE I shift_right(I a) {
    EACH(I, vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.v[i]), S)));
}
template <int S> LANE I shift_left(I a) { EACH(I, vshlq_n_s32(a.v[i], S)); }
LANE F to_float(I a) { EACH(F, vcvtq_f32_s32(a.v[i])); }
LANE I round_to_int(F a) { EACH(I, vcvtnq_s32_f32(a.v[i])); } // nearest, ties to even
LANE I truncate(F a) { EACH(I, vcvtq_s32_f32(a.v[i])); } // toward zero
LANE F as_float(I a) { EACH(F, vreinterpretq_f32_s32(a.v[i])); }
LANE I as_int(F a) { EACH(I, vreinterpretq_s32_f32(a.v[i])); }
LANE I load_u16(const uint16_t *p) { EACH(I, vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p + 4 * i)))); }
LANE I load_u8(const uint8_t *p) {
    const uint16x8_t halves[2] = {vmovl_u8(vld1_u8(p)), vmovl_u8(vld1_u8(p + 8))};
    EACH(I, vreinterpretq_s32_u32(i % 2 ? vmovl_high_u16(halves[i / 2]) : vmovl_u16(vget_low_u16(halves[i / 2]))));
}
LANE I load_i8(const uint8_t *p) {
    const int16x8_t halves[2] = {vmovl_s8(vld1_s8((const int8_t *)p)), vmovl_s8(vld1_s8((const int8_t *)p + 8))};
    EACH(I, i % 2 ? vmovl_high_s16(halves[i / 2]) : vmovl_s16(vget_low_s16(halves[i / 2])));
}
// Looks up, in a table of sixteen entries, the entry named by the lower four bits of each lane, or of each byte below
// 16.
LANE F lookup(F table, I index) {
    uint8x16x4_t bytes;
    for (int i = 0; i < 4; i++) bytes.val[i] = vreinterpretq_u8_f32(table.v[i]);
    const uint32x4_t last = vdupq_n_u32(15), first = vdupq_n_u32(0x03020100);
    EACH(F, vreinterpretq_f32_u8(vqtbl4q_u8(
                bytes, vreinterpretq_u8_u32(vmlaq_n_u32(first, vandq_u32(vreinterpretq_u32_s32(index.v[i]), last), 0x04040404)))));
}
LANE I load_pair(const uint8_t *p) { // 64 bits, repeated
    int64_t pair;
    memcpy(&pair, p, 8);
    EACH(I, vreinterpretq_s32_s64(vdupq_n_s64(pair)));
}
LANE I load_bytes(const uint8_t *p) { EACH(I, vreinterpretq_s32_u8(vld1q_u8(p))); }
LANE I lookup_bytes(I table, I index) {
    EACH(I, vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table.v[i]), vreinterpretq_u8_s32(index.v[i]))));
}
LANE void store_i8(int8_t *p, I a) {
    for (int i = 0; i < 4; i += 2)
        vst1_s8(p + 4 * i, vmovn_s16(vcombine_s16(vmovn_s32(a.v[i]), vmovn_s32(a.v[i + 1]))));
}
LANE void store_u16(uint16_t *p, I a) {
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vmovn_u32(vreinterpretq_u32_s32(a.v[i])));
}
// value where low <= lane < high, else other
LANE F select_range(F value, F other, int32_t low, int32_t high) {
    const I lane = iota();
    EACH(F, vbslq_f32(vandq_u32(vcgeq_s32(lane.v[i], vdupq_n_s32(low)), vcltq_s32(lane.v[i], vdupq_n_s32(high))),
                      value.v[i], other.v[i]));
}

LANE F add_neighbours(F a, F b) { EACH(F, vpaddq_f32(a.v[i], b.v[i])); } // a0 + a1, a2 + a3, b0 + b1, b2 + b3
LANE float sum(F a) {
    float32x4_t c = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
    float32x2_t d = vadd_f32(vget_low_f32(c), vget_high_f32(c));
    return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
}
LANE float largest(F a) {
    float values[16], most;
    store(values, a);
    most = values[0];
    for (int i = 1; i < 16; i++) most = values[i] > most ? values[i] : most;
    return most;
}
LANE int32_t isum(I a) { return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[2]), vaddq_s32(a.v[1], a.v[3]))); }

// acc + four products of unsigned bytes `w` (u7: below 128) and signed bytes `x` a lane; exact.
LANE int32x4_t dot_small(int32x4_t acc, int32x4_t w, int32x4_t x) { // `w` below 128 is also a valid signed byte
    int8x16_t a = vreinterpretq_s8_s32(w), b = vreinterpretq_s8_s32(x);
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(acc, a, b);
#else
    return vpadalq_s16(acc, vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
#endif
}
LANE I dot_u7(I acc, I w, I x) { EACH(I, dot_small(acc.v[i], w.v[i], x.v[i])); }
LANE I dot_u8(I acc, I w, I x) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    EACH(I, vusdotq_s32(acc.v[i], vreinterpretq_u8_s32(w.v[i]), vreinterpretq_s8_s32(x.v[i])));
#else
    I low = iand(w, iset1(0x0f0f0f0f)), high = iand(shift_right<4>(w), iset1(0x0f0f0f0f));
    return iadd(dot_u7(acc, low, x), shift_left<4>(dot_u7(izero(), high, x)));
#endif
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define CORE_BF16_DOT 1
LANE F dot_bf16(F acc, I w, I x) {
    EACH(F, vbfdotq_f32(acc.v[i], vreinterpretq_bf16_s32(w.v[i]), vreinterpretq_bf16_s32(x.v[i])));
}
LANE void store_bf16(uint16_t *p, F a) {
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_bf16(vcvt_bf16_f32(a.v[i])));
}
LANE I pack_bf16(F low, F high) {
    uint16_t both[32];
    store_bf16(both, low);
    store_bf16(both + 16, high);
    return iload(both);
}
// Widens bytes with each four in the order 0, 2, 1, 3: bytes expand to pairs of 16 bits that are two apart.
LANE void store_bf16_apart(uint16_t *p, F a) {
    const uint8_t order[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    for (int i = 0; i < 4; i++)
        vst1_u8((uint8_t *)(p + 4 * i), vtbl1_u8(vreinterpret_u8_bf16(vcvt_bf16_f32(a.v[i])), vld1_u8(order)));
}
// A table of sixteen bf16, stored twice so that only the lower four bits of a 16-bit index matter.
LANE I bf16_table(const float *p) {
    uint16_t entries[16];
    store_bf16(entries, load(p));
    EACH(I, vreinterpretq_s32_u16(vld1q_u16(entries + i % 2 * 8)));
}
LANE I lookup_bf16(I table, I index) {
    const uint8x16x2_t bytes = {{vreinterpretq_u8_s32(table.v[0]), vreinterpretq_u8_s32(table.v[1])}};
    const uint16x8_t last = vdupq_n_u16(15), first = vdupq_n_u16(0x0100);
    EACH(I, vreinterpretq_s32_u8(vqtbl2q_u8(
                bytes, vreinterpretq_u8_u16(vmlaq_n_u16(first, vandq_u16(vreinterpretq_u16_s32(index.v[i]), last), 0x0202)))));
}
// `bits`, replaced by the table's entries where the 16-bit index is below `limit`.
LANE I replace_below(I bits, I table, I index, int limit) {
    const I entries = lookup_bf16(table, index);
    EACH(I, vreinterpretq_s32_u16(vbslq_u16(vcltq_u16(vreinterpretq_u16_s32(index.v[i]), vdupq_n_u16((uint16_t)limit)),
                                            vreinterpretq_u16_s32(entries.v[i]), vreinterpretq_u16_s32(bits.v[i]))));
}
#endif

#undef EACH

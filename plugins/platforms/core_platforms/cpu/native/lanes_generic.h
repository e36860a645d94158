// Sixteen lanes in four vectors of four, for any compiler target. There is no fused multiply-add: products round
// before they are added.
#include <string.h>

#define LANE static inline __attribute__((always_inline))

constexpr int kWideRows = 1; // rows of a linear's inner block that keep both vectors of a panel in registers
constexpr int kWideIntRows = 0; // same, where integer and float sums share the registers
constexpr int kMaxRows = 2;
constexpr int kAttentionSums = 2; // accumulators of one block of rows that fit into registers
constexpr int kMaxIntRows = 2;
// Panels of bit planes are always expanded. Products without that take 80 of 190 seconds to compile, for processors that few
// have; Q4_K_M decodes 8% slower for it.
constexpr bool kDirectPlanes = false;

typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
typedef uint32_t u4 __attribute__((vector_size(16)));

struct F {
    f4 v[4];
};
struct I {
    i4 v[4];
};

#define EACH(TYPE, EXPRESSION)                                                                                         \
    TYPE r;                                                                                                            \
    for (int i = 0; i < 4; i++) r.v[i] = EXPRESSION;                                                                   \
    return r

LANE F set1(float x) { EACH(F, (f4{x, x, x, x})); }
LANE F zero() { return set1(0); }
LANE F load(const float *p) {
    F r;
    memcpy(&r, p, sizeof r);
    return r;
}
LANE F load_part(const float *p, long n) {
    F r = zero();
    memcpy(&r, p, n * sizeof(float));
    return r;
}
LANE void store(float *p, F x) { memcpy(p, &x, sizeof x); }
LANE void store_part(float *p, F x, long n) { memcpy(p, &x, n * sizeof(float)); }
LANE F add(F a, F b) { EACH(F, a.v[i] + b.v[i]); }
LANE F sub(F a, F b) { EACH(F, a.v[i] - b.v[i]); }
LANE F mul(F a, F b) { EACH(F, a.v[i] * b.v[i]); }
LANE F div(F a, F b) { EACH(F, a.v[i] / b.v[i]); }
LANE F fma(F a, F b, F c) { EACH(F, a.v[i] * b.v[i] + c.v[i]); }
LANE f4 pick(i4 mask, f4 a, f4 b) { return (f4)((mask & (i4)a) | (~mask & (i4)b)); }
LANE F max(F a, F b) { EACH(F, pick(a.v[i] > b.v[i], a.v[i], b.v[i])); }
LANE F min(F a, F b) { EACH(F, pick(a.v[i] < b.v[i], a.v[i], b.v[i])); }
LANE F abs(F a) { EACH(F, (f4)((i4)a.v[i] & 0x7fffffff)); }

LANE I iset1(int32_t x) { EACH(I, (i4{x, x, x, x})); }
LANE I izero() { return iset1(0); }
LANE I iload(const void *p) {
    I r;
    memcpy(&r, p, sizeof r);
    return r;
}
LANE I iota() { EACH(I, (i4{4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3})); }
LANE I iadd(I a, I b) { EACH(I, a.v[i] + b.v[i]); }
LANE I iand(I a, I b) { EACH(I, (a.v[i] & b.v[i])); }
LANE I ior(I a, I b) { EACH(I, (a.v[i] | b.v[i])); }
LANE I ixor(I a, I b) { EACH(I, (a.v[i] ^ b.v[i])); }
LANE void istore(void *p, I a) { memcpy(p, &a, sizeof a); }
// Low halves of the 64-bit products of unsigned lanes and m; the high halves go to `high`.
LANE I multiply_wide(I a, uint32_t m, I &high) {
    I low;
    for (int i = 0; i < 16; i++) {
        uint64_t product = (uint64_t)(uint32_t)a.v[i / 4][i % 4] * m;
        low.v[i / 4][i % 4] = (int32_t)(uint32_t)product;
        high.v[i / 4][i % 4] = (int32_t)(uint32_t)(product >> 32);
    }
    return low;
}
// Lane 4 * b + i holds 4 * i + b, so that four such vectors are in order after a transposition in blocks of four
// lanes.
LANE I transposed_iota() { EACH(I, (i4{i, i + 4, i + 8, i + 12})); }
LANE void transpose(I (&x)[4]) {
    for (int b = 0; b < 4; b++)
        for (int i = 0; i < 4; i++)
            for (int j = i + 1; j < 4; j++) {
                int32_t kept = x[i].v[b][j];
                x[i].v[b][j] = x[j].v[b][i];
                x[j].v[b][i] = kept;
            }
}
LANE uint32_t lanes_above(F a, F b) { // bit i: a > b in lane i
    uint32_t mask = 0;
    for (int i = 0; i < 16; i++) mask |= (uint32_t)(a.v[i / 4][i % 4] > b.v[i / 4][i % 4]) << i;
    return mask;
}
template <int S> LANE I shift_right(I a) { EACH(I, (i4)((u4)a.v[i] >> S)); }
template <int S> LANE I shift_left(I a) { EACH(I, (i4)((u4)a.v[i] << S)); }
LANE F to_float(I a) { EACH(F, __builtin_convertvector(a.v[i], f4)); }
LANE I round_to_int(F a) { // nearest, ties to even, for |a| < 2^22
    const float magic = 12582912.0f;
    EACH(I, ((i4)(a.v[i] + magic) - 0x4b400000));
}
LANE I truncate(F a) { EACH(I, __builtin_convertvector(a.v[i], i4)); } // toward zero
LANE F as_float(I a) { EACH(F, (f4)a.v[i]); }
LANE I as_int(F a) { EACH(I, (i4)a.v[i]); }
LANE I load_u16(const uint16_t *p) { EACH(I, (i4{p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]})); }
LANE I load_u8(const uint8_t *p) { EACH(I, (i4{p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]})); }
LANE I load_i8(const uint8_t *p) {
    const int8_t *s = (const int8_t *)p;
    EACH(I, (i4{s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]}));
}
// Looks up, in a table of sixteen entries, the entry named by the lower four bits of each lane, or of each byte below
// 16.
LANE F lookup(F table, I index) {
    F r;
    for (int i = 0; i < 16; i++) {
        int at = index.v[i / 4][i % 4] & 15;
        r.v[i / 4][i % 4] = table.v[at / 4][at % 4];
    }
    return r;
}
LANE I load_bytes(const uint8_t *p) { // the generic lookup reads only the first copy
    I r = izero();
    memcpy(&r, p, 16);
    return r;
}
LANE I load_pair(const uint8_t *p) { // 64 bits, repeated
    uint8_t bytes[64];
    for (int i = 0; i < 8; i++) memcpy(bytes + 8 * i, p, 8);
    return iload(bytes);
}
LANE I lookup_bytes(I table, I index) {
    uint8_t bytes[64], entries[16];
    memcpy(bytes, &index, 64);
    memcpy(entries, &table, 16);
    for (int i = 0; i < 64; i++) bytes[i] = entries[bytes[i] & 15];
    return iload(bytes);
}
LANE F load_half(const uint16_t *p) {
    F r;
    I bits = load_u16(p);
    for (int i = 0; i < 4; i++) { // shifting the exponent by a multiplication also handles denormals
        f4 magnitude = (f4)((bits.v[i] & 0x7fff) << 13) * 0x1p112f;
        i4 special = (i4)((bits.v[i] & 0x7c00) == 0x7c00) & 0x7f800000;
        r.v[i] = (f4)((i4)magnitude | special | ((bits.v[i] & 0x8000) << 16));
    }
    return r;
}
LANE void store_i8(int8_t *p, I a) {
    for (int i = 0; i < 16; i++) p[i] = (int8_t)a.v[i / 4][i % 4];
}
LANE void store_u16(uint16_t *p, I a) {
    for (int i = 0; i < 16; i++) p[i] = (uint16_t)a.v[i / 4][i % 4];
}
// value where low <= lane < high, else other
LANE F select_range(F value, F other, int32_t low, int32_t high) {
    I lane = iota();
    EACH(F, pick((lane.v[i] >= low) & (lane.v[i] < high), value.v[i], other.v[i]));
}

LANE F add_neighbours(F a, F b) { // of each four lanes a0 + a1, a2 + a3, b0 + b1, b2 + b3
    EACH(F, (f4{a.v[i][0] + a.v[i][1], a.v[i][2] + a.v[i][3], b.v[i][0] + b.v[i][1], b.v[i][2] + b.v[i][3]}));
}
LANE float sum(F a) {
    f4 c = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
    return (c[0] + c[2]) + (c[1] + c[3]);
}
LANE float largest(F a) {
    f4 b = pick(a.v[0] > a.v[2], a.v[0], a.v[2]), c = pick(a.v[1] > a.v[3], a.v[1], a.v[3]);
    f4 d = pick(b > c, b, c);
    float e = d[0] > d[2] ? d[0] : d[2], f = d[1] > d[3] ? d[1] : d[3];
    return e > f ? e : f;
}
LANE int32_t isum(I a) {
    i4 c = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
    return c[0] + c[1] + c[2] + c[3];
}

// acc + four products of unsigned bytes `w` (u7: below 128) and signed bytes `x` a lane; exact.
LANE I dot_u8(I acc, I w, I x) {
    I r = acc;
    for (int i = 0; i < 4; i++) {
        u4 a = (u4)w.v[i];
        i4 b = x.v[i];
        r.v[i] += (i4)(a & 255) * ((b << 24) >> 24) + (i4)((a >> 8) & 255) * ((b << 16) >> 24) +
                  (i4)((a >> 16) & 255) * ((b << 8) >> 24) + (i4)(a >> 24) * (b >> 24);
    }
    return r;
}
LANE I dot_u7(I acc, I w, I x) { return dot_u8(acc, w, x); }

#undef EACH

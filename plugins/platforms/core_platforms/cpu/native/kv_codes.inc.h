// A KV cache of keys of 8 bits and values of 4 bits: both are turned first.
//
// A Hadamard matrix turns the numbers of a head, so that large single numbers are spread over all of them and the
// result is close to a normal distribution. Turned keys are rounded like other keys of 8 bits. The numbers of a value are
// divided by the root of their mean square and rounded to the best sixteen levels for a normal distribution (Lloyd 1982;
// TurboQuant, arXiv 2504.19874), themselves rounded to bfloat16. These are a little too small on average, which the
// scale makes up for. The matrix is its own inverse: queries are turned like keys, and sums of values are turned back
// once for each row.
//
// A code is the sign in bit 3 and the rank of the magnitude below it. 16 bits hold the columns l, l + W, l + 2 * W and
// l + 3 * W of a value with W = dim_v / 4; those of two neighbouring tokens lie side by side. So no two tokens share a
// half, and 16 lanes of pairs are a shift and a table look-up away.

constexpr float kLevels[16] = {
    0.12890625f,  0.388671875f,  0.65625f,  0.94140625f,  1.2578125f,  1.6171875f,  2.0625f,  2.734375f,
    -0.12890625f, -0.388671875f, -0.65625f, -0.94140625f, -1.2578125f, -1.6171875f, -2.0625f, -2.734375f,
};

struct Signs { // the Hadamard matrix of sixteen lanes
    float row[16][16];
    constexpr Signs() : row() {
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 16; j++) {
                const int both = i & j;
                row[i][j] = (both ^ both >> 1 ^ both >> 2 ^ both >> 3) & 1 ? -1.0f : 1.0f;
            }
    }
};
constexpr Signs kSigns;

// The numbers that are turned together: the largest power of two that divides the width, which 16 divides.
LANE long turned_block(long width) { return width & -width; }

// to[width] = the product of x and the Hadamard matrix of each block, without its factor.
LANE void turn(const float *x, long width, float *to) {
    const long block = turned_block(width);
    for (long i = 0; i < width; i += 16) {
        F total = zero();
        for (long j = 0; j < 16; j++) total = fma(set1(x[i + j]), load(kSigns.row[j]), total);
        store(to + i, total);
    }
    for (long half = 16; half < block; half *= 2)
        for (long i = 0; i < width; i += 2 * half)
            for (long j = i; j < i + half; j += 16) {
                const F a = load(to + j), b = load(to + j + half);
                store(to + j, add(a, b)), store(to + j + half, sub(a, b));
            }
}

// The factor of that matrix: 1 / sqrt(block).
LANE float turned_factor(long width) {
    float factor = 1;
    long block = turned_block(width);
    for (; block >= 4; block /= 4) factor *= 0.5f;
    return block == 2 ? factor * 0.707106781f : factor;
}

// The codes of x * inverse, one a lane.
LANE I level_codes(F x, F inverse) {
    const F size = mul(abs(x), inverse);
    I code = shift_left<3>(shift_right<31>(as_int(x)));
    for (int i = 0; i < 7; i++) {
        const F between = set1(0.5f * (kLevels[i] + kLevels[i + 1]));
        code = iadd(code, shift_right<31>(as_int(sub(between, size))));
    }
    return code;
}

// Turns x, rounds it to codes[width], and returns the scale: NaN where a number is not finite.
LANE float encode(const float *x, long width, uint32_t *codes) {
    float turned[kMaxHead];
    turn(x, width, turned);
    F squares = zero();
    for (long i = 0; i < width; i += 16) squares = fma(load(turned + i), load(turned + i), squares);
    const float mean = sum(squares) / (float)width, root = __builtin_sqrtf(mean);
    const F inverse = set1(root < 1e-30f ? 0 : 1 / root), levels = load(kLevels);
    F products = zero();
    for (long i = 0; i < width; i += 16) {
        const I code = level_codes(load(turned + i), inverse);
        products = fma(load(turned + i), lookup(levels, code), products);
        istore(codes + i, code);
    }
    return root < 1e-30f ? 0 : sum(squares) / sum(products) * turned_factor(width);
}

// Stores the codes of a value as halves `stride` bytes apart.
LANE void store_codes(uint8_t *to, long stride, const uint32_t *codes, long dim_v) {
    const long lanes = dim_v / 4;
    for (long i = 0; i < lanes; i++) {
        uint16_t half = 0;
        for (long j = 0; j < 4; j++) half |= (uint16_t)(codes[j * lanes + i] << (4 * j));
        memcpy(to + i * stride, &half, 2);
    }
}

// Pairs of levels named by the four bits from Shift on of both halves of each lane.
struct Levels {
#ifdef CORE_BF16_DOT
    I table = bf16_table(kLevels);
#else
    F table = load(kLevels);
#endif
};
template <int Shift> LANE I shifted(I codes) { return Shift ? shift_right<Shift ? Shift : 1>(codes) : codes; }
template <int Shift> LANE I level_pairs(const Levels &levels, I codes) {
#ifdef CORE_BF16_DOT
    return lookup_bf16(levels.table, shifted<Shift>(codes));
#else
    const F even = lookup(levels.table, iand(shifted<Shift>(codes), iset1(15)));
    const F odd = lookup(levels.table, iand(shift_right<Shift + 16>(codes), iset1(15)));
    return ixor(iand(as_int(odd), iset1((int32_t)0xffff0000)), shift_right<16>(as_int(even)));
#endif
}

// The pairs of all four quarters.
LANE void quarters(const Levels &levels, I codes, I (&pair)[4]) {
    pair[0] = level_pairs<0>(levels, codes), pair[1] = level_pairs<4>(levels, codes);
    pair[2] = level_pairs<8>(levels, codes), pair[3] = level_pairs<12>(levels, codes);
}

// Sixteen values: [8][dim_v / 4][2] halves to [8][dim_v][2]. A vector that is wider than what is left of a row also
// writes the beginning of what comes next, which is written after it.
static void widen_value_codes(const uint8_t *from, uint8_t *to, long dim_v) {
    const Levels levels;
    const long row = dim_v; // bytes of a quarter of the columns of two tokens
    for (long i = 0; i < 8; i++, from += row, to += 4 * row) {
        for (long j = 0; j < row; j += 64) istore(to + j, level_pairs<0>(levels, iload(from + j)));
        for (long j = 0; j < row; j += 64) istore(to + row + j, level_pairs<4>(levels, iload(from + j)));
        for (long j = 0; j < row; j += 64) istore(to + 2 * row + j, level_pairs<8>(levels, iload(from + j)));
        for (long j = 0; j < row; j += 64) istore(to + 3 * row + j, level_pairs<12>(levels, iload(from + j)));
    }
}

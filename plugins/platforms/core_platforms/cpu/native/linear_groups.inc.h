// Products of grouped weights with float inputs: each weight is converted to a float. Included by linear.inc.h.

// Shift of an 8-bit float's magnitude into a float32 and into a bf16, and the correction of its exponent bias there.
// `small` counts the subnormal magnitudes, which are multiples of `unit`.
struct E4M3 {
    static constexpr int kWide = 20, kNarrow = 4, kBias = 120, kSmall = 8;
    static constexpr float kFactor = 0x1p120f, kUnit = 0x1p-9f;
};
struct E5M2 {
    static constexpr int kWide = 21, kNarrow = 5, kBias = 112, kSmall = 4;
    static constexpr float kFactor = 0x1p112f, kUnit = 0x1p-16f;
};
template <class Float> LANE F narrow_to_float(I byte) { // input in the lower eight bits of each lane, zeros above
    I bits = ior(shift_left<Float::kWide>(iand(byte, iset1(0x7f))), shift_left<24>(iand(byte, iset1(0x80))));
    return mul(as_float(bits), set1(Float::kFactor));
}

LANE F scales(const uint8_t *p, int type, long vector) {
    switch (type) {
    case kScaleF16: return load_half((const uint16_t *)p + vector * 16);
    case kScaleBF16: return as_float(shift_left<16>(load_u16((const uint16_t *)p + vector * 16)));
    case kScaleE8M0: return as_float(shift_left<23>(load_u8(p + vector * 16)));
    case kScaleE4M3: return narrow_to_float<E4M3>(load_u8(p + vector * 16));
    }
    return load((const float *)p + vector * 16);
}
// The zero points of one group, where each group has its own.
LANE F zero_points(const PackedLinear &l, const uint8_t *tail, long vector) {
    return to_float(load_u8(tail + l.scale_bytes + vector * 16));
}

#ifdef CORE_BF16_DOT
// Expands one vector of packed weights to four (8-bit weights: two) vectors of bf16 pairs, in the order of staged
// inputs.
struct CodePairs {
    static constexpr int kVectors = 4;
    LANE I table(const PackedLinear &l) { return bf16_table(l.products); }
    LANE void expand(I table, I word, I (&out)[4]) {
        out[0] = lookup_bf16(table, word), out[1] = lookup_bf16(table, shift_right<8>(word));
        out[2] = lookup_bf16(table, shift_right<4>(word)), out[3] = lookup_bf16(table, shift_right<12>(word));
    }
};
template <class Float> struct NarrowPairs {
    static constexpr int kVectors = 2;
    LANE I table(const PackedLinear &) {
        float small[16] = {0};
        for (int i = 0; i < Float::kSmall; i++) small[i] = float(i) * Float::kUnit;
        return bf16_table(small);
    }
    LANE I pair(I table, I word) { // the bf16 dot product flushes subnormals to zero, hence the table
        I magnitude = iand(word, iset1(0x007f007f));
        I bits = iadd(shift_left<Float::kNarrow>(magnitude), iset1(Float::kBias << 7 | Float::kBias << 23));
        return ior(replace_below(bits, table, magnitude, Float::kSmall), iand(shift_left<8>(word), iset1((int32_t)0x80008000)));
    }
    LANE void expand(I table, I word, I (&out)[2]) {
        out[0] = pair(table, word), out[1] = pair(table, shift_right<8>(word));
    }
};

// bf16 weights and inputs, two k at a time, with one float step per group. Whole: one group spans all of k.
template <class Pairs, bool Whole> struct GroupBF16DotKind {
    static constexpr int kWide = Whole ? kWideRows : kWideIntRows, kRows = Whole ? kMaxRows : kMaxIntRows;
    LANE long steps(const PackedLinear &l) { return l.groups; }
    template <int R, int V>
    LANE void run(const LinearCall &c, const uint8_t *panel, long vector, long row, Steps steps, F (&acc)[R][V]) {
        const PackedLinear &l = *c.weight;
        constexpr int kVectors = Pairs::kVectors;
        const I table = Pairs::table(l);
        const uint8_t *x = row_staged(c, row) + steps.begin * l.group * 2, *record = panel + steps.begin * l.record_bytes;
        const long stride = (long)c.staged_stride;
        for (long g = steps.begin; g < steps.end; g++, record += l.record_bytes) {
            F dot[R][V];
            for (int r = 0; r < R; r++)
                for (int v = 0; v < V; v++) dot[r][v] = zero();
            const uint8_t *w = record + vector * 64;
            for (long k = 0; k < l.group; k += 2 * kVectors, w += kPanel * 4, x += 4 * kVectors) {
                prefetch<R>(w);
                I pairs[V][kVectors];
                for (int v = 0; v < V; v++) Pairs::expand(table, iload(w + v * 64), pairs[v]);
                for (int p = 0; p < kVectors; p++)
                    for (int r = 0; r < R; r++) {
                        I value = iset1(read_i32(x + r * stride + 4 * p));
                        for (int v = 0; v < V; v++) dot[r][v] = dot_bf16(dot[r][v], pairs[v][p], value);
                    }
            }
            for (int v = 0; v < V; v++) {
                F scale = scales(record + l.value_bytes, l.scale_type, vector + v);
                for (int r = 0; r < R; r++) acc[r][v] = Whole ? mul(dot[r][v], scale) : fma(dot[r][v], scale, acc[r][v]);
            }
        }
    }
};
#define PAIRS(TYPE) typedef TYPE Pairs
#else
#define PAIRS(TYPE)
#endif

// Conversion of one packed weight, in the lower bits of each lane, to a float.
template <int Bits> struct IntDecode {
    static constexpr int kBits = Bits;
    LANE F table(const PackedLinear &l) { return set1((float)l.zero); }
    LANE F value(F zero, I code) { return sub(to_float(iand(code, iset1(Bits == 8 ? 255 : 15))), zero); } // exact
};
struct CodeDecode {
    static constexpr int kBits = 4;
    PAIRS(CodePairs);
    LANE F table(const PackedLinear &l) { return load(l.products); }
    LANE F value(F table, I code) { return lookup(table, code); }
};
template <class Float> struct NarrowDecode {
    static constexpr int kBits = 8;
    PAIRS(NarrowPairs<Float>);
    LANE F table(const PackedLinear &) { return zero(); }
    LANE F value(F, I code) { return narrow_to_float<Float>(iand(code, iset1(255))); }
};
#undef PAIRS

LANE I shift_down(I x, int bits) { // `bits` is a constant once the enclosing loop is unrolled
    switch (bits) {
    case 4: return shift_right<4>(x);
    case 8: return shift_right<8>(x);
    case 12: return shift_right<12>(x);
    case 16: return shift_right<16>(x);
    case 20: return shift_right<20>(x);
    case 24: return shift_right<24>(x);
    case 28: return shift_right<28>(x);
    }
    return x;
}

// Float32 weights and inputs.
template <class Decode> struct GroupFloatKind {
    static constexpr int kWide = kWideRows, kRows = kMaxRows;
    LANE long steps(const PackedLinear &l) { return l.groups; }
    template <int R, int V>
    LANE void run(const LinearCall &c, const uint8_t *panel, long vector, long row, Steps steps, F (&acc)[R][V]) {
        const PackedLinear &l = *c.weight;
        constexpr int kBits = Decode::kBits;
        const F table = Decode::table(l);
        const float *x[R];
        for (int r = 0; r < R; r++) x[r] = row_any(c, row + r);
        const uint8_t *record = panel + steps.begin * l.record_bytes;
        for (long g = steps.begin; g < steps.end; g++, record += l.record_bytes) {
            const uint8_t *w = record + vector * 64, *tail = record + l.value_bytes;
            F scale[V], minimum[V], own[V];
            for (int v = 0; v < V; v++) {
                own[v] = l.has_zeros ? zero_points(l, tail, vector + v) : table;
                scale[v] = scales(tail, l.scale_type, vector + v);
                minimum[v] = l.has_minimum ? scales(tail + l.scale_bytes, l.scale_type, vector + v) : zero();
            }
            long k = g * l.group;
            for (long end = k + l.group; k < end; k += 32 / kBits, w += kPanel * 4) {
                for (int v = 0; v < V; v++) {
                    I word = iload(w + v * 64);
                    for (int i = 0; i < 32 / kBits; i++) { // 4 bits: the low nibbles of each byte come first
                        I code = i < 4 ? shift_down(word, 8 * i) : shift_down(word, 8 * i - 28);
                        F real = add(mul(Decode::value(own[v], code), scale[v]), minimum[v]);
                        for (int r = 0; r < R; r++) acc[r][v] = fma(real, set1(x[r][k + i]), acc[r][v]);
                    }
                }
            }
        }
    }
};

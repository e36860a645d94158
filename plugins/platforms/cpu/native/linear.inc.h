// The packed matrix product, written once against the sixteen lanes of the including file.
//
// A lane is an output n. Each output has one accumulator that walks k in ascending order (bf16 dot: pairs; integers:
// whole groups), so its bits depend on k and the format alone, never on the rows beside it. The inner block handles
// R rows and V of a panel's two vectors; R and V decide the speed only.

constexpr long kPrefetch = 1536; // bytes ahead, when few rows make the weights the bottleneck

LANE const float *row_f32(const LinearCall &c, long row) { return c.x + row * c.x_stride; }
LANE const uint8_t *row_staged(const LinearCall &c, long row) { return c.staged + row * c.staged_stride; }
LANE const float *row_any(const LinearCall &c, long row) {
    return c.staged ? (const float *)row_staged(c, row) : row_f32(c, row);
}
LANE int32_t read_i32(const uint8_t *p) {
    int32_t value;
    memcpy(&value, p, 4);
    return value;
}
LANE F scales(const uint8_t *p, int half, long vector) {
    return half ? load_half((const uint16_t *)p + vector * 16) : load((const float *)p + vector * 16);
}
template <int R> LANE void prefetch(const uint8_t *w) {
    if (R <= 2 || R == 6) { // measured: no gain for the others, whose arithmetic hides the loads
        __builtin_prefetch(w + kPrefetch);
        __builtin_prefetch(w + kPrefetch + 64);
    }
}

LANE F load_weight(const float *p) { return load(p); }
LANE F load_weight(const uint16_t *p) { return load_half(p); }

// Float weights of 32 outputs a k.
template <class Element> struct FloatKind {
    static constexpr int kWide = kWideRows, kRows = kMaxRows;
    template <int R, int V> LANE void run(const LinearCall &c, const uint8_t *panel, long vector, long row, F (&acc)[R][V]) {
        const float *x[R];
        for (int r = 0; r < R; r++) x[r] = row_any(c, row + r);
        const Element *w = (const Element *)panel + vector * 16;
        for (long k = 0; k < c.weight->k; k++, w += kPanel) {
            prefetch<R>((const uint8_t *)w);
            F value[V];
            for (int v = 0; v < V; v++) value[v] = load_weight(w + v * 16);
            for (int r = 0; r < R; r++)
                for (int v = 0; v < V; v++) acc[r][v] = fma(value[v], set1(x[r][k]), acc[r][v]);
        }
    }
};

// bf16 weights, float32 activations (which may hold bf16 values).
struct BF16Kind {
    static constexpr int kWide = kWideRows, kRows = kMaxRows < 8 ? kMaxRows : 8;
    template <int R, int V> LANE void run(const LinearCall &c, const uint8_t *panel, long vector, long row, F (&acc)[R][V]) {
        const float *x[R];
        for (int r = 0; r < R; r++) x[r] = row_any(c, row + r);
        const uint8_t *w = panel + vector * 64;
        long k = 0;
        for (; k + 1 < c.weight->k; k += 2, w += kPanel * 4) {
            prefetch<R>(w);
            for (int v = 0; v < V; v++) {
                I pair = iload(w + v * 64);
                F even = as_float(shift_left<16>(pair)), odd = as_float(iand(pair, iset1((int32_t)0xffff0000)));
                for (int r = 0; r < R; r++) acc[r][v] = fma(even, set1(x[r][k]), acc[r][v]);
                for (int r = 0; r < R; r++) acc[r][v] = fma(odd, set1(x[r][k + 1]), acc[r][v]);
            }
        }
        if (k == c.weight->k) return;
        for (int v = 0; v < V; v++)
            for (int r = 0; r < R; r++)
                acc[r][v] = fma(as_float(shift_left<16>(iload(w + v * 64))), set1(x[r][k]), acc[r][v]);
    }
};

#ifdef CORE_BF16_DOT
// bf16 weights and activations, two k at a time.
struct BF16DotKind {
    static constexpr int kWide = kWideRows, kRows = kMaxRows;
    template <int R, int V> LANE void run(const LinearCall &c, const uint8_t *panel, long vector, long row, F (&acc)[R][V]) {
        const uint8_t *x[R];
        for (int r = 0; r < R; r++) x[r] = row_staged(c, row + r);
        const uint8_t *w = panel + vector * 64;
        for (long pairs = (c.weight->k + 1) / 2, p = 0; p < pairs; p++, w += kPanel * 4) {
            prefetch<R>(w);
            I value[V];
            for (int v = 0; v < V; v++) value[v] = iload(w + v * 64);
            for (int r = 0; r < R; r++) {
                I pair = iset1(read_i32(x[r] + 4 * p));
                for (int v = 0; v < V; v++) acc[r][v] = dot_bf16(acc[r][v], value[v], pair);
            }
        }
    }
};
#endif

// Integers times quantized rows: exact within a group, then one fused step a group.
// Integer and float sums of a block both stay in registers, so blocks have fewer rows than those of float weights.
template <int Bits> struct IntDotKind {
    static constexpr int kWide = kWideIntRows, kRows = kMaxIntRows;
    template <int R, int V>
    LANE void group(const uint8_t *w, const uint8_t *x, long stride, long size, I (&dot)[R][V]) {
        for (long k = 0; k < size; k += 32 / Bits, w += kPanel * 4, x += 32 / Bits) {
            prefetch<R>(w);
            I low[V], high[V];
            for (int v = 0; v < V; v++) {
                low[v] = iload(w + v * 64);
                if (Bits == 8) continue;
                high[v] = iand(shift_right<4>(low[v]), iset1(0x0f0f0f0f));
                low[v] = iand(low[v], iset1(0x0f0f0f0f));
            }
            for (int r = 0; r < R; r++) {
                I value = iset1(read_i32(x + r * stride));
                for (int v = 0; v < V; v++)
                    dot[r][v] = Bits == 8 ? dot_u8(dot[r][v], low[v], value) : dot_u4(dot[r][v], low[v], value);
            }
            for (int r = 0; r < R && Bits == 4; r++) {
                I value = iset1(read_i32(x + r * stride + 4));
                for (int v = 0; v < V; v++) dot[r][v] = dot_u4(dot[r][v], high[v], value);
            }
        }
    }
    template <int R, int V>
    LANE void run(const LinearCall &c, const uint8_t *panel, long vector, long row, F (&acc)[R][V]) {
        const PackedLinear &l = *c.weight;
        const long groups = l.groups, size = l.group, stride = (long)c.staged_stride, record_bytes = (long)l.record_bytes;
        const long scale_bytes = kPanel * (l.half_scales ? 2 : 4);
        const int half = l.half_scales, minimum = l.has_minimum;
        const uint8_t *x = row_staged(c, row), *w = panel + vector * 64, *tail = panel + l.value_bytes;
        const GroupMeta *meta = c.meta + row * groups;
        for (long g = 0; g < groups; g++, meta++, x += size, w += record_bytes, tail += record_bytes) {
            I dot[R][V];
            for (int r = 0; r < R; r++)
                for (int v = 0; v < V; v++) dot[r][v] = iset1(meta[r * groups].correction);
            group<R, V>(w, x, stride, size, dot);
            F scale[V], low[V];
            for (int v = 0; v < V; v++) {
                scale[v] = scales(tail, half, vector + v);
                low[v] = minimum ? scales(tail + scale_bytes, half, vector + v) : zero();
            }
            for (int r = 0; r < R; r++) {
                F factor = set1(meta[r * groups].scale), total = set1(meta[r * groups].sum);
                for (int v = 0; v < V; v++) {
                    acc[r][v] = fma(mul(to_float(dot[r][v]), factor), scale[v], acc[r][v]);
                    if (minimum) acc[r][v] = fma(low[v], total, acc[r][v]);
                }
            }
        }
    }
};

// Integers times float32 rows: every weight is first brought to its float32 value.
template <int Bits> struct IntFloatKind {
    static constexpr int kWide = kWideRows, kRows = kMaxRows;
    template <int R, int V> LANE void run(const LinearCall &c, const uint8_t *panel, long vector, long row, F (&acc)[R][V]) {
        const PackedLinear &l = *c.weight;
        const float *x[R];
        for (int r = 0; r < R; r++) x[r] = row_any(c, row + r);
        const uint8_t *record = panel;
        const long scale_bytes = kPanel * (l.half_scales ? 2 : 4);
        for (long g = 0; g < l.groups; g++, record += l.record_bytes) {
            const uint8_t *w = record + vector * 64, *tail = record + l.value_bytes;
            F scale[V], minimum[V];
            for (int v = 0; v < V; v++) {
                scale[v] = scales(tail, l.half_scales, vector + v);
                minimum[v] = l.has_minimum ? scales(tail + scale_bytes, l.half_scales, vector + v) : zero();
            }
            long k = g * l.group;
            for (long end = k + l.group; k < end; k += 32 / Bits, w += kPanel * 4) {
                for (int v = 0; v < V; v++) {
                    I word = iload(w + v * 64);
                    for (int half = 0; half < (Bits == 4 ? 2 : 1); half++) {
                        I bytes = Bits == 8 ? word : half ? shift_right<4>(word) : word;
                        for (int i = 0; i < 4; i++) {
                            I value = iand(bytes, iset1(Bits == 8 ? 255 : 15));
                            F real = add(mul(to_float(iadd(value, iset1(-l.zero))), scale[v]), minimum[v]);
                            for (int r = 0; r < R; r++) acc[r][v] = fma(real, set1(x[r][k + 4 * half + i]), acc[r][v]);
                            bytes = shift_right<8>(bytes);
                        }
                    }
                }
            }
        }
    }
};

template <class Kind, int R, int V> LANE void block(const LinearCall &c, long panel, long vector, long row) {
    const PackedLinear &l = *c.weight;
    F acc[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            acc[r][v] = zero();
            if (R > 2) __builtin_prefetch(c.out + (row + r) * c.out_stride + panel * kPanel + (vector + v) * 16, 1);
        }
    Kind::template run<R, V>(c, l.data + panel * l.panel_bytes, vector, row, acc);
    for (int v = 0; v < V; v++) {
        long n = panel * kPanel + (vector + v) * 16;
        long lanes = l.n - n < 16 ? l.n - n : 16;
        if (lanes <= 0) continue;
        for (int r = 0; r < R; r++) {
            float *out = c.out + (row + r) * c.out_stride + n;
            F value = acc[r][v];
            if (l.bias) value = add(value, load(l.bias + n));
            if (c.accumulate) value = add(value, lanes == 16 ? load(out) : load_part(out, lanes));
            if (lanes == 16)
                store(out, value);
            else
                store_part(out, value, lanes);
        }
    }
}

template <class Kind, int R> static __attribute__((noinline)) long blocks(const LinearCall &c, long panel, long row, long end) {
    for (; row + R <= end; row += R) {
        if (R <= Kind::kWide) {
            block<Kind, R, 2>(c, panel, 0, row);
        } else {
            block<Kind, R, 1>(c, panel, 0, row);
            block<Kind, R, 1>(c, panel, 1, row);
        }
    }
    return row;
}

template <class Kind> static void panel_rows(const LinearCall &c, long panel, long begin, long end) {
    long row = begin;
    if (Kind::kRows >= 12) row = blocks<Kind, Kind::kRows >= 12 ? 12 : 1>(c, panel, row, end);
    if (Kind::kRows >= 8) row = blocks<Kind, Kind::kRows >= 8 ? 8 : 1>(c, panel, row, end);
    if (Kind::kRows >= 6) row = blocks<Kind, Kind::kRows >= 6 ? 6 : 1>(c, panel, row, end);
    if (kMaxRows >= 4) row = blocks<Kind, kMaxRows >= 4 ? 4 : 1>(c, panel, row, end);
    row = blocks<Kind, 2>(c, panel, row, end);
    blocks<Kind, 1>(c, panel, row, end);
}

static void linear(const LinearCall *c, long panel, long begin, long end) {
    const PackedLinear &l = *c->weight;
    bool quantized = l.activation == kQuantInt8;
    switch (l.format) {
    case kF32: return panel_rows<FloatKind<float>>(*c, panel, begin, end);
    case kF16: return panel_rows<FloatKind<uint16_t>>(*c, panel, begin, end);
    case kInt4:
        return quantized ? panel_rows<IntDotKind<4>>(*c, panel, begin, end) : panel_rows<IntFloatKind<4>>(*c, panel, begin, end);
    case kInt8:
        return quantized ? panel_rows<IntDotKind<8>>(*c, panel, begin, end) : panel_rows<IntFloatKind<8>>(*c, panel, begin, end);
    }
#ifdef CORE_BF16_DOT
    if (l.activation == kRoundBF16) return panel_rows<BF16DotKind>(*c, panel, begin, end);
#endif
    panel_rows<BF16Kind>(*c, panel, begin, end);
}

// Nearest bf16, ties to even, in the upper half of each lane. The not-a-number that arithmetic makes stays one.
LANE I bf16_bits(F x) {
    I bits = as_int(x);
    I odd = iand(shift_right<16>(bits), iset1(1));
    return iand(iadd(iadd(bits, iset1(0x7fff)), odd), iset1((int32_t)0xffff0000));
}

LANE void stage_bf16(const LinearCall &c, long row) {
    const float *x = row_f32(c, row);
    uint8_t *out = c.staged + row * c.staged_stride;
    for (long k = 0; k < c.weight->k; k += 16) { // a staged row has room for whole vectors
        F value = k + 16 <= c.weight->k ? load(x + k) : load_part(x + k, c.weight->k - k);
#ifdef CORE_BF16_DOT
        store_bf16((uint16_t *)out + k, value);
#else
        store((float *)out + k, as_float(bf16_bits(value)));
#endif
    }
}

// Signed bytes in -127..127 with one scale a group.
LANE void stage_int8(const LinearCall &c, long row) {
    const PackedLinear &l = *c.weight;
    const float *x = row_f32(c, row);
    int8_t *out = (int8_t *)c.staged + row * c.staged_stride;
    GroupMeta *meta = c.meta + row * l.groups;
    for (long g = 0; g < l.groups; g++, x += l.group, out += l.group) {
        F peak = zero();
        for (long k = 0; k < l.group; k += 16) peak = max(peak, abs(load(x + k)));
        float scale = largest(peak) / 127.0f;
        F inverse = set1(scale > 0 ? 1.0f / scale : 0);
        I total = izero();
        for (long k = 0; k < l.group; k += 16) {
            I value = round_to_int(mul(load(x + k), inverse));
            total = iadd(total, value);
            store_i8(out + k, value);
        }
        int32_t all = isum(total);
        meta[g] = {scale, -l.zero * all, scale * (float)all, 0};
    }
}

static void stage(const LinearCall *c, long begin, long end) {
    for (long row = begin; row < end; row++) {
        if (c->weight->activation == kQuantInt8)
            stage_int8(*c, row);
        else
            stage_bf16(*c, row);
    }
}

static size_t staged_bytes(const PackedLinear *l) {
    size_t padded = (size_t)(l->k + 63) / 64 * 64;
    if (l->activation == kQuantInt8) return padded;
    if (l->activation != kRoundBF16) return 0;
#ifdef CORE_BF16_DOT
    return padded * 2;
#else
    return padded * 4;
#endif
}

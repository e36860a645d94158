// Products of integer weights and inputs quantized to signed bytes (stage.inc.h). Included by linear.inc.h.

// All unsigned; table entries are below 16, small bytes below 128.
enum Integers { kNibbles, kTableNibbles, kBytes, kSmallBytes };

// acc + the products of `size` inputs of a group with the group's integers.
template <Integers Stored, int R, int V>
LANE void int_dot(const uint8_t *w, const uint8_t *x, long stride, long size, I table, I (&dot)[R][V]) {
    constexpr bool kPairs = Stored == kNibbles || Stored == kTableNibbles, kWhole = Stored == kBytes;
    constexpr long kStep = kPairs ? 8 : 4;
    for (long k = 0; k < size; k += kStep, w += kPanel * 4, x += kStep) {
        prefetch<R>(w);
        I low[V], high[V];
        for (int v = 0; v < V; v++) {
            low[v] = iload(w + v * 64);
            if (!kPairs) continue;
            high[v] = iand(shift_right<4>(low[v]), iset1(0x0f0f0f0f));
            low[v] = iand(low[v], iset1(0x0f0f0f0f));
            if (Stored == kTableNibbles) high[v] = lookup_bytes(table, high[v]), low[v] = lookup_bytes(table, low[v]);
        }
        for (int r = 0; r < R; r++) {
            I value = iset1(read_i32(x + r * stride));
            for (int v = 0; v < V; v++)
                dot[r][v] = kWhole ? dot_u8(dot[r][v], low[v], value) : dot_u7(dot[r][v], low[v], value);
        }
        for (int r = 0; r < R && kPairs; r++) {
            I value = iset1(read_i32(x + r * stride + 4));
            for (int v = 0; v < V; v++) dot[r][v] = dot_u7(dot[r][v], high[v], value);
        }
    }
}

// Number of inputs that share a scale: a part of a group, of which the last may be smaller.
LANE long part_size(const PackedLinear &l, long part) {
    const long left = l.group - part * l.input_group;
    return left < l.input_group ? left : l.input_group;
}

// Sums are exact within a group, then one fused step per group. Parts: one step per part of a group whose inputs
// share a scale. Zeros: each group has a zero point. Integer and float sums of a block both stay in registers, so
// blocks have fewer rows than those of float weights.
template <Integers Stored, bool Parts, bool Zeros> struct IntDotKind {
    static constexpr long kBits = Stored == kNibbles || Stored == kTableNibbles ? 4 : 8;
    static constexpr int kWide = kWideIntRows, kRows = kMaxIntRows;
    LANE long steps(const PackedLinear &l) { return l.input_groups; }
    template <int R, int V>
    LANE void run(const LinearCall &c, const uint8_t *panel, long vector, long row, Steps steps, F (&acc)[R][V]) {
        const PackedLinear &l = *c.weight;
        const long groups = l.input_groups, stride = (long)c.staged_stride, record_bytes = (long)l.record_bytes;
        const long parts = Parts ? l.input_parts : 1, first = steps.begin / parts;
        const int type = l.scale_type, minimum = !Zeros && l.has_minimum;
        const uint8_t *record = panel + first * record_bytes + vector * 64, *tail = panel + first * record_bytes + l.value_bytes;
        const uint8_t *w = record, *x = row_staged(c, row) + first * l.group;
        const GroupMeta *meta = c.meta + row * groups + steps.begin;
        const I table = Stored == kTableNibbles ? load_bytes(l.bytes) : izero();
        long part = Parts ? steps.begin % parts : 0, size = l.group;
        if (Parts) x += part * l.input_group, w += part * l.input_group * (kPanel * kBits / 8);
        for (long g = steps.begin; g < steps.end; g++, meta++, x += size) {
            if (Parts) size = part_size(l, part);
            I dot[R][V];
            for (int r = 0; r < R; r++)
                for (int v = 0; v < V; v++) dot[r][v] = iset1(meta[r * groups].correction);
            int_dot<Stored>(w, x, stride, size, table, dot);
            F scale[V], low[V];
            for (int v = 0; v < V; v++) {
                scale[v] = scales(tail, type, vector + v);
                low[v] = minimum ? scales(tail + l.scale_bytes, type, vector + v) : zero();
                if (Zeros) low[v] = sub(zero(), zero_points(l, tail, vector + v));
            }
            for (int r = 0; r < R; r++) {
                F factor = set1(meta[r * groups].scale), total = set1(meta[r * groups].sum);
                for (int v = 0; v < V; v++) {
                    F product = to_float(dot[r][v]);
                    // exact: all terms are below 2^24.
                    if (Zeros) product = fma(low[v], set1(meta[r * groups].total), product);
                    acc[r][v] = fma(mul(product, factor), scale[v], acc[r][v]);
                    if (minimum) acc[r][v] = fma(low[v], total, acc[r][v]);
                }
            }
            if (!Parts) {
                w += record_bytes, tail += record_bytes;
            } else if (++part < parts) {
                w += size * (kPanel * kBits / 8);
            } else {
                part = 0, record += record_bytes, tail += record_bytes, w = record;
            }
        }
    }
};

// A single group for the whole row, of inputs too: sums stay integer, hence exact, to the end, so all registers hold
// one kind of sum.
template <Integers Stored> struct RowDotKind {
    static constexpr int kWide = kWideRows, kRows = kMaxRows;
    LANE long steps(const PackedLinear &) { return 1; }
    template <int R, int V>
    LANE void run(const LinearCall &c, const uint8_t *panel, long vector, long row, Steps, F (&acc)[R][V]) {
        const PackedLinear &l = *c.weight;
        I dot[R][V];
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) dot[r][v] = iset1(c.meta[row + r].correction);
        int_dot<Stored>(panel + vector * 64, row_staged(c, row), (long)c.staged_stride, l.group, izero(), dot);
        for (int v = 0; v < V; v++) {
            F scale = scales(panel + l.value_bytes, l.scale_type, vector + v);
            for (int r = 0; r < R; r++) acc[r][v] = mul(mul(to_float(dot[r][v]), set1(c.meta[row + r].scale)), scale);
        }
    }
};

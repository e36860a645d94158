// Weights stored as bit planes with two levels of scales; the integers are assembled here. Included by linear.inc.h.
//
// An expanded panel is multiplied as groups of 8-bit integers with float32 scales, and the direct product adds the
// same numbers in the same order. Both give the same bits, equal to those of the same weight stored as such groups.

// Measured: above this many rows, expanding the panel is faster. Not with sums of pairs (below): at 96 rows of 4 bits it
// takes 6% longer, of 6 bits as long.
constexpr long kDirectRows = 30;
#ifdef CORE_PAIR_SUMS
template <int Bits> constexpr long kMostDirect = Bits <= 4 ? kRowChunk : kDirectRows;
#else
template <int Bits> constexpr long kMostDirect = kDirectRows;
#endif
constexpr long kPlanesPrefetch = 8192; // bytes ahead; measured: the hardware prefetcher is too late here, and 4096 is 4% slower

template <int Shift> LANE I moved(I x) { // shifts left by Shift bits, or right if negative
    if constexpr (Shift > 0) return shift_left<Shift>(x);
    if constexpr (Shift < 0) return shift_right<-Shift>(x);
    return x;
}

// Extracts the field of `Bits` bits at bit `At` of each byte, for the quad `Quad` of a plane.
template <int Bits, int At, int Quad> LANE I field(const uint8_t *plane) {
    constexpr int kQuads = 8 / Bits; // quads per word
    constexpr int32_t kMask = (int32_t)(0x01010101u * (((1u << Bits) - 1) << At));
    return iand(moved<At - Quad % kQuads * Bits>(iload(plane + Quad / kQuads * kPanel * 4)), iset1(kMask));
}

// Inputs 4 * Quad ... 4 * Quad + 3 of a unit, one per byte, for 16 outputs.
template <int Bits, bool Table, int Quad> LANE I quad(const uint8_t *unit, I table) {
    constexpr int kLow = Bits < 4 ? 2 : 4, kHigh = Bits - kLow;
    I value = field<kLow, 0, Quad>(unit);
    if constexpr (kHigh > 0) value = ior(value, field<kHigh, kLow, Quad>(unit + kUnit * kPanel * kLow / 8));
    if constexpr (Table) value = lookup_bytes(table, value);
    return value;
}

template <int V> struct Scales {
    F scale[V], minimum[V]; // minimum holds the negated zero points where a weight has these
};

template <int V> LANE Scales<V> super_scales(const PackedLinear &l, const uint8_t *record, long vector) {
    Scales<V> s;
    for (int v = 0; v < V; v++) {
        s.scale[v] = scales(record, kScaleF16, vector + v);
        if (l.format >= kPlanesCode4) s.scale[v] = mul(s.scale[v], set1(l.code_unit));
        if (l.has_zeros)
            s.minimum[v] = sub(zero(), to_float(load_u8(record + kPanel * 2 + (vector + v) * 16)));
        else
            s.minimum[v] = l.has_minimum ? scales(record + kPanel * 2, kScaleF16, vector + v) : zero();
    }
    return s;
}

// Products of a float16 and a small integer are exact.
template <int V> LANE Scales<V> group_scales(const PackedLinear &l, const Scales<V> &super, const uint8_t *sub, long vector) {
    Scales<V> s = super;
    for (int v = 0; v < V && l.sub_scales; v++, sub += 16) {
        const uint8_t *lanes = sub + vector * 16;
        if (l.sub_scales == kSubNibbles) {
            const I both = load_u8(lanes);
            s.scale[v] = mul(super.scale[v], to_float(iand(both, iset1(15))));
            s.minimum[v] = mul(super.minimum[v], to_float(shift_right<4>(both)));
        } else {
            s.scale[v] = mul(super.scale[v], to_float(load_i8(lanes)));
            if (l.has_minimum) s.minimum[v] = mul(super.minimum[v], to_float(load_i8(lanes + kPanel)));
        }
    }
    return s;
}

template <int Bits, bool Table, int Quad, int R, int V>
LANE void quad_dot(const uint8_t *unit, const uint8_t *x, long stride, I table, I (&dot)[R][V]) {
    I weights[V];
    for (int v = 0; v < V; v++) weights[v] = quad<Bits, Table, Quad>(unit + v * 64, table);
    for (int r = 0; r < R; r++) {
        const I value = iset1(read_i32(x + r * stride + 4 * Quad));
        for (int v = 0; v < V; v++)
            dot[r][v] = Table ? dot_u8(dot[r][v], weights[v], value) : dot_u7(dot[r][v], weights[v], value);
    }
}

#ifdef CORE_PAIR_SUMS
// Quads of integers up to `most` whose products, of inputs down to -128, add up in 16 bits. Without an instruction for sums
// of four products this spares each quad a widening: a row of 2,048 inputs with weights in the cache reads 21 GB/s in place
// of 14 to 19 at 4 bits and 18 in place of 13 at 6 bits (one thread of a Zen 3, AVX2).
constexpr long most_quads(long most) { return 32767 / (2 * 128 * most); }

template <int Bits, int Quad, int R, int V>
LANE void quad_products(const uint8_t *unit, const uint8_t *x, long stride, I (&pairs)[R][V]) {
    I weights[V];
    for (int v = 0; v < V; v++) weights[v] = quad<Bits, false, Quad>(unit + v * 64, izero());
    for (int r = 0; r < R; r++) {
        const I value = iset1(read_i32(x + r * stride + 4 * Quad));
        for (int v = 0; v < V; v++) pairs[r][v] = add_products(pairs[r][v], weights[v], value);
    }
}

// `Count` quads, whose sums fit into 16 bits.
template <int Bits, int First, int Count, int R, int V>
LANE void quads_dot(const uint8_t *unit, const uint8_t *x, long stride, I (&dot)[R][V]) {
    I pairs[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) pairs[r][v] = izero();
    quad_products<Bits, First>(unit, x, stride, pairs);
    quad_products<Bits, First + 1>(unit, x, stride, pairs);
    if constexpr (Count == 4) {
        quad_products<Bits, First + 2>(unit, x, stride, pairs);
        quad_products<Bits, First + 3>(unit, x, stride, pairs);
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) dot[r][v] = add_pairs(dot[r][v], pairs[r][v]);
}
#endif

// Half of a unit, from the quad `First` on.
template <int Bits, bool Table, int First, int R, int V>
LANE void half_dot(const uint8_t *unit, const uint8_t *x, long stride, I table, I (&dot)[R][V]) {
#ifdef CORE_PAIR_SUMS
    if constexpr (!Table) {
        constexpr int kCount = most_quads((1 << Bits) - 1) >= 4 ? 4 : 2;
        static_assert(most_quads((1 << Bits) - 1) >= kCount, "sums would overflow");
        quads_dot<Bits, First, kCount>(unit, x, stride, dot);
        if constexpr (kCount == 2) quads_dot<Bits, First + 2, kCount>(unit, x, stride, dot);
        return;
    }
#endif
    quad_dot<Bits, Table, First>(unit, x, stride, table, dot);
    quad_dot<Bits, Table, First + 1>(unit, x, stride, table, dot);
    quad_dot<Bits, Table, First + 2>(unit, x, stride, table, dot);
    quad_dot<Bits, Table, First + 3>(unit, x, stride, table, dot);
}

template <int R, int V> LANE void begin_group(const GroupMeta *meta, long groups, I (&dot)[R][V]) {
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) dot[r][v] = iset1(meta[r * groups].correction);
}

template <bool Zeros, int R, int V>
LANE void end_group(const PackedLinear &l, const GroupMeta *meta, const Scales<V> &s, const I (&dot)[R][V], F (&acc)[R][V]) {
    for (int r = 0; r < R; r++) {
        const GroupMeta &inputs = meta[r * l.groups];
        const F factor = set1(inputs.scale), total = set1(inputs.sum), whole = set1(inputs.total);
        for (int v = 0; v < V; v++) {
            F product = to_float(dot[r][v]);
            if (Zeros) product = fma(s.minimum[v], whole, product); // exact: all terms are below 2^24
            acc[r][v] = fma(mul(product, factor), s.scale[v], acc[r][v]);
            if (!Zeros && l.has_minimum) acc[r][v] = fma(s.minimum[v], total, acc[r][v]);
        }
    }
}

template <int Bits, bool Table, bool Zeros> struct PlanesDotKind {
    static constexpr int kWide = kWideIntRows, kRows = kMaxIntRows;
    LANE long steps(const PackedLinear &l) { return l.k / kUnit; }
    template <int R, int V>
    LANE void run(const LinearCall &c, const uint8_t *panel, long vector, long row, Steps steps, F (&acc)[R][V]) {
        const PackedLinear &l = *c.weight;
        const long stride = (long)c.staged_stride, units = l.super / kUnit;
        const bool halves = l.group < kUnit;
        const I table = Table ? load_bytes(l.bytes) : izero();
        const uint8_t *x = row_staged(c, row) + steps.begin * kUnit;
        const GroupMeta *meta = c.meta + row * l.groups + steps.begin * (kUnit / l.group);
        const uint8_t *panel_end = panel + l.panel_bytes, *next = c.next ? c.next : panel_end;
        for (long unit = steps.begin; unit < steps.end;) {
            const long super = unit / units, first = super * units;
            const long stop = first + units < steps.end ? first + units : steps.end;
            const uint8_t *record = panel + super * l.record_bytes;
            const uint8_t *sub = record + l.head_bytes + (unit - first) * l.unit_bytes;
            const Scales<V> upper = super_scales<V>(l, record, vector);
            for (; unit < stop; unit++, x += kUnit, sub += l.unit_bytes) {
                const uint8_t *w = sub + l.unit_head + vector * 64;
                I dot[R][V];
                const uint8_t *ahead = sub + kPlanesPrefetch;
                if (ahead >= panel_end) ahead = next + (ahead - panel_end);
                for (int line = 0; line <= 2 * Bits; line++) __builtin_prefetch(ahead + line * 64);
                begin_group(meta, l.groups, dot);
                half_dot<Bits, Table, 0>(w, x, stride, table, dot);
                if (halves) {
                    end_group<Zeros>(l, meta++, group_scales(l, upper, sub, vector), dot, acc);
                    begin_group(meta, l.groups, dot);
                }
                half_dot<Bits, Table, 4>(w, x, stride, table, dot);
                end_group<Zeros>(l, meta++, group_scales(l, upper, w - vector * 64 - l.sub_bytes, vector), dot, acc);
            }
        }
    }
};

// Layout of the same weight as groups of 8-bit integers with float32 scales, for a panel in scratch memory.
static PackedLinear spread_form(const PackedLinear &l) {
    PackedLinear spread = l;
    spread.format = kInt8, spread.scale_type = kScaleF32, spread.scale_bytes = kPanel * sizeof(float);
    spread.value_bytes = (size_t)l.group * kPanel;
    spread.record_bytes = spread.value_bytes + spread.scale_bytes * (l.has_minimum ? 2 : 1) + (l.has_zeros ? kPanel : 0);
    spread.panel_bytes = spread.record_bytes * l.groups;
    return spread;
}

template <int Bits, bool Table, int First> LANE void spread_half(const uint8_t *unit, I table, uint8_t *out) {
    istore(out, quad<Bits, Table, First>(unit, table));
    istore(out + kPanel * 4, quad<Bits, Table, First + 1>(unit, table));
    istore(out + kPanel * 8, quad<Bits, Table, First + 2>(unit, table));
    istore(out + kPanel * 12, quad<Bits, Table, First + 3>(unit, table));
}

LANE void spread_scales(const PackedLinear &l, const Scales<2> &s, uint8_t *tail) {
    for (int v = 0; v < 2; v++) {
        store((float *)tail + v * 16, s.scale[v]);
        if (l.has_minimum) store((float *)tail + kPanel + v * 16, s.minimum[v]);
    }
}

template <int Bits, bool Table>
static void spread_panel(const PackedLinear &l, const PackedLinear &spread, const uint8_t *panel, uint8_t *out) {
    const bool halves = l.group < kUnit;
    const I table = Table ? load_bytes(l.bytes) : izero();
    const size_t second = halves ? spread.record_bytes : kUnit / 2 * kPanel; // where the second half of a unit goes
    for (const uint8_t *end = panel + l.panel_bytes; panel < end; panel += l.record_bytes) {
        const Scales<2> upper = super_scales<2>(l, panel, 0);
        for (const uint8_t *unit = panel + l.head_bytes; unit < panel + l.record_bytes; unit += l.unit_bytes) {
            const uint8_t *sub = unit, *w = unit + l.unit_head;
            for (int v = 0; v < 2; v++) {
                spread_half<Bits, Table, 0>(w + v * 64, table, out + v * 64);
                spread_half<Bits, Table, 4>(w + v * 64, table, out + second + v * 64);
            }
            for (long group = 0; group < kUnit / l.group; group++, sub += l.sub_bytes, out += spread.record_bytes) {
                uint8_t *tail = out + spread.value_bytes;
                spread_scales(l, group_scales(l, upper, sub, 0), tail);
                if (l.has_zeros) memcpy(tail + spread.scale_bytes, panel + l.head_bytes - kPanel, kPanel);
            }
        }
    }
}

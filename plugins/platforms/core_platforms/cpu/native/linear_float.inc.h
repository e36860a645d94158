// Products with plain float weights. Included by linear.inc.h.

LANE F load_weight(const float *p) { return load(p); }
LANE F load_weight(const uint16_t *p) { return load_half(p); }

// Float weights, 32 outputs per k.
template <class Element> struct FloatKind {
    static constexpr int kWide = kWideRows, kRows = kMaxRows;
    LANE long steps(const PackedLinear &l) { return l.k; }
    template <int R, int V>
    LANE void run(const LinearCall &c, const uint8_t *panel, long vector, long row, Steps steps, F (&acc)[R][V]) {
        const float *x[R];
        for (int r = 0; r < R; r++) x[r] = row_any(c, row + r);
        const Element *w = (const Element *)panel + steps.begin * kPanel + vector * 16;
        for (long k = steps.begin; k < steps.end; k++, w += kPanel) {
            prefetch<R>((const uint8_t *)w);
            F value[V];
            for (int v = 0; v < V; v++) value[v] = load_weight(w + v * 16);
            for (int r = 0; r < R; r++)
                for (int v = 0; v < V; v++) acc[r][v] = fma(value[v], set1(x[r][k]), acc[r][v]);
        }
    }
};

// bf16 weights with float32 activations (which may hold bf16 values).
struct BF16Kind {
    static constexpr int kWide = kWideRows, kRows = kMaxRows < 8 ? kMaxRows : 8;
    LANE long steps(const PackedLinear &l) { return (l.k + 1) / 2; }
    template <int R, int V>
    LANE void run(const LinearCall &c, const uint8_t *panel, long vector, long row, Steps steps, F (&acc)[R][V]) {
        const float *x[R];
        for (int r = 0; r < R; r++) x[r] = row_any(c, row + r);
        const uint8_t *w = panel + steps.begin * kPanel * 4 + vector * 64;
        const long end = 2 * steps.end < c.weight->k ? 2 * steps.end : c.weight->k;
        long k = 2 * steps.begin;
        for (; k + 1 < end; k += 2, w += kPanel * 4) {
            prefetch<R>(w);
            for (int v = 0; v < V; v++) {
                I pair = iload(w + v * 64);
                F even = as_float(shift_left<16>(pair)), odd = as_float(iand(pair, iset1((int32_t)0xffff0000)));
                for (int r = 0; r < R; r++) acc[r][v] = fma(even, set1(x[r][k]), acc[r][v]);
                for (int r = 0; r < R; r++) acc[r][v] = fma(odd, set1(x[r][k + 1]), acc[r][v]);
            }
        }
        if (k == end) return;
        for (int v = 0; v < V; v++)
            for (int r = 0; r < R; r++)
                acc[r][v] = fma(as_float(shift_left<16>(iload(w + v * 64))), set1(x[r][k]), acc[r][v]);
    }
};

#ifdef CORE_BF16_DOT
// bf16 weights and activations, two inputs k at a time.
struct BF16DotKind {
    static constexpr int kWide = kWideRows, kRows = kMaxRows;
    LANE long steps(const PackedLinear &l) { return (l.k + 1) / 2; }
    template <int R, int V>
    LANE void run(const LinearCall &c, const uint8_t *panel, long vector, long row, Steps steps, F (&acc)[R][V]) {
        const uint8_t *x[R];
        for (int r = 0; r < R; r++) x[r] = row_staged(c, row + r);
        const uint8_t *w = panel + steps.begin * kPanel * 4 + vector * 64;
        for (long p = steps.begin; p < steps.end; p++, w += kPanel * 4) {
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

// Attention of a few rows by vectors, with the bits of tiles (attention_tiles.inc.h, which includes this).
//
// Few rows leave tiles nearly empty, and reading the keys takes longer than the products. So each number is read once, and
// multiplied in the order of TDPBF16PS: even and odd products of 32 inputs apart, in fused steps, then both added to the
// sum. Subnormal numbers are flushed (FlushSubnormals), as tiles do.

constexpr long kFewRows = 4; // up to this many

// How numbers of one type become vectors of even and of odd ones.
template <int Element> LANE void load_pairs(const uint8_t *p, F &even, F &odd) {
    if constexpr (Element == kCacheI8) {
        const I w = load_u16((const uint16_t *)p); // see split_int8
        const F offset = set1(8388608.0f + 128);
        even = sub(as_float(ixor(iand(w, iset1(0xff)), iset1(0x4b000080))), offset);
        odd = sub(as_float(ixor(shift_right<8>(w), iset1(0x4b000080))), offset);
    } else {
        const I w = iload(p);
        even = as_float(shift_left<16>(w)), odd = as_float(iand(w, iset1((int32_t)0xffff0000)));
    }
}

template <int R, int V> struct PairSums {
    F sum[R][V], even[R][V], odd[R][V];
    inline __attribute__((always_inline)) void clear() {
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) sum[r][v] = even[r][v] = odd[r][v] = zero();
    }
    // Adds the products of pair `i` of each row's inputs and of a vector of pairs.
    inline __attribute__((always_inline)) void multiply(int v, const float *x, long stride, F e, F o) {
        for (int r = 0; r < R; r++) {
            even[r][v] = fma(set1(x[r * stride]), e, even[r][v]);
            odd[r][v] = fma(set1(x[r * stride + 1]), o, odd[r][v]);
        }
    }
    inline __attribute__((always_inline)) void close() { // after each 32 inputs
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) {
                sum[r][v] = add(sum[r][v], add(even[r][v], odd[r][v]));
                even[r][v] = odd[r][v] = zero();
            }
    }
};
template <int R> constexpr int kFewVectors = R <= 2 ? 4 : 2; // whose sums stay in registers

struct FewRows { // in the memory of a task's tiles
    float *q;       // [rows, kWidest] rounded to bfloat16
    float *weights; // [rows, kScoreStride] likewise
};

// Scores of R rows, four groups of keys after another. The next span's lines are fetched from four places in turn, since the
// processor itself goes on with each.
template <int Element, int R>
static void score_few(const AttentionCall &c, TileScratch &s, const FewRows &few, const Span &span, long begin, long end) {
    constexpr int V = kFewVectors<R>;
    constexpr long bytes = Element == kCacheI8 ? 32 : 64; // of a pair of dimensions
    const long pairs = c.dim / 2, lines = pairs * bytes / 64;
    for (long g = begin / 4 * 4; g < end; g += 4) {
        const uint8_t *m[4], *next[4];
        // Groups past the end repeat a neighbour; their scores are not read.
        for (long i = 0; i < 4; i++) m[i] = span.k[clamp(g + i, begin, end - 1)];
        for (long i = 0; i < 4; i++) next[i] = m[i] + span.ahead[clamp(g + i, begin, end - 1)];
        for (long half = 0; half < 4; half += V) {
            PairSums<R, V> sums;
            sums.clear();
            for (long first = 0; first < pairs; first += 16) {
                const long last = at_most(first + 16, pairs);
                for (long i = first; i < last; i++)
                    for (int v = 0; v < V; v++) {
                        F even, odd;
                        load_pairs<Element>(m[half + v] + i * bytes, even, odd);
                        sums.multiply(v, few.q + 2 * i, kWidest, even, odd);
                        if (bytes < 64 && i >= lines) continue;
                        const long line = half * lines + i * V + v;
                        fetch(V == 4 ? next[v] + i * 64 : next[line % 4] + line / 4 * 64);
                    }
                sums.close();
            }
            for (int r = 0; r < R; r++)
                for (int v = 0; v < V; v++) store(s.scores + r * kScoreStride + (g + half + v) * 16, sums.sum[r][v]);
        }
    }
}

// Adds the products of eight pairs of values or fewer: the pairs [first, last) of a group's, of keys in [from, to).
template <int Element, bool Edge, int R, int V>
LANE void weigh_pairs(const AttentionCall &c, const Levels &levels, PairSums<R, V> &sums, const float *weights,
                      const uint8_t *values, ptrdiff_t ahead, const long (&columns)[V], const long (&next)[V], long from, long to) {
    const long row_bytes = value_row_bytes<Element>(c.dim_v);
    for (long i = from / 2; i < (to + 1) / 2; i++) {
        const uint8_t *row = values + i * row_bytes;
        for (int v = 0; v < V; v++) {
            F even, odd;
            if constexpr (Element == kCacheI8) {
                load_pairs<Element>(row + 2 * columns[v], even, odd); // never NaN
            } else {
                I pairs = value_pairs<Element>(levels, row, columns[v], c.dim_v);
                // A neighbour that no row sees may be garbage, and 0 * NaN is NaN.
                if (Edge) pairs = iand(pairs, iset1(2 * i < from ? (int32_t)0xffff0000 : 2 * i + 1 >= to ? 0xffff : -1));
                even = as_float(shift_left<16>(pairs)), odd = as_float(iand(pairs, iset1((int32_t)0xffff0000)));
            }
            sums.multiply(v, weights + 2 * i, kScoreStride, even, odd);
            if (Element == kCacheBF16 || next[v] >= 0) fetch(row + next[v] + ahead);
        }
    }
}

// Outputs of R rows in V vectors of columns from `tile` on, of the keys [low, high) of the span.
template <int Element, int R, int V>
LANE void weigh_few(const AttentionCall &c, TileScratch &s, const FewRows &few, const Span &span, long tile, long low,
                    long high) {
    const Levels levels;
    long columns[V], next[V]; // bytes from a row to the line to fetch with a vector; below 0: another vector fetches it
    for (int v = 0; v < V; v++) {
        const long column = columns[v] = tile_column(c, tile + v);
        if (Element == kCacheBF16) next[v] = 4 * column;
        if (Element == kCacheI8) next[v] = column % 32 ? -1 : 2 * column;
        if (Element == kCacheK8V4) next[v] = column < c.dim_v / 4 ? 4 * column : -1;
    }
    PairSums<R, V> sums;
    sums.clear();
    for (long g = low / 32 * 2; g * 16 < high; g++) {
        const long from = clamp(low - g * 16, 0, 16), to = clamp(high - g * 16, 0, 16);
        const float *weights = few.weights + g * 16;
        if (from % 2 || to % 2)
            weigh_pairs<Element, true, R, V>(c, levels, sums, weights, span.v[g], span.ahead[g], columns, next, from, to);
        else
            weigh_pairs<Element, false, R, V>(c, levels, sums, weights, span.v[g], span.ahead[g], columns, next, from, to);
        if (g % 2) sums.close();
    }
    sums.close(); // adds 0 where it was closed
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(s.out + r * kWidest + tile_column(c, tile + v), sums.sum[r][v]);
}

template <int Element, int R>
static void attend_few(const AttentionCall &c, TileScratch &s, const FewRows &few, const Span &span) {
    constexpr int V = kFewVectors<R>;
    long low[R], high[R], first, last;
    if (!seen_keys(s, span, 0, R, low, high, first, last)) return;
    const long begin = first / 16, end = (last + 15) / 16, tiles = value_tiles(c);
    score_few<Element == kCacheBF16 ? kCacheBF16 : kCacheI8, R>(c, s, few, span, begin, end);
    for (long r = 0; r < R; r++) {
        uint8_t *weights = s.weights + r * kWeightStride;
        softmax_row<true>(c, s.scores + r * kScoreStride, weights, span, s.row[r], begin, end, low[r], high[r], s.peaks[r],
                          s.totals[r]);
        for (long g = begin / 2 * 2; g < (end + 1) / 2 * 2; g++)
            istore(few.weights + r * kScoreStride + g * 16, shift_left<16>(load_u16((const uint16_t *)weights + g * 16)));
    }
    long tile = 0;
    for (; tile + V <= tiles; tile += V) weigh_few<Element, R, V>(c, s, few, span, tile, first, last);
    for (; tile < tiles; tile++) weigh_few<Element, R, 1>(c, s, few, span, tile, first, last);
}

template <int Element>
LANE void attend_few_rows(const AttentionCall &c, long rows, TileScratch &s, const FewRows &few, const Span &span) {
    if (rows == 1) attend_few<Element, 1>(c, s, few, span);
    if (rows == 2) attend_few<Element, 2>(c, s, few, span);
    if (rows == 3) attend_few<Element, 3>(c, s, few, span);
    if (rows == 4) attend_few<Element, 4>(c, s, few, span);
}

static void attend_all_few(const AttentionCall &c, const AttentionTask &t, TileScratch &s, long low, long high) {
    const bool narrow = widens_to_tiles(c) && c.element >= kCacheI8;
    const FewRows few = {(float *)s.k, (float *)s.v};
    for (long r = 0; r < t.rows; r++) {
        load_query<true>(c, s.row[r], s.q);
        for (long i = 0; i < c.dim; i += 16) istore(few.q + r * kWidest + i, shift_left<16>(load_u16((const uint16_t *)s.q + i)));
    }
    for (long i = t.span; i < t.span + t.spans; i++) {
        if (join_shared(c, t, s, i)) continue;
        Span span;
        span.first = i * kSpan;
        locate(c, t, s.span, span, low, high, narrow);
        if (!narrow) attend_few_rows<kCacheBF16>(c, t.rows, s, few, span);
        if (narrow && c.element == kCacheI8) attend_few_rows<kCacheI8>(c, t.rows, s, few, span);
        if (narrow && c.element == kCacheK8V4) attend_few_rows<kCacheK8V4>(c, t.rows, s, few, span);
        keep_rows(c, t, s, span, 0, t.rows);
    }
}

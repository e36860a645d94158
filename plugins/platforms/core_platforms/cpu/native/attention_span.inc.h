// Paged attention (causal, except in encoders) in spans of kSpan keys. Each span has its own softmax in float32;
// spans are merged afterwards in order.
//
// The lanes of a score are keys, the lanes of an output are its columns (see span.inc.h), and only the softmax sums
// across lanes. A row's bits depend on its own keys alone, not on how queries, sequences and spans are split into
// tasks.
//
// With bf16 products, queries and weights are rounded to bf16 whatever the number of queries, so that the bits do not
// depend on the batch.

#ifdef CORE_BF16_DOT
constexpr bool kRounds = true;
#else
constexpr bool kRounds = false;
#endif
constexpr float kLog2E = 1.44269504f;
constexpr long kNever = 1L << 40;
// Rows up to which numbers of 8 bits and fewer are widened as they are read, so that sums stay in registers: with codes of
// 4 bits four vectors for each row, with bytes at least one.
constexpr int kCodeRows = kAttentionSums / 4 < 4 ? kAttentionSums / 4 : 4;
constexpr int kByteRows = kAttentionSums >= 4 ? 4 : kCodeRows;
// Vectors of sums of R rows that stay in registers.
template <int R> constexpr int kColumns = kAttentionSums >= 4 * R ? 4 : kAttentionSums >= 2 * R ? 2 : 1;
// One vector more than needed: with a power of two, rows would compete for the same few cache sets.
constexpr long kWidest = kMaxHead + 16;

// Bytes of one number on the broadcast side of a product: an element of a query or the weight of a key.
template <bool Half> constexpr long kBroadcastBytes = Half && kRounds ? 2 : 4;

struct Row {
    int32_t sequence, row; // row: within the sequence and kv head
    int32_t token, head;   // the query's token in the batch and its query head
    int32_t position;
    int32_t first, end; // keys that the query sees: [first, end)
};

struct AttentionScratch { // working memory of one task
    Row row[kTaskRows];
    uint8_t q[kTaskRows * kWidest * 4]; // queries multiplied by the score scale
    float sums[kTaskRows * kWidest];
    float maximum[kTaskRows], total[kTaskRows];
    // The following hold one block of rows and one span.
    alignas(64) float scores[16 * (kSpan + 16)];
    alignas(64) uint8_t weights[16 * (kSpan + 16) * 4];
    alignas(64) float out[16 * kWidest];
    alignas(64) float peaks[16], totals[16];
    SpanScratch span;
};
static_assert(sizeof(AttentionScratch) <= kAttentionBytes, "a task's memory is too small");

// acc[r] += x[r] * pair at step i of two keys or dimensions.
template <int R, int V> LANE void multiply_pairs(F (&acc)[R][V], const uint8_t *x, long row_bytes, long i, const I (&pair)[V]) {
    for (int r = 0; r < R; r++) {
#ifdef CORE_BF16_DOT
        I both = iset1(read_i32(x + r * row_bytes + 4 * i));
        for (int v = 0; v < V; v++) acc[r][v] = dot_bf16(acc[r][v], pair[v], both);
#else
        const float *even = (const float *)(x + r * row_bytes) + 2 * i;
        for (int v = 0; v < V; v++) {
            acc[r][v] = fma(set1(even[0]), as_float(shift_left<16>(pair[v])), acc[r][v]);
            acc[r][v] = fma(set1(even[1]), as_float(iand(pair[v], iset1((int32_t)0xffff0000))), acc[r][v]);
        }
#endif
    }
}

// The same of pairs of bytes, each vector's 16 pairs at its address in `m`.
template <int R, int V>
LANE void multiply_bytes(F (&acc)[R][V], const uint8_t *x, long row_bytes, long i, const uint8_t *const (&m)[V], long at) {
#ifdef CORE_BF16_DOT
    I pair[V];
    for (int v = 0; v < V; v++) pair[v] = widen<kCacheI8>(m[v] + at);
    multiply_pairs<R, V>(acc, x, row_bytes, i, pair);
#else
    for (int v = 0; v < V; v++) { // bytes become floats at once: as pairs of bfloat16 they would be split again
        F even, odd;
        split_int8(load_u16((const uint16_t *)(m[v] + at)), even, odd);
        for (int r = 0; r < R; r++) {
            const float *pair = (const float *)(x + r * row_bytes) + 2 * i;
            acc[r][v] = fma(set1(pair[0]), even, acc[r][v]);
            acc[r][v] = fma(set1(pair[1]), odd, acc[r][v]);
        }
    }
#endif
}

// Line by line as the span before is read: all lines of a span at once would keep its own reads waiting. Sapphire Rapids
// reads 10% faster where lines come to the second-level cache alone.
#ifdef CORE_TILES
LANE void fetch(const uint8_t *p) { __builtin_prefetch(p, 0, 2); }
#else
LANE void fetch(const uint8_t *p) { __builtin_prefetch(p); }
#endif

// acc[r] += x[r] * m, one key or dimension per step (bf16: two, of which `mask` may hide one). What is `ahead` bytes
// further is fetched.
template <bool Half, int R, int V>
LANE void outer(F (&acc)[R][V], const uint8_t *x, long row_bytes, const uint8_t *const (&m)[V], const ptrdiff_t (&ahead)[V],
                long step_bytes, long steps, int32_t mask = -1) {
    for (long i = 0; i < steps; i++) {
        for (int v = 0; v < V && R <= 4; v++) fetch(m[v] + ahead[v] + i * step_bytes);
        if (!Half) {
            F value[V];
            for (int v = 0; v < V; v++) value[v] = load((const float *)(m[v] + i * step_bytes));
            for (int r = 0; r < R; r++)
                for (int v = 0; v < V; v++)
                    acc[r][v] = fma(set1(((const float *)(x + r * row_bytes))[i]), value[v], acc[r][v]);
            continue;
        }
        I pair[V];
        for (int v = 0; v < V; v++) {
            pair[v] = iload(m[v] + i * step_bytes);
            if (mask != -1) pair[v] = iand(pair[v], iset1(mask));
        }
        multiply_pairs<R, V>(acc, x, row_bytes, i, pair);
    }
}

// The same over keys of bytes, which are widened as they are read. dim: numbers of a key.
template <int R, int V>
LANE void outer_bytes(F (&acc)[R][V], const uint8_t *x, long row_bytes, const uint8_t *const (&m)[V],
                      const ptrdiff_t (&ahead)[V], long dim) {
    for (long i = 0; i < dim / 2; i++) {
        for (int v = 0; v < V && i % 2 == 0; v++) fetch(m[v] + ahead[v] + 32 * i);
        multiply_bytes<R, V>(acc, x, row_bytes, i, m, 32 * i);
    }
}

// Stores x in the form that the broadcast side of a product reads.
template <bool Half> LANE void store_broadcast(uint8_t *p, F x) {
#ifdef CORE_BF16_DOT
    if (Half) return store_bf16((uint16_t *)p, x);
#endif
    store((float *)p, x);
}

// 2^x for x <= 0, accurate to about 2 units in the last place; 2^0 is exactly 1. Scores are base-2 logarithms: see
// load_queries.
LANE F power_of_two(F x) {
#ifdef CORE_SCALE_POWER
    F r = fraction(x), p = fma(r, set1(1.86713017e-3f), set1(9.01702978e-3f));
    p = fma(p, r, set1(5.57999127e-2f));
    p = fma(p, r, set1(2.40164444e-1f));
    p = fma(p, r, set1(6.93151295e-1f));
    return scale_power(fma(p, r, set1(1)), x);
#else
    // Keeps the exponent that is added below in range; 2^-125 is negligible next to the peak's weight of 1.
    x = max(x, set1(-125));
    I n = round_to_int(x);
    F r = sub(x, to_float(n)); // exact, in -1/2 to 1/2
    F p = fma(r, set1(1.32647244e-3f), set1(9.67151324e-3f));
    p = fma(p, r, set1(5.55073376e-2f));
    p = fma(p, r, set1(2.40222421e-1f));
    p = fma(p, r, set1(6.93146978e-1f));
    p = fma(p, r, set1(1));
    return as_float(iadd(as_int(p), shift_left<23>(n)));
#endif
}

LANE F soft_cap(F x, float cap) { // cap * tanh(x / cap)
    F e = exponential(mul(x, set1(2.0f / cap)));
    return mul(set1(cap), sub(set1(1), div(set1(2), add(e, set1(1)))));
}

LANE long rows_of(const AttentionCall &c, long sequence) {
    return (long)(c.cu_seqlens[sequence + 1] - c.cu_seqlens[sequence]) * (c.heads_q / c.heads_kv);
}

// Lists the task's rows: some rows of its sequence, or its members' rows one member after another.
static void set_rows(const AttentionCall &c, const AttentionTask &t, Row *to) {
    const long group = c.heads_q / c.heads_kv, count = t.members ? t.num_members : 1;
    long skip = t.row, r = 0;
    for (long i = 0; i < count && r < t.rows; i++) {
        const int32_t sequence = t.members ? t.members[i] : t.sequence, start = c.cu_seqlens[sequence];
        const long rows = rows_of(c, sequence), first = c.seq_lens[sequence] - rows / group;
        for (long row = skip; row < rows && r < t.rows; row++) {
            const long position = first + row / group;
            to[r++] = {sequence, int32_t(row), int32_t(start + row / group), int32_t(t.head_kv * group + row % group),
                       int32_t(position), int32_t(first_key(c, position)), int32_t(end_key(c, sequence, position))};
        }
        skip = skip > rows ? skip - rows : 0;
    }
}

// The keys [low, high) that a row sees.
LANE void row_range(const Row &row, long &low, long &high) { low = row.first, high = row.end; }

template <bool Half, int Narrow, int R, int V>
LANE void score_groups(const AttentionCall &c, AttentionScratch &s, const Span &span, long row, long begin, long end) {
    const long row_bytes = kWidest * kBroadcastBytes<Half>;
    for (long g = begin / V * V; g < end; g += V) {
        F acc[R][V];
        const uint8_t *m[V];
        ptrdiff_t ahead[V];
        // Groups past the end repeat a neighbour; their scores are not read.
        for (int v = 0; v < V; v++) {
            const long at = clamp(g + v, begin, end - 1);
            m[v] = span.k[at], ahead[v] = span.ahead[at];
        }
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) acc[r][v] = zero();
        if (Narrow)
            outer_bytes(acc, s.q + row * row_bytes, row_bytes, m, ahead, c.dim);
        else
            outer<Half>(acc, s.q + row * row_bytes, row_bytes, m, ahead, 64, Half ? c.dim / 2 : c.dim);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) store(s.scores + r * (kSpan + 16) + (g + v) * 16, acc[r][v]);
    }
}

// The final scores of 16 keys, as base-2 logarithms.
LANE F final_scores(const AttentionCall &c, F a, const float *scales, float slope, long ahead) {
    if (scales) a = mul(a, load(scales));
    if (c.cap != 0) a = soft_cap(a, c.cap * kLog2E);
    if (c.slopes) a = fma(to_float(iadd(iota(), iset1((int32_t)ahead))), set1(slope), a);
    return a;
}

// Softmax weights of group g: of the keys in [low, high) of the span, 0 for the others.
LANE F weights_of(const float *scores, long g, F peak, long low, long high) {
    if (low >= g * 16 + 16 || high <= g * 16) return zero();
    F a = power_of_two(sub(load(scores + g * 16), peak));
    if (low <= g * 16 && high >= g * 16 + 16) return a;
    return select_range(a, zero(), (int32_t)(low - g * 16), (int32_t)(high - g * 16));
}

// The weights times the per-token scales of the values. Scales outside [low, high) are uninitialised, so those lanes
// are set to 0 again.
LANE F scaled_weights(F a, const float *scales, long g, long low, long high) {
    if (!scales) return a;
    return select_range(mul(a, load(scales)), zero(), (int32_t)(low - g * 16), (int32_t)(high - g * 16));
}

// Stores the weights of the groups [begin, end) and returns their sum. Without value scales the sum is of the stored
// (rounded) weights, so that a row's weights sum to the total it is divided by.
template <bool Half>
LANE F store_weights(const AttentionCall &c, const float *scores, uint8_t *to, const Span &span, F peak, long begin, long end,
                     long low, long high) {
    F total = zero();
#ifdef CORE_BF16_DOT
    for (long g = begin / 2 * 2; Half && g < end; g += 2) {
        F a = weights_of(scores, g, peak, low, high), b = weights_of(scores, g + 1, peak, low, high);
        if (c.scaled) {
            total = add(total, add(a, b));
            a = scaled_weights(a, span.v_scales[g], g, low, high), b = scaled_weights(b, span.v_scales[g + 1], g + 1, low, high);
        }
        const I both = pack_bf16(a, b);
        istore(to + g * 32, both);
        if (!c.scaled) total = dot_bf16(total, both, iset1(0x3f803f80)); // ones
    }
    if (Half) return total;
#endif
    for (long g = begin; g < end; g++) {
        F a = weights_of(scores, g, peak, low, high);
        total = add(total, a);
        store((float *)to + g * 16, c.scaled ? scaled_weights(a, span.v_scales[g], g, low, high) : a);
    }
    return total;
}

// Computes one row's weights from its scores; keys of the groups [begin, end) outside [low, high) get exactly 0.
template <bool Half>
LANE void softmax_row(const AttentionCall &c, float *scores, uint8_t *weights, const Span &span, const Row &row, long begin,
                      long end, long low, long high, float &peak, float &total) {
    const F never = set1(-__builtin_inff());
    const bool changed = c.cap != 0 || c.scaled || c.slopes;
    const float slope = c.slopes ? c.slopes[row.head] * kLog2E : 0;
    F top = never;
    for (long g = begin; g < end; g++) {
        const bool partly = low > g * 16 || high < g * 16 + 16;
        F a = load(scores + g * 16);
        if (changed) a = final_scores(c, a, span.k_scales[g], slope, span.first + g * 16 - row.position);
        if (partly) a = select_range(a, never, (int32_t)(low - g * 16), (int32_t)(high - g * 16));
        if (partly || changed) store(scores + g * 16, a);
        top = max(top, a);
    }
    peak = largest(top);
    total = sum(store_weights<Half>(c, scores, weights, span, set1(peak), begin, end, low, high));
}

// out[r] = the weighted sum of the values of the keys [low, high) of the span, V vectors of columns at a time.
template <bool Half, int R, int V>
LANE void weigh_columns(const AttentionCall &c, AttentionScratch &s, const Span &span, long column, long low, long high) {
    constexpr long pair = Half ? 2 : 1, row_bytes = (kSpan + 16) * kBroadcastBytes<Half>;
    const long step = c.dim_v * 4;
    F acc[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) acc[r][v] = zero();
    for (long g = low / 16; g * 16 < high; g++) {
        const long from = clamp(low - g * 16, 0, 16), to = clamp(high - g * 16, 0, 16);
        const long first = (from + pair - 1) / pair, last = to / pair;
        const uint8_t *x = s.weights + g * 16 * kBroadcastBytes<Half>, *m[V];
        ptrdiff_t ahead[V];
        for (int v = 0; v < V; v++) m[v] = span.v[g] + (column + v * 16) * 4 + first * step;
        for (int v = 0; v < V; v++) ahead[v] = span.ahead[g];
        // The even neighbour lies outside the window or does not exist: its value may be garbage, and 0 * NaN is NaN.
        if (Half && from % 2) {
            const uint8_t *edge[V];
            for (int v = 0; v < V; v++) edge[v] = m[v] - step;
            const int32_t odd = (int32_t)0xffff0000;
            outer<Half>(acc, x + (first - 1) * pair * kBroadcastBytes<Half>, row_bytes, edge, ahead, step, 1, odd);
        }
        outer<Half>(acc, x + first * pair * kBroadcastBytes<Half>, row_bytes, m, ahead, step, last - first);
        if (Half && to % 2) { // the odd neighbour is not written yet
            for (int v = 0; v < V; v++) m[v] += (last - first) * step;
            outer<Half>(acc, x + last * pair * kBroadcastBytes<Half>, row_bytes, m, ahead, step, 1, 0x0000ffff);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(s.out + r * kWidest + column + v * 16, acc[r][v]);
}

// The same of the columns l of each quarter, whose codes share a half (`Narrow` kCacheK8V4), or of V vectors of bytes
// from column l. A neighbour that no row sees has the weight 0, and these types have no NaN.
template <int Narrow, int R, int V>
LANE void weigh_narrow(const AttentionCall &c, AttentionScratch &s, const Span &span, long l, long low, long high) {
    constexpr long bytes = kBroadcastBytes<true>, row_bytes = (kSpan + 16) * bytes;
    const long step = Narrow == kCacheI8 ? 2 * c.dim_v : c.dim_v, apart = Narrow == kCacheI8 ? 16 : c.dim_v / 4;
    const Levels levels;
    F acc[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) acc[r][v] = zero();
    for (long g = low / 16; g * 16 < high; g++) {
        const long from = clamp(low - g * 16, 0, 16), to = clamp(high - g * 16, 0, 16);
        const uint8_t *m = span.v[g] + l * (Narrow == kCacheI8 ? 2 : 4);
        for (long i = from / 2; i < (to + 1) / 2; i++) {
            for (long at = 0; at < V * 32; at += 64) fetch(m + span.ahead[g] + i * step + at);
            if constexpr (Narrow == kCacheI8) {
                const uint8_t *columns[V];
                for (int v = 0; v < V; v++) columns[v] = m + 32 * v;
                multiply_bytes<R, V>(acc, s.weights + g * 16 * bytes, row_bytes, i, columns, i * step);
            } else {
                I pair[V];
                quarters(levels, iload(m + i * step), pair);
                multiply_pairs<R, V>(acc, s.weights + g * 16 * bytes, row_bytes, i, pair);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(s.out + r * kWidest + l + v * apart, acc[r][v]);
}

// The outputs of all columns. The last vector may recompute a few, or run into the next quarter, which is stored after it.
template <int Narrow, int R>
LANE void weigh_all_narrow(const AttentionCall &c, AttentionScratch &s, const Span &span, long low, long high) {
    const long width = Narrow == kCacheI8 ? c.dim_v : c.dim_v / 4;
    long l = 0;
    if constexpr (Narrow == kCacheI8) {
        constexpr int V = kColumns<R>;
        for (; l + V * 16 <= width; l += V * 16) weigh_narrow<Narrow, R, V>(c, s, span, l, low, high);
    }
    for (; l < width; l += 16)
        weigh_narrow<Narrow, R, Narrow == kCacheI8 ? 1 : 4>(c, s, span, l > width - 16 && width > 16 ? width - 16 : l, low, high);
}

// Softmax and output of R rows over one span, into peaks, totals and out; a row that sees no key has the total 0.
template <bool Half, int Narrow, int R>
static __attribute__((noinline)) void attend(const AttentionCall &c, AttentionScratch &s, const Span &span, long row) {
    constexpr int V = kColumns<R>;
    long low[R], high[R], first = kSpan, last = 0;
    for (int r = 0; r < R; r++) {
        row_range(s.row[row + r], low[r], high[r]);
        low[r] = clamp(low[r] - span.first, 0, kSpan), high[r] = clamp(high[r] - span.first, 0, kSpan);
        s.totals[r] = 0;
        if (low[r] >= high[r]) continue;
        first = low[r] < first ? low[r] : first, last = high[r] > last ? high[r] : last;
    }
    if (first >= last) return;
    const long begin = first / 16, end = (last + 15) / 16;
    score_groups<Half, Narrow, R, V>(c, s, span, row, begin, end);
    for (int r = 0; r < R; r++)
        softmax_row<Half>(c, s.scores + r * (kSpan + 16), s.weights + r * (kSpan + 16) * kBroadcastBytes<Half>, span,
                          s.row[row + r], begin, end, low[r], high[r], s.peaks[r], s.totals[r]);
    if (Narrow) return weigh_all_narrow<Narrow, R>(c, s, span, first, last);
    long column = 0;
    for (; column + V * 16 <= c.dim_v; column += V * 16) weigh_columns<Half, R, V>(c, s, span, column, first, last);
    for (; column < c.dim_v; column += 16) // the last vector may recompute a few columns
        weigh_columns<Half, R, 1>(c, s, span, column < c.dim_v - 16 ? column : c.dim_v - 16, first, last);
}

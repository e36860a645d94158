// Paged causal attention in spans of kSpan keys, each with its own softmax in float32, joined afterwards. cache.inc.h writes
// what this reads.
//
// A block holds, for each kv head, K and then V. In float32, K is [block_size / 16][dim][16 keys] and V [block_size][dim_v];
// in bf16 two neighbours that a product sums share 32 bits: K is [block_size / 16][dim / 2][16 keys][2] and V
// [block_size / 2][dim_v][2]. So the lanes of a score are keys and the lanes of an output are its columns, and no sum runs
// across lanes but the softmax's own. Where 16 does not divide the block size, K is [block_size][dim] and V
// [block_size][dim_v], and spans are first gathered into that shape (slower).
//
// With bf16 products, queries and weights are rounded to bf16, whatever the number of queries.

#ifdef CORE_BF16_DOT
constexpr bool kRounds = true;
#else
constexpr bool kRounds = false;
#endif
constexpr float kLog2E = 1.44269504f;
constexpr long kGroups = kSpan / 16;
constexpr long kWidest = kMaxHead + 16; // one vector more than needed: powers of two would share few cache sets

// Bytes of one number on the broadcast side of a product: a query's element or a key's weight.
template <bool Half> constexpr long kBroadcastBytes = Half && kRounds ? 2 : 4;

struct AttentionScratch { // of one task
    uint8_t q[kTaskRows * kWidest * 4]; // scaled rows
    float sums[kTaskRows * kWidest];
    float maximum[kTaskRows], total[kTaskRows];
    // of one block of rows and one span
    alignas(64) float scores[16 * (kSpan + 16)];
    alignas(64) uint8_t weights[16 * (kSpan + 16) * 4];
    alignas(64) float out[16 * kWidest];
    alignas(64) float peaks[16], totals[16];
    uint32_t gathered_k[kSpan * kMaxHead], gathered_v[kSpan * kMaxHead]; // room for either element type
};

// Where the groups of 16 keys of a span lie; those that no row of the task sees have no address.
struct Span {
    long first; // absolute key
    const uint8_t *k[kGroups], *v[kGroups];
};

LANE const uint8_t *head_base(const AttentionCall &c, const AttentionTask &t, long key) {
    const int32_t *table = c.block_table + t.sequence * c.table_stride;
    size_t head_bytes = (size_t)c.block_bytes / c.heads_kv;
    return c.cache + (size_t)table[key / c.block_size] * c.block_bytes + t.head_kv * head_bytes;
}

// acc[r] += x[r] times m, one key or dimension a step (bf16: two, of which `mask` may hide one).
template <bool Half, int R, int V>
LANE void outer(F (&acc)[R][V], const uint8_t *x, long row_bytes, const uint8_t *const (&m)[V], long step_bytes, long steps,
                int32_t mask = -1) {
    for (long i = 0; i < steps; i++) {
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
}

// Stores x as the broadcast side of a product holds it, and returns what was stored.
template <bool Half> LANE F store_broadcast(uint8_t *p, F x) {
#ifdef CORE_BF16_DOT
    if (Half) {
        store_bf16((uint16_t *)p, x);
        return as_float(shift_left<16>(load_u16((const uint16_t *)p)));
    }
#endif
    store((float *)p, x);
    return x;
}

// 2^x for x <= 0, to about 2 units in the last place; at least 2^-125. Scores are in powers of two: see load_queries.
LANE F power_of_two(F x) {
    x = max(x, set1(-125));
    I n = round_to_int(x);
    F r = sub(x, to_float(n)); // exact, in -1/2 to 1/2
    F p = fma(r, set1(1.32647244e-3f), set1(9.67151324e-3f));
    p = fma(p, r, set1(5.55073376e-2f));
    p = fma(p, r, set1(2.40222421e-1f));
    p = fma(p, r, set1(6.93146978e-1f));
    p = fma(p, r, set1(1));
    return as_float(iadd(as_int(p), shift_left<23>(n)));
}

LANE F soft_cap(F x, float cap) { // cap * tanh(x / cap)
    F e = exponential(mul(x, set1(2.0f / cap)));
    return mul(set1(cap), sub(set1(1), div(set1(2), add(e, set1(1)))));
}

// The keys [low, high) that a row sees.
LANE void row_range(const AttentionCall &c, const AttentionTask &t, long row, long &low, long &high) {
    long queries = c.cu_seqlens[t.sequence + 1] - c.cu_seqlens[t.sequence];
    long position = c.seq_lens[t.sequence] - queries + (t.row + row) / (c.heads_q / c.heads_kv);
    high = position + 1;
    low = c.window && high > c.window ? high - c.window : 0;
}

LANE long clamp(long x, long low, long high) { return x < low ? low : x > high ? high : x; }

// Copies the seen keys of a group from blocks of any size; what is not seen keeps what it had, and is masked.
template <class Element>
static void gather(const AttentionCall &c, const AttentionTask &t, AttentionScratch &s, Span &span, long g, long low,
                   long high) {
    constexpr long pair = sizeof(Element) == 2 ? 2 : 1;
    Element *keys = (Element *)s.gathered_k + g * 16 * c.dim, *values = (Element *)s.gathered_v + g * 16 * c.dim_v;
    for (long lane = low; lane < high; lane++) {
        const long key = span.first + g * 16 + lane, offset = key % c.block_size;
        const Element *base = (const Element *)head_base(c, t, key);
        const Element *k = base + offset * c.dim, *v = base + c.block_size * c.dim + offset * c.dim_v;
        for (long i = 0; i < c.dim; i++) keys[(i / pair * 16 + lane) * pair + i % pair] = k[i];
        for (long i = 0; i < c.dim_v; i++) values[(lane / pair * c.dim_v + i) * pair + lane % pair] = v[i];
    }
    span.k[g] = (const uint8_t *)keys;
    span.v[g] = (const uint8_t *)values;
}

// Blocks outside [low, high) may belong to others by now, and are not looked up.
static void locate(const AttentionCall &c, const AttentionTask &t, AttentionScratch &s, Span &span, long low, long high) {
    const long element = c.bf16 ? 2 : 4;
    for (long g = 0; g < kGroups; g++) {
        long key = span.first + g * 16, from = clamp(low - key, 0, 16), to = clamp(high - key, 0, 16);
        span.k[g] = span.v[g] = nullptr;
        if (from >= to) continue;
        if (c.block_size % 16 != 0) {
            c.bf16 ? gather<uint16_t>(c, t, s, span, g, from, to) : gather<uint32_t>(c, t, s, span, g, from, to);
            continue;
        }
        const long offset = key % c.block_size;
        const uint8_t *base = head_base(c, t, key);
        span.k[g] = base + offset * c.dim * element;
        span.v[g] = base + (c.block_size * c.dim + offset * c.dim_v) * element;
    }
}

template <bool Half, int R, int V>
LANE void score_groups(const AttentionCall &c, AttentionScratch &s, const Span &span, long row, long begin, long end) {
    const long row_bytes = kWidest * kBroadcastBytes<Half>;
    for (long g = begin / V * V; g < end; g += V) {
        F acc[R][V];
        const uint8_t *m[V];
        for (int v = 0; v < V; v++) m[v] = span.k[clamp(g + v, begin, end - 1)]; // the rest repeat a neighbour, unread
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) acc[r][v] = zero();
        outer<Half>(acc, s.q + row * row_bytes, row_bytes, m, 64, Half ? c.dim / 2 : c.dim);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) store(s.scores + r * (kSpan + 16) + (g + v) * 16, acc[r][v]);
    }
}

// Weights of one row from its scores: keys of the groups [begin, end) outside [low, high) weigh exactly 0.
template <bool Half>
LANE void softmax_row(const AttentionCall &c, AttentionScratch &s, long r, long begin, long end, long low, long high) {
    const F never = set1(-__builtin_inff());
    float *scores = s.scores + r * (kSpan + 16);
    uint8_t *weights = s.weights + r * (kSpan + 16) * kBroadcastBytes<Half>;
    F top = never;
    for (long g = begin; g < end; g++) {
        const bool partly = low > g * 16 || high < g * 16 + 16;
        F a = load(scores + g * 16);
        if (c.cap != 0) a = soft_cap(a, c.cap * kLog2E);
        if (partly) a = select_range(a, never, (int32_t)(low - g * 16), (int32_t)(high - g * 16));
        if (partly || c.cap != 0) store(scores + g * 16, a);
        top = max(top, a);
    }
    const float peak = largest(top);
    F total = zero();
    for (long g = begin; g < end; g++) {
        F a = zero();
        if (low < g * 16 + 16 && high > g * 16) {
            a = power_of_two(sub(load(scores + g * 16), set1(peak)));
            if (low > g * 16 || high < g * 16 + 16)
                a = select_range(a, zero(), (int32_t)(low - g * 16), (int32_t)(high - g * 16));
        }
        total = add(total, store_broadcast<Half>(weights + g * 16 * kBroadcastBytes<Half>, a));
    }
    s.peaks[r] = peak;
    s.totals[r] = sum(total);
}

// out[r] = the weighted values of the keys [low, high) of the span, V vectors of columns at a time.
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
        for (int v = 0; v < V; v++) m[v] = span.v[g] + (column + v * 16) * 4 + first * step;
        if (Half && from % 2) { // its even neighbour is behind the window, or nowhere
            const uint8_t *edge[V];
            for (int v = 0; v < V; v++) edge[v] = m[v] - step;
            outer<Half>(acc, x + (first - 1) * pair * kBroadcastBytes<Half>, row_bytes, edge, step, 1, (int32_t)0xffff0000);
        }
        outer<Half>(acc, x + first * pair * kBroadcastBytes<Half>, row_bytes, m, step, last - first);
        if (Half && to % 2) { // its odd neighbour is not written yet
            for (int v = 0; v < V; v++) m[v] += (last - first) * step;
            outer<Half>(acc, x + last * pair * kBroadcastBytes<Half>, row_bytes, m, step, 1, 0x0000ffff);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(s.out + r * kWidest + column + v * 16, acc[r][v]);
}

// Softmax and output of R rows over one span, into peaks, totals and out; a row that sees nothing has the total 0.
template <bool Half, int R>
static __attribute__((noinline)) void attend(const AttentionCall &c, const AttentionTask &t, AttentionScratch &s,
                                             const Span &span, long row) {
    constexpr int V = kAttentionSums >= 4 * R ? 4 : kAttentionSums >= 2 * R ? 2 : 1;
    long low[R], high[R];
    for (int r = 0; r < R; r++) {
        row_range(c, t, row + r, low[r], high[r]);
        low[r] = clamp(low[r] - span.first, 0, kSpan), high[r] = clamp(high[r] - span.first, 0, kSpan);
        s.totals[r] = 0;
    }
    if (low[0] >= high[R - 1]) return;
    const long begin = low[0] / 16, end = (high[R - 1] + 15) / 16;
    score_groups<Half, R, V>(c, s, span, row, begin, end);
    for (int r = 0; r < R; r++) softmax_row<Half>(c, s, r, begin, end, low[r], high[r]);
    long column = 0;
    for (; column + V * 16 <= c.dim_v; column += V * 16) weigh_columns<Half, R, V>(c, s, span, column, low[0], high[R - 1]);
    for (; column < c.dim_v; column += 16) weigh_columns<Half, R, 1>(c, s, span, column, low[0], high[R - 1]);
}

// Joins up to 16 rows of one span to their running maximum, total and sums.
LANE void merge(long rows, long width, float *maximum, float *total, float *sums, long sums_stride,
                const float *span_maximum, const float *span_total, const float *out, long out_stride) {
    float old[16], fresh[16];
    for (long r = 0; r < 16; r++) {
        bool started = r < rows && total[r] != 0, sees = r < rows && span_total[r] != 0;
        float peak = started && (!sees || maximum[r] > span_maximum[r]) ? maximum[r] : sees ? span_maximum[r] : 0;
        old[r] = started ? maximum[r] - peak : 0;
        fresh[r] = sees ? span_maximum[r] - peak : 0;
        if (sees) maximum[r] = peak;
    }
    store(old, power_of_two(load(old)));
    store(fresh, power_of_two(load(fresh)));
    for (long r = 0; r < rows; r++) {
        if (span_total[r] == 0) continue;
        F a = set1(old[r]), b = set1(fresh[r]);
        float *row = sums + r * sums_stride;
        for (long i = 0; i < width; i += 16)
            store(row + i, add(mul(load(row + i), a), mul(load(out + r * out_stride + i), b)));
        total[r] = total[r] * old[r] + span_total[r] * fresh[r];
    }
}

LANE void finish_row(const AttentionCall &c, const AttentionTask &t, long r, float total, const float *sums) {
    const long group = c.heads_q / c.heads_kv;
    long row = c.cu_seqlens[t.sequence] + (t.row + r) / group, head = t.head_kv * group + (t.row + r) % group;
    float *out = c.out + row * c.out_row_stride + head * c.out_head_stride;
    F inverse = set1(1.0f / total);
    for (long i = 0; i < c.dim_v; i += 16) store(out + i, mul(load(sums + i), inverse));
}

template <bool Half, int R>
LANE long attend_rows(const AttentionCall &c, const AttentionTask &t, AttentionScratch &s, const Span &span, long row) {
    for (; row + R <= t.rows; row += R) {
        attend<Half, R>(c, t, s, span, row);
        if (!t.partial) {
            merge(R, c.dim_v, s.maximum + row, s.total + row, s.sums + row * kWidest, kWidest, s.peaks, s.totals, s.out,
                  kWidest);
            continue;
        }
        float *partial = t.partial + (((span.first / kSpan) - t.span) * t.rows + row) * (c.dim_v + 2);
        for (int r = 0; r < R; r++, partial += c.dim_v + 2) {
            partial[0] = s.peaks[r], partial[1] = s.totals[r];
            for (long i = 0; i < c.dim_v && s.totals[r] != 0; i += 16) store(partial + 2 + i, load(s.out + r * kWidest + i));
        }
    }
    return row;
}

template <bool Half>
static void attend_span(const AttentionCall &c, const AttentionTask &t, AttentionScratch &s, const Span &span) {
    long row = 0;
    if (kMaxRows >= 12) row = attend_rows<Half, kMaxRows >= 12 ? 12 : 1>(c, t, s, span, row);
    if (kMaxRows >= 4) row = attend_rows<Half, kMaxRows >= 4 ? 4 : 1>(c, t, s, span, row);
    if (kMaxRows >= 4) row = attend_rows<Half, kMaxRows >= 4 ? 3 : 1>(c, t, s, span, row); // groups of three are common
    row = attend_rows<Half, 2>(c, t, s, span, row);
    attend_rows<Half, 1>(c, t, s, span, row);
}

// A factor of log2(e) turns the softmax's powers of e into powers of two.
template <bool Half> static void load_queries(const AttentionCall &c, const AttentionTask &t, AttentionScratch &s) {
    const long group = c.heads_q / c.heads_kv;
    for (long r = 0; r < t.rows; r++) {
        long row = c.cu_seqlens[t.sequence] + (t.row + r) / group, head = t.head_kv * group + (t.row + r) % group;
        const float *q = c.q + row * c.q_row_stride + head * c.q_head_stride;
        for (long i = 0; i < c.dim; i += 16)
            store_broadcast<Half>(s.q + (r * kWidest + i) * kBroadcastBytes<Half>, mul(load(q + i), set1(c.scale * kLog2E)));
    }
}

static void attention(const AttentionCall *call, const AttentionTask *task) {
    const AttentionCall &c = *call;
    const AttentionTask &t = *task;
    AttentionScratch s;
    c.bf16 ? load_queries<true>(c, t, s) : load_queries<false>(c, t, s);
    for (long r = 0; r < t.rows && !t.partial; r++) {
        s.maximum[r] = s.total[r] = 0;
        for (long i = 0; i < c.dim_v; i += 16) store(s.sums + r * kWidest + i, zero());
    }
    long low, high, unused;
    row_range(c, t, 0, low, unused);
    row_range(c, t, t.rows - 1, unused, high);
    for (long i = 0; i < t.spans; i++) {
        Span span;
        span.first = (t.span + i) * kSpan;
        locate(c, t, s, span, low, high);
        c.bf16 ? attend_span<true>(c, t, s, span) : attend_span<false>(c, t, s, span);
    }
    for (long r = 0; r < t.rows && !t.partial; r++) finish_row(c, t, r, s.total[r], s.sums + r * kWidest);
}

static void attention_merge(const AttentionCall *call, const AttentionTask *task) {
    const AttentionTask &t = *task;
    for (long r = 0; r < t.rows; r++) {
        float sums[kMaxHead], maximum = 0, total = 0;
        for (long i = 0; i < call->dim_v; i += 16) store(sums + i, zero());
        for (long span = 0; span < t.spans; span++) {
            const float *partial = t.partial + (span * t.rows + r) * (call->dim_v + 2);
            merge(1, call->dim_v, &maximum, &total, sums, 0, partial, partial + 1, partial + 2, 0);
        }
        finish_row(*call, t, r, total, sums);
    }
}

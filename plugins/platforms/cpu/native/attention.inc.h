// Paged causal attention with an online softmax in float32, and the writing of its cache.
//
// A block holds, for each kv head: K as [block_size / 16][dim][16 keys], then V as [block_size][dim_v]. So the lanes of
// a score are keys and the lanes of an output are its columns, and no sum runs across lanes but the softmax's own.
// Where 16 does not divide the block size, K is [block_size][dim], and tiles are first gathered into that shape (slower).

LANE const uint8_t *head_base(const AttentionCall &c, const AttentionTask &t, long key) {
    const int32_t *table = c.block_table + t.sequence * c.table_stride;
    size_t head_bytes = (size_t)c.block_bytes / c.heads_kv;
    return c.cache + (size_t)table[key / c.block_size] * c.block_bytes + t.head_kv * head_bytes;
}

template <bool Half> LANE F load_kv(const uint8_t *p, long index) {
    return Half ? as_float(shift_left<16>(load_u16((const uint16_t *)p + index))) : load((const float *)p + index);
}

// acc[r] += x[r * Row + i * Step] * m[i] for 0 <= i < steps; rows of m are `m_stride` elements apart.
template <bool Half, int Row, int Step, int R, int V>
LANE void outer(F (&acc)[R][V], const float *x, const uint8_t *const (&m)[V], long m_stride, long steps) {
    for (long i = 0; i < steps; i++) {
        F value[V];
        for (int v = 0; v < V; v++) value[v] = load_kv<Half>(m[v], i * m_stride);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) acc[r][v] = fma(set1(x[r * Row + i * Step]), value[v], acc[r][v]);
    }
}

// Rows of a task's outputs are one vector longer than needed: powers of two would share few cache sets.
LANE long padded(long width) { return width + 16; }

struct Softmax { // of the rows of one task, within one span
    float q[kMaxHead * kTaskRows]; // scaled, [dim][row]
    float out[kTaskRows * (kMaxHead + 16)];
    float weights[kTaskRows * kKeyTile];
    float maximum[kTaskRows], total[kTaskRows], shrink[kTaskRows];
    uint32_t gathered_k[2][16 * kMaxHead], gathered_v[2][16 * kMaxHead]; // room for either element type
};

// The part of a tile that any row of the task sees, and where its two halves of 16 keys lie.
struct Tile {
    long first, low, high; // absolute keys
    const uint8_t *k[2], *v[2];
    bool seen[2];
};

LANE F soft_cap(F x, float cap) { // cap * tanh(x / cap)
    F e = exponential(mul(x, set1(2.0f / cap)));
    return mul(set1(cap), sub(set1(1), div(set1(2), add(e, set1(1)))));
}

// Weights of one row in one tile, from its raw scores; keys outside [low, high) weigh exactly 0.
LANE void softmax_row(const AttentionCall &c, Softmax &s, const Tile &tile, long row, F a, F b, long low, long high) {
    const F never = set1(-__builtin_inff());
    if (c.cap != 0) a = soft_cap(a, c.cap), b = soft_cap(b, c.cap);
    int32_t from = (int32_t)(low - tile.first), to = (int32_t)(high - tile.first);
    a = select_range(a, never, from, to);
    b = select_range(b, never, from - 16, to - 16);
    float peak = largest(max(a, b)), before = s.maximum[row];
    float *weights = s.weights + row * kKeyTile;
    s.shrink[row] = 1;
    if (peak == -__builtin_inff()) { // nothing to see here
        store(weights, zero());
        store(weights + 16, zero());
        return;
    }
    if (peak > before) {
        float shrink[16];
        store(shrink, exponential(set1(before - peak)));
        s.shrink[row] = shrink[0];
        s.maximum[row] = peak;
    } else {
        peak = before;
    }
    a = select_range(exponential(sub(a, set1(peak))), zero(), from, to);
    b = select_range(exponential(sub(b, set1(peak))), zero(), from - 16, to - 16);
    store(weights, a);
    store(weights + 16, b);
    s.total[row] = s.total[row] * s.shrink[row] + sum(add(a, b));
}

LANE void row_range(const AttentionCall &c, const AttentionTask &t, long row, long &low, long &high) {
    long queries = c.cu_seqlens[t.sequence + 1] - c.cu_seqlens[t.sequence];
    long position = c.seq_lens[t.sequence] - queries + (t.row + row) / (c.heads_q / c.heads_kv);
    high = position + 1;
    low = c.window && high > c.window ? high - c.window : 0;
}

template <bool Half, int R, int V>
LANE void weigh_columns(const AttentionCall &c, Softmax &s, const Tile &tile, long row, long column) {
    F acc[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            acc[r][v] = mul(load(s.out + (row + r) * padded(c.dim_v) + column + v * 16), set1(s.shrink[row + r]));
    for (int half = 0; half < 2; half++) {
        long begin = tile.first + half * 16, end = begin + 16;
        long low = tile.low > begin ? tile.low : begin, high = tile.high < end ? tile.high : end;
        if (low >= high) continue;
        const uint8_t *m[V];
        for (int v = 0; v < V; v++)
            m[v] = tile.v[half] + ((low - begin) * c.dim_v + column + v * 16) * (Half ? 2 : 4);
        outer<Half, kKeyTile, 1>(acc, s.weights + row * kKeyTile + (low - tile.first), m, c.dim_v, high - low);
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(s.out + (row + r) * padded(c.dim_v) + column + v * 16, acc[r][v]);
}

template <bool Half, int R>
static __attribute__((noinline)) void tile_rows(const AttentionCall &c, const AttentionTask &t, Softmax &s, const Tile &tile,
                                                long row) {
    constexpr int V = R <= kWideRows ? 2 : 1;
    long low[R], high[R];
    bool any = false;
    for (int r = 0; r < R; r++) {
        row_range(c, t, row + r, low[r], high[r]);
        any = any || (low[r] < tile.first + kKeyTile && high[r] > tile.first);
    }
    if (!any) return;
    F score[2][R];
    for (int half = 0; half < 2; half += V) {
        F acc[R][V];
        const uint8_t *m[V];
        for (int v = 0; v < V; v++) m[v] = tile.k[half + v];
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) acc[r][v] = zero();
        outer<Half, 1, kTaskRows>(acc, s.q + row, m, 16, c.dim);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) score[half + v][r] = acc[r][v];
    }
    for (int r = 0; r < R; r++) softmax_row(c, s, tile, row + r, score[0][r], score[1][r], low[r], high[r]);
    long column = 0;
    for (; column + V * 16 <= c.dim_v; column += V * 16) weigh_columns<Half, R, V>(c, s, tile, row, column);
    for (; column < c.dim_v; column += 16) weigh_columns<Half, R, 1>(c, s, tile, row, column);
}

template <bool Half> static void tile_all_rows(const AttentionCall &c, const AttentionTask &t, Softmax &s, const Tile &tile) {
    long row = 0;
    if (kMaxRows >= 8)
        for (; row + 8 <= t.rows; row += 8) tile_rows<Half, kMaxRows >= 8 ? 8 : 1>(c, t, s, tile, row);
    if (kMaxRows >= 4)
        for (; row + 4 <= t.rows; row += 4) tile_rows<Half, kMaxRows >= 4 ? 4 : 1>(c, t, s, tile, row);
    if (t.rows - row == 3) return tile_rows<Half, 3>(c, t, s, tile, row); // groups of three heads are common
    for (; row + 2 <= t.rows; row += 2) tile_rows<Half, 2>(c, t, s, tile, row);
    for (; row < t.rows; row++) tile_rows<Half, 1>(c, t, s, tile, row);
}

// Copies the seen keys of a half from blocks of any size; the lanes of unseen keys keep what they had, and are masked.
template <class Element>
static void gather(const AttentionCall &c, const AttentionTask &t, Softmax &s, Tile &tile, int half) {
    Element *keys = (Element *)s.gathered_k[half], *values = (Element *)s.gathered_v[half];
    const long begin = tile.first + half * 16, end = begin + 16;
    for (long key = tile.low > begin ? tile.low : begin; key < (tile.high < end ? tile.high : end); key++) {
        const long lane = key - begin, offset = key % c.block_size;
        const Element *base = (const Element *)head_base(c, t, key);
        for (long i = 0; i < c.dim; i++) keys[i * 16 + lane] = base[offset * c.dim + i];
        memcpy(values + lane * c.dim_v, base + c.block_size * c.dim + offset * c.dim_v, c.dim_v * sizeof(Element));
    }
    tile.k[half] = (const uint8_t *)keys;
    tile.v[half] = (const uint8_t *)values;
}

// Blocks outside [low, high) may belong to others by now: such a half borrows its neighbour's address, fully masked.
LANE Tile make_tile(const AttentionCall &c, const AttentionTask &t, Softmax &s, long first, long low, long high) {
    Tile tile = {first, low, high, {nullptr, nullptr}, {nullptr, nullptr}, {false, false}};
    const long element = c.bf16 ? 2 : 4;
    for (int half = 0; half < 2; half++) {
        long begin = first + half * 16, offset = begin % c.block_size;
        if (begin >= high || begin + 16 <= low) continue;
        tile.seen[half] = true;
        if (c.block_size % 16 != 0) {
            c.bf16 ? gather<uint16_t>(c, t, s, tile, half) : gather<uint32_t>(c, t, s, tile, half);
            continue;
        }
        const uint8_t *base = head_base(c, t, begin);
        tile.k[half] = base + offset * c.dim * element;
        tile.v[half] = base + (c.block_size * c.dim + offset * c.dim_v) * element;
    }
    for (int half = 0; half < 2; half++)
        if (!tile.seen[half]) tile.k[half] = tile.k[1 - half];
    return tile;
}

LANE void load_queries(const AttentionCall &c, const AttentionTask &t, Softmax &s) {
    const long group = c.heads_q / c.heads_kv;
    for (long r = 0; r < t.rows; r++) {
        long row = c.cu_seqlens[t.sequence] + (t.row + r) / group, head = t.head_kv * group + (t.row + r) % group;
        const float *q = c.q + row * c.q_row_stride + head * c.q_head_stride;
        for (long i = 0; i < c.dim; i++) s.q[i * kTaskRows + r] = q[i] * c.scale;
    }
}

static void attend_span(const AttentionCall &c, const AttentionTask &t, Softmax &s, long span) {
    for (long r = 0; r < t.rows; r++) {
        s.maximum[r] = -__builtin_inff();
        s.total[r] = 0;
        for (long i = 0; i < c.dim_v; i += 16) store(s.out + r * padded(c.dim_v) + i, zero());
    }
    long low, high, unused;
    row_range(c, t, 0, low, unused);
    row_range(c, t, t.rows - 1, unused, high);
    long begin = span * kSpan, end = begin + kSpan < high ? begin + kSpan : high;
    if (begin < low) begin = low / kKeyTile * kKeyTile;
    for (long first = begin; first < end; first += kKeyTile) {
        Tile tile = make_tile(c, t, s, first, low, high);
        if (c.bf16)
            tile_all_rows<true>(c, t, s, tile);
        else
            tile_all_rows<false>(c, t, s, tile);
    }
}

// Running maximum, total and output of one row, joined with those of the next span.
struct Merge {
    float maximum, total;
    float *out;
};

LANE void merge_span(Merge &into, float maximum, float total, const float *out, long width) {
    if (total == 0) return; // the row saw nothing in this span
    float peak = into.total != 0 && into.maximum > maximum ? into.maximum : maximum;
    float factors[32];
    store(factors, exponential(set1(into.total != 0 ? into.maximum - peak : 0)));
    store(factors + 16, exponential(set1(maximum - peak)));
    F old = set1(factors[0]), fresh = set1(factors[16]);
    for (long i = 0; i < width; i += 16)
        store(into.out + i, add(mul(load(into.out + i), old), mul(load(out + i), fresh)));
    into.total = into.total * factors[0] + total * factors[16];
    into.maximum = peak;
}

LANE void finish_row(const AttentionCall &c, const AttentionTask &t, long r, const Merge &merged) {
    const long group = c.heads_q / c.heads_kv;
    long row = c.cu_seqlens[t.sequence] + (t.row + r) / group, head = t.head_kv * group + (t.row + r) % group;
    float *out = c.out + row * c.out_row_stride + head * c.out_head_stride;
    F inverse = set1(1.0f / merged.total);
    for (long i = 0; i < c.dim_v; i += 16) store(out + i, mul(load(merged.out + i), inverse));
}

static void attention(const AttentionCall *call, const AttentionTask *task) {
    const AttentionCall &c = *call;
    const AttentionTask &t = *task;
    Softmax s;
    float sums[kTaskRows * (kMaxHead + 16)];
    Merge merged[kTaskRows];
    load_queries(c, t, s);
    for (long r = 0; r < t.rows; r++) {
        merged[r] = {0, 0, sums + r * padded(c.dim_v)};
        for (long i = 0; i < c.dim_v; i += 16) store(merged[r].out + i, zero());
    }
    for (long span = 0; span < t.spans; span++) {
        attend_span(c, t, s, t.span + span);
        for (long r = 0; r < t.rows; r++) {
            if (!t.partial) {
                merge_span(merged[r], s.maximum[r], s.total[r], s.out + r * padded(c.dim_v), c.dim_v);
                continue;
            }
            float *partial = t.partial + (span * t.rows + r) * (c.dim_v + 2);
            partial[0] = s.maximum[r], partial[1] = s.total[r];
            for (long i = 0; i < c.dim_v; i += 16) store(partial + 2 + i, load(s.out + r * padded(c.dim_v) + i));
        }
    }
    if (t.partial) return;
    for (long r = 0; r < t.rows; r++) finish_row(c, t, r, merged[r]);
}

static void attention_merge(const AttentionCall *call, const AttentionTask *task) {
    const AttentionTask &t = *task;
    float sums[kMaxHead];
    for (long r = 0; r < t.rows; r++) {
        Merge merged = {0, 0, sums};
        for (long i = 0; i < call->dim_v; i += 16) store(sums + i, zero());
        for (long span = 0; span < t.spans; span++) {
            const float *partial = t.partial + (span * t.rows + r) * (call->dim_v + 2);
            merge_span(merged, partial[0], partial[1], partial + 2, call->dim_v);
        }
        finish_row(*call, t, r, merged);
    }
}

LANE void put(float *p, float x) { *p = x; }
LANE void put(uint16_t *p, float x) { // nearest bf16, ties to even
    uint32_t bits;
    memcpy(&bits, &x, 4);
    *p = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class Element> LANE void write_row(const CacheWriteCall &c, long row) {
    if (c.slots[row] < 0) return;
    const long slot = c.slots[row], offset = slot % c.block_size, lanes = c.block_size % 16 == 0 ? 16 : 1;
    for (long head = 0; head < c.heads_kv; head++) {
        uint8_t *base = c.cache + (size_t)(slot / c.block_size) * c.block_bytes + head * (c.block_bytes / c.heads_kv);
        Element *keys = (Element *)base + offset / lanes * lanes * c.dim + offset % lanes;
        Element *values = (Element *)base + c.block_size * c.dim + offset * c.dim_v;
        const float *k = c.k + row * c.k_row_stride + head * c.k_head_stride;
        const float *v = c.v + row * c.v_row_stride + head * c.v_head_stride;
        for (long i = 0; i < c.dim; i++) put(keys + i * lanes, k[i]);
        for (long i = 0; i < c.dim_v; i++) put(values + i, v[i]);
    }
}

static void cache_write(const CacheWriteCall *c, long begin, long end) {
    for (long row = begin; row < end; row++) {
        if (c->bf16)
            write_row<uint16_t>(*c, row);
        else
            write_row<float>(*c, row);
    }
}

// Passes tokens through rows of a recurrent state; each row is computed independently.

enum RowRule { kDecayed, kSelective, kDelta, kChannelDelta };

constexpr long kRowsBetween = 32; // so that they stay in the first-level cache
// Rows whose first passes end before the second ones begin. What enters a row waits for the sum of its first pass, some thirty
// cycles, and the instructions of a pass over two rows already fill most of the processor's window.
constexpr long kRowsAtOnce = 8;
constexpr long kBytesAhead = 4096; // of a state, fetched into the cache before they are needed

// A token's vectors are `width` numbers apart, padded with zeros beyond the row's length: B and C, or k and q (and
// decays).
struct RowsJob {
    const void *from; // [rows, length] as stored: where the first token reads the rows
    void *state;      // where they are written, and where later tokens read them
    long rows, length, tokens;
    const float *vectors; // [tokens, 3, width]
    const float *decay;   // [tokens] of the head; selective: dt [tokens, kStateRows]
    const float *beta;    // [tokens]
    const float *in;      // [tokens, kStateRows], input of each row
    const float *rate;    // selective: [rows, length]
    float *out;           // [tokens, kStateRows]
};

template <int V> LANE float dot_rows(const F (&a)[V], const F (&b)[V]) {
    F even = mul(a[0], b[0]);
    if (V == 1) return sum(even);
    F odd = mul(a[V > 1], b[V > 1]);
    for (int v = 2; v < V; v++) (v % 2 ? odd : even) = fma(a[v], b[v], v % 2 ? odd : even);
    return sum(add(even, odd));
}

// Passes the tokens [first, end) through the rows [row, row + R).
template <int Rule, int Element, int V, int R> LANE void rows_at(const RowsJob &j, long row, long first, long end) {
    constexpr long width = 16 * V;
    const void *from = first ? j.state : j.from;
    F s[R][V], rate[Rule == kSelective ? R : 1][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            const long n = j.length - 16 * v, at = (row + r) * j.length + 16 * v;
            s[r][v] = n > 0 ? load_stored<Element>(from, at, n) : zero();
            if (Rule == kSelective) rate[r][v] = n > 0 ? load_upto(j.rate + at, n) : zero();
        }
    for (long t = first; t < end; t++) {
        const float *vectors = j.vectors + t * 3 * width, *in = j.in + t * kStateRows + row;
        float *out = j.out + t * kStateRows + row;
        F b[V], c[V];
        for (int v = 0; v < V; v++) b[v] = load(vectors + 16 * v), c[v] = load(vectors + width + 16 * v);
        for (int r = 0; r < R; r++) {
            for (int v = 0; v < V; v++) {
                F decay;
                if (Rule == kSelective)
                    decay = exponential(mul(set1(j.decay[t * kStateRows + row + r]), rate[r][v]));
                else if (Rule == kChannelDelta)
                    decay = load(vectors + 2 * width + 16 * v);
                else
                    decay = set1(j.decay[t]);
                s[r][v] = mul(s[r][v], decay);
            }
            float enters = in[r];
            if (Rule == kDelta || Rule == kChannelDelta) enters = j.beta[t] * (enters - dot_rows<V>(s[r], b));
            const F entering = set1(enters);
            for (int v = 0; v < V; v++) s[r][v] = fma(entering, b[v], s[r][v]);
            out[r] = dot_rows<V>(s[r], c);
            if (Element != kCacheF32 && t + 1 < end) // the last token's are rounded as they are stored
                for (int v = 0; v < V; v++) s[r][v] = as_stored<Element>(s[r][v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            const long n = j.length - 16 * v;
            if (n > 0) store_stored<Element>(j.state, (row + r) * j.length + 16 * v, s[r][v], n);
        }
}

// Fetches bytes of a state that will be read and written.
LANE void fetch_state(const void *p, long bytes) {
    for (long i = 0; i < bytes; i += 64) __builtin_prefetch((const uint8_t *)p + i, 1);
}

// The first pass of a token through R rows: they decay, and are multiplied by its first vector. from: the rows before the token.
// decayed: [R, 16 * V].
template <int Rule, int Element, int V, int R>
LANE void decay_rows(const void *from, long row, const float *vectors, F decay, float *decayed, F *products) {
    constexpr long width = 16 * V;
    F even[R], odd[R];
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) {
        const F key = load(vectors + 16 * v);
        const F fades = Rule == kChannelDelta ? load(vectors + 2 * width + 16 * v) : decay;
        for (int r = 0; r < R; r++) {
            const F x = mul(load_stored<Element>(from, (row + r) * width + 16 * v, 16), fades);
            store(decayed + r * width + 16 * v, x);
            F &total = v % 2 ? odd[r] : even[r];
            total = v < 2 ? mul(x, key) : fma(x, key, total);
        }
    }
    for (int r = 0; r < R; r++) products[r] = V == 1 ? even[r] : add(even[r], odd[r]);
}

// The second pass, or the only one where nothing waits: `enters` is added, rows are multiplied by the second vector and stored.
template <int Rule, int Element, int V, int R>
LANE void enter_rows(const void *from, void *to, long row, const float *vectors, F decay, const float *decayed,
                     const float *enters, float *out) {
    constexpr long width = 16 * V;
    F even[R], odd[R], entering[R];
    for (int r = 0; r < R; r++) entering[r] = set1(enters[r]);
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) {
        const F key = load(vectors + 16 * v), query = load(vectors + width + 16 * v);
        for (int r = 0; r < R; r++) {
            const long at = (row + r) * width + 16 * v;
            F x = Rule == kDecayed ? mul(load_stored<Element>(from, at, 16), decay) : load(decayed + r * width + 16 * v);
            x = fma(entering[r], key, x);
            F &total = v % 2 ? odd[r] : even[r];
            total = v < 2 ? mul(x, query) : fma(x, query, total);
            store_stored<Element>(to, at, x, 16);
        }
    }
    for (int r = 0; r < R; r++) out[r] = sum(V == 1 ? even[r] : add(even[r], odd[r]));
}

// Passes one token through rows of exactly 16 * V numbers, with the operations of `rows_at` in their order. Two rows and what
// they are multiplied by exceed the registers of most processors: rows are written once between the passes, not after each step.
template <int Rule, int Element, int V> static void token_through(const RowsJob &j, long t, long begin, long end) {
    constexpr long width = 16 * V, row_bytes = width * (Element == kCacheF32 ? 4 : 2);
    constexpr bool waits = Rule != kDecayed;
    const void *from = t ? j.state : j.from;
    const float *vectors = j.vectors + t * 3 * width, *in = j.in + t * kStateRows;
    float *out = j.out + t * kStateRows;
    const F decay = Rule == kChannelDelta ? zero() : set1(j.decay[t]);
    alignas(64) float decayed[waits ? kRowsAtOnce * width : 16];
    float enters[kRowsAtOnce];
    F products[kRowsAtOnce];
    long row = begin;
    while (row + 2 <= end) {
        const long rows = at_most(kRowsAtOnce, (end - row) / 2 * 2), ahead = row * row_bytes + kBytesAhead;
        if (ahead + rows * row_bytes <= j.rows * row_bytes) fetch_state((const uint8_t *)from + ahead, rows * row_bytes);
        for (long r = 0; waits && r < rows; r += 2)
            decay_rows<Rule, Element, V, 2>(from, row + r, vectors, decay, decayed + r * width, products + r);
        for (long r = 0; r < rows; r++) enters[r] = waits ? j.beta[t] * (in[row + r] - sum(products[r])) : in[row + r];
        for (long r = 0; r < rows; r += 2) {
            const float *before = decayed + (waits ? r * width : 0);
            enter_rows<Rule, Element, V, 2>(from, j.state, row + r, vectors, decay, before, enters + r, out + row + r);
        }
        row += rows;
    }
    for (; row < end; row++) rows_at<Rule, Element, V, 1>(j, row, t, t + 1);
}

template <int Rule, int Element, int V> static void rows_through(const RowsJob &j) {
    constexpr int together = V >= 16 ? 1 : V >= 8 ? 2 : 4;
    // With the delta rule a token depends on the previous one, so other rows are interleaved to hide the latency;
    // otherwise rows stay in registers.
    constexpr bool waits = Rule == kDelta || Rule == kChannelDelta;
    const long block = waits ? kRowsBetween : j.rows, step = waits ? 1 : j.tokens;
    const bool whole = Rule != kSelective && step == 1 && j.length == 16 * V;
    for (long begin = 0; begin < j.rows; begin += block) {
        const long end = at_most(begin + block, j.rows);
        for (long t = 0; t < j.tokens; t += step) {
            long row = begin;
            if constexpr (Rule != kSelective)
                if (whole) token_through<Rule, Element, V>(j, t, begin, end), row = end;
            for (; row + together <= end; row += together) rows_at<Rule, Element, V, together>(j, row, t, t + step);
            for (; row < end; row++) rows_at<Rule, Element, V, 1>(j, row, t, t + step);
        }
    }
}

LANE long row_width(long length) { return length <= 16 ? 16 : length <= 32 ? 32 : length <= 64 ? 64 : length <= 128 ? 128 : 256; }

template <int Rule, int Element> static void rows_of_length(const RowsJob &j) {
    switch (row_width(j.length)) {
    case 16: return rows_through<Rule, Element, 1>(j);
    case 32: return rows_through<Rule, Element, 2>(j);
    case 64: return rows_through<Rule, Element, 4>(j);
    case 128: return rows_through<Rule, Element, 8>(j);
    default: return rows_through<Rule, Element, 16>(j);
    }
}

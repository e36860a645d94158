// Passes tokens through rows of a recurrent state; each row is computed independently.

enum RowRule { kDecayed, kSelective, kDelta, kChannelDelta };

constexpr long kRowsBetween = 32; // so that they stay in the first-level cache

// A token's vectors are `width` numbers apart, padded with zeros beyond the row's length: B and C, or k and q (and
// decays).
struct RowsJob {
    void *state; // [rows, length] as stored
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
    F s[R][V], rate[Rule == kSelective ? R : 1][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            const long n = j.length - 16 * v, at = (row + r) * j.length + 16 * v;
            s[r][v] = n > 0 ? load_stored<Element>(j.state, at, n) : zero();
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

template <int Rule, int Element, int V> static void rows_through(const RowsJob &j) {
    constexpr int together = V >= 16 ? 1 : V >= 8 ? 2 : 4;
    // With the delta rule a token depends on the previous one, so other rows are interleaved to hide the latency;
    // otherwise rows stay in registers.
    constexpr bool waits = Rule == kDelta || Rule == kChannelDelta;
    const long block = waits ? kRowsBetween : j.rows, step = waits ? 1 : j.tokens;
    for (long begin = 0; begin < j.rows; begin += block) {
        const long end = at_most(begin + block, j.rows);
        for (long t = 0; t < j.tokens; t += step) {
            long row = begin;
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

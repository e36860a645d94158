// The two products of an adapter's update, written once against the sixteen lanes of the including file.
//
// Lanes are ranks in A x and outputs in B h. Inputs stay in float32. Each number of A x has one sum per segment of k, in
// ascending order, and the segments' sums are added as a binary tree; each output has one sum in the order of the ranks.
// So a row's bits depend on the row and its adapter alone. A block's number of rows and of segments computed at once
// affects only the speed: with few rows, several segments keep several sums in flight.
//
// Blocks of several rows fetch what they read next: panels are too short for the hardware prefetcher to follow. Measured
// with 64 rows over eight adapters: without it the updates take half as long again.

constexpr int kMostSegments = 1 << kSegmentLevels;
constexpr int kLeastFetching = 4;     // rows; the hardware prefetcher is ahead of fewer
constexpr long kOuterFetch = 2048;    // bytes of B that are fetched ahead

// How a matrix is stored: a step along k has kInputs neighbouring inputs, which take kBytes a lane.
struct Float32 {
    static constexpr long kInputs = 1, kBytes = 4;
    LANE void read(const uint8_t *p, F (&values)[2]) { values[0] = load((const float *)p); }
};
struct Float16 {
    static constexpr long kInputs = 1, kBytes = 2;
    LANE void read(const uint8_t *p, F (&values)[2]) { values[0] = load_half((const uint16_t *)p); }
};
struct BFloat16 {
    static constexpr long kInputs = 2, kBytes = 4;
    LANE void read(const uint8_t *p, F (&values)[2]) {
        const I pair = iload(p);
        values[0] = as_float(shift_left<16>(pair)), values[1] = as_float(iand(pair, iset1((int32_t)0xffff0000)));
    }
};

// Sums of `S` neighbouring segments from `first + at` on, for R rows; to sums[r][at].
template <class Element, int R, int S>
LANE void inner_segments(const LowRankTask &t, const uint8_t *panel, long row, long first, long at,
                         F (&sums)[R][kMostSegments]) {
    constexpr long kInputs = Element::kInputs, kStep = kRankLanes * Element::kBytes;
    const LowRankCall &c = *t.call;
    const long segment = first + at, size = c.k / c.segments, steps = size / kInputs;
    const float *x[R];
    for (int r = 0; r < R; r++) x[r] = c.x + t.rows[row + r] * c.x_stride + segment * size;
    const uint8_t *a = panel + segment * steps * kStep;
    F acc[R][S];
    for (int r = 0; r < R; r++)
        for (int s = 0; s < S; s++) acc[r][s] = zero();
    for (long step = 0; step < steps; step++) {
        for (int s = 0; s < S; s++) {
            F values[2];
            const uint8_t *place = a + (s * steps + step) * kStep;
            if (R >= kLeastFetching) __builtin_prefetch(place + S * steps * kStep); // of the next segments
            Element::read(place, values);
            for (long i = 0; i < kInputs; i++)
                for (int r = 0; r < R; r++) acc[r][s] = fma(values[i], set1(x[r][s * size + step * kInputs + i]), acc[r][s]);
        }
    }
    if (size % kInputs) { // an odd k, in one segment
        F values[2];
        Element::read(a + steps * kStep, values);
        for (int r = 0; r < R; r++) acc[r][0] = fma(values[0], set1(x[r][steps * kInputs]), acc[r][0]);
    }
    for (int r = 0; r < R; r++)
        for (int s = 0; s < S; s++) sums[r][at + s] = acc[r][s];
}

template <class Element, int R, int S>
static __attribute__((noinline)) long inner_rows(const LowRankTask &t, long panel, long row, long first, long count) {
    const LowRankCall &c = *t.call;
    const long steps = (c.k + Element::kInputs - 1) / Element::kInputs;
    const uint8_t *a = t.update->a + panel * steps * kRankLanes * Element::kBytes;
    for (; row + R <= t.count; row += R) {
        F sums[R][kMostSegments];
        if (count >= S) {
            for (long at = 0; at < count; at += S) inner_segments<Element, R, S>(t, a, row, first, at, sums);
        } else {
            for (long at = 0; at < count; at++) inner_segments<Element, R, 1>(t, a, row, first, at, sums);
        }
        for (int r = 0; r < R; r++) {
            for (long step = 1; step < count; step *= 2)
                for (long s = 0; s < count; s += 2 * step) sums[r][s] = add(sums[r][s], sums[r][s + step]);
            store(t.inner + (row + r) * t.inner_stride + panel * kRankLanes, sums[r][0]);
        }
    }
    return row;
}

constexpr int kRowsWide = kAttentionSums >= 16 ? 8 : 1, kRowsMiddle = kAttentionSums >= 4 ? 4 : 1;

// How many segments of R rows keep their sums in registers.
template <int R> constexpr int segments_at_once() {
    return kAttentionSums >= 8 * R ? 8 : kAttentionSums >= 4 * R ? 4 : kAttentionSums >= 2 * R ? 2 : 1;
}

template <class Element> LANE void inner_panel(const LowRankTask &t, long panel, long first, long count) {
    long row = 0;
    if (kRowsWide > 1) row = inner_rows<Element, kRowsWide, segments_at_once<kRowsWide>()>(t, panel, row, first, count);
    if (kRowsMiddle > 1) row = inner_rows<Element, kRowsMiddle, segments_at_once<kRowsMiddle>()>(t, panel, row, first, count);
    row = inner_rows<Element, 2, segments_at_once<2>()>(t, panel, row, first, count);
    inner_rows<Element, 1, segments_at_once<1>()>(t, panel, row, first, count);
}

static void low_rank_inner(const LowRankTask *t, long panel, long segment, long segments) {
    switch (t->call->format) {
    case kBF16: return inner_panel<BFloat16>(*t, panel, segment, segments);
    case kF16: return inner_panel<Float16>(*t, panel, segment, segments);
    }
    inner_panel<Float32>(*t, panel, segment, segments);
}

// y = gain * (y + scale * acc) + shift for one vector of outputs, those of them that the part has.
// n: the first output. at: its place in gain and shift.
LANE void apply_update(const LowRankPart &part, long n, long at, F acc, float *y) {
    const long low = clamp(part.first - n, 0, 16), high = clamp(part.first + part.n - n, 0, 16);
    if (low >= high) return;
    const F before = high == 16 ? load(y) : load_part(y, high);
    F value = before;
    if (part.rank) value = fma(set1((float)part.scale), acc, value);
    if (part.gain) value = mul(value, load(part.gain + at));
    if (part.shift) value = add(value, load(part.shift + at));
    if (low) value = select_range(value, before, (int32_t)low, 16);
    if (high == 16)
        store(y, value);
    else
        store_part(y, value, high);
}

// Sums of h over the ranks for V vectors of outputs. Both vectors take a number of h from the same register: in the other order
// the compiler keeps all numbers of a step in registers and the sums in memory.
template <class Element, int R, int V>
LANE void outer_sums(const float *const (&h)[R], const uint8_t *b, long rank, F (&acc)[R][V]) {
    constexpr long kInputs = Element::kInputs, kStep = kPanel * Element::kBytes;
    const long steps = rank / kInputs;
    F values[V][2];
    for (long step = 0; step < steps; step++) {
        for (int v = 0; v < V; v++) {
            const uint8_t *place = b + step * kStep + v * 16 * Element::kBytes;
            if (R >= kLeastFetching) __builtin_prefetch(place + kOuterFetch);
            Element::read(place, values[v]);
        }
        for (long i = 0; i < kInputs; i++)
            for (int r = 0; r < R; r++) {
                const F number = set1(h[r][step * kInputs + i]);
                for (int v = 0; v < V; v++) acc[r][v] = fma(values[v][i], number, acc[r][v]);
            }
    }
    if (rank % kInputs == 0) return;
    for (int v = 0; v < V; v++) {
        Element::read(b + steps * kStep + v * 16 * Element::kBytes, values[v]);
        for (int r = 0; r < R; r++) acc[r][v] = fma(values[v][0], set1(h[r][rank - 1]), acc[r][v]);
    }
}

// Whether an update changes all outputs of a panel, by adding to them alone.
LANE bool only_adds(const LowRankPart &part, long panel) {
    return part.rank && !part.gain && !part.shift && part.first <= panel * kPanel && (panel + 1) * kPanel <= part.first + part.n;
}

template <class Element, int R, int V>
LANE void outer_block(const LowRankTask &t, const LowRankPart &part, long panel, long vector, long row) {
    const long own = panel - part.first / kPanel; // the panel's number in B
    constexpr long kInputs = Element::kInputs, kStep = kPanel * Element::kBytes;
    const uint8_t *b = part.b + own * ((part.rank + kInputs - 1) / kInputs) * kStep + vector * 16 * Element::kBytes;
    const float *h[R];
    float *out[R];
    F acc[R][V];
    for (int r = 0; r < R; r++) {
        h[r] = t.inner + (row + r) * t.inner_stride + part.offset;
        out[r] = t.out + t.rows[row + r] * t.out_stride + panel * kPanel + vector * 16;
        for (int v = 0; v < V; v++) acc[r][v] = zero();
        if (R >= kLeastFetching)
            for (int v = 0; v < V; v++) __builtin_prefetch(out[r] + v * 16, 1);
    }
    outer_sums<Element, R, V>(h, b, part.rank, acc);
    if (only_adds(part, panel)) {
        const F scale = set1((float)part.scale);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) store(out[r] + v * 16, fma(scale, acc[r][v], load(out[r] + v * 16)));
        return;
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            const long n = panel * kPanel + (vector + v) * 16;
            apply_update(part, n, own * kPanel + (vector + v) * 16, acc[r][v], out[r] + v * 16);
        }
}

template <class Element, int R>
static __attribute__((noinline)) long outer_rows(const LowRankTask &t, const LowRankPart &part, long panel, long row) {
    for (; row + R <= t.count; row += R) {
        if (2 * R <= kAttentionSums) {
            outer_block<Element, R, 2>(t, part, panel, 0, row);
        } else {
            outer_block<Element, R, 1>(t, part, panel, 0, row);
            outer_block<Element, R, 1>(t, part, panel, 1, row);
        }
    }
    return row;
}

template <class Element> static void outer_panels(const LowRankTask &t, const LowRankPart &part, long panel, long last) {
    for (; panel < last; panel++) {
        long row = 0;
        if (kRowsWide > 1) row = outer_rows<Element, kRowsWide>(t, part, panel, row);
        if (kRowsMiddle > 1) row = outer_rows<Element, kRowsMiddle>(t, part, panel, row);
        row = outer_rows<Element, 2>(t, part, panel, row);
        outer_rows<Element, 1>(t, part, panel, row);
    }
}

static void outer_any(const LowRankTask &t, const LowRankPart &part, long panel, long last) {
    switch (t.call->format) {
    case kBF16: return outer_panels<BFloat16>(t, part, panel, last);
    case kF16: return outer_panels<Float16>(t, part, panel, last);
    }
    outer_panels<Float32>(t, part, panel, last);
}

static void low_rank_outer(const LowRankTask *t, long panel, long last) {
    const LowRankUpdate &update = *t->update;
    for (long i = 0; i < update.num_parts; i++) {
        const LowRankPart &part = update.parts[i];
        const long first = part.first / kPanel, end = (part.first + part.n + kPanel - 1) / kPanel;
        outer_any(*t, part, panel > first ? panel : first, last < end ? last : end);
    }
}

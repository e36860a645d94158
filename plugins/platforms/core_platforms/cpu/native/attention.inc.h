// One attention task: its rows over its spans (attention_span.inc.h), the spans' results merged in order, and the
// output.

// Merges up to 16 rows of one span into their running maximum, total and sums.
LANE void merge(long rows, long width, float *maximum, float *total, float *sums, long sums_stride,
                const float *span_maximum, const float *span_total, const float *out, long out_stride) {
    float old[16], fresh[16];
    for (long r = 0; r < 16; r++) {
        bool started = r < rows && total[r] != 0, sees = r < rows && span_total[r] != 0;
        // A total of 0 marks a row that has seen no key: its maximum is meaningless, and -inf - -inf would be NaN.
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

// Merges one row's record (see native.h) into its running maximum, total and sums.
LANE void merge_record(const AttentionCall &c, const float *record, float *maximum, float *total, float *sums) {
    merge(1, c.dim_v, maximum, total, sums, 0, record, record + 1, record + kRecordHead, 0);
}

LANE void store_record(const AttentionCall &c, float *record, float maximum, float total, const float *sums) {
    record[0] = maximum, record[1] = total;
    for (long i = 0; i < c.dim_v && total != 0; i += 16) store(record + kRecordHead + i, load(sums + i));
}

LANE long record_floats(const AttentionCall &c) { return kRecordHead + (c.dim_v + 15) / 16 * 16; }

// The record of a row over a shared span; null if the span is not shared or was folded into an earlier one
// (`folded`).
LANE float *shared_record(const AttentionCall &c, const Row &row, long head_kv, long span, bool &folded) {
    const int64_t place = c.shared ? c.shared->place[row.sequence * c.shared->spans + span] : kNotShared;
    folded = place == kFolded;
    if (place < 0) return nullptr;
    return c.shared->records + place + (head_kv * rows_of(c, row.sequence) + row.row) * record_floats(c);
}

LANE float *own_record(const AttentionCall &c, const AttentionTask &t, long span, long r) {
    return t.partial + ((span - t.span) * t.rows + r) * record_floats(c);
}

LANE void finish_row(const AttentionCall &c, const Row &row, float maximum, float total, const float *sums) {
    float *out = c.out + row.token * c.out_row_stride + row.head * c.out_head_stride;
    float share = 1.0f / total;
    // An attention sink is one more logit in the softmax without a value: it only enlarges the denominator.
    if (c.sinks) {
        const float sink = c.sinks[row.head] * kLog2E, peak = maximum > sink ? maximum : sink;
        float powers[16] = {maximum - peak, sink - peak};
        store(powers, power_of_two(load(powers)));
        share = powers[0] / (total * powers[0] + powers[1]);
    }
    if (c.v_scale != 1) share *= c.v_scale;
    if (c.latent) return store_latent(out, sums, c.dim_v, element_pair(c.element) == 2, share);
    float turned[kMaxHead];
    if (c.element == kCacheK8V4) turn(sums, c.dim_v, turned), sums = turned, share *= turned_factor(c.dim_v);
    F factor = set1(share);
    for (long i = 0; i < c.dim_v; i += 16) {
        const long column = i < c.dim_v - 16 ? i : c.dim_v - 16;
        store(out + column, mul(load(sums + column), factor));
    }
}

// Keeps the results of some rows over one span: merged into their sums, or as records.
template <class S>
LANE void keep_rows(const AttentionCall &c, const AttentionTask &t, S &s, const Span &span, long row, long rows) {
    if (!t.partial && (!t.members || t.folded)) {
        for (long r = 0; r < rows; r += 16)
            merge(at_most(16, rows - r), c.dim_v, s.maximum + row + r, s.total + row + r, s.sums + (row + r) * kWidest, kWidest,
                  s.peaks + r, s.totals + r, s.out + r * kWidest, kWidest);
        return;
    }
    const long number = span.first / kSpan;
    for (long r = 0; r < rows; r++) {
        bool folded = false;
        float *record = t.partial ? own_record(c, t, number, row + r) : nullptr;
        if (!record) record = shared_record(c, s.row[row + r], t.head_kv, number, folded);
        store_record(c, record, s.peaks[r], s.totals[r], s.out + r * kWidest);
    }
}

template <bool Half, int Narrow, int R>
LANE long attend_rows(const AttentionCall &c, const AttentionTask &t, AttentionScratch &s, const Span &span, long row) {
    for (; row + R <= t.rows; row += R) {
        attend<Half, Narrow, R>(c, s, span, row);
        keep_rows(c, t, s, span, row, R);
    }
    return row;
}

template <bool Half>
static void attend_span(const AttentionCall &c, const AttentionTask &t, AttentionScratch &s, const Span &span) {
    long row = 0;
    if (kMaxRows >= 12) row = attend_rows<Half, 0, kMaxRows >= 12 ? 12 : 1>(c, t, s, span, row);
    if (kMaxRows >= 4) row = attend_rows<Half, 0, kMaxRows >= 4 ? 4 : 1>(c, t, s, span, row);
    // Groups of three query heads are common.
    if (kMaxRows >= 4) row = attend_rows<Half, 0, kMaxRows >= 4 ? 3 : 1>(c, t, s, span, row);
    row = attend_rows<Half, 0, 2>(c, t, s, span, row);
    attend_rows<Half, 0, 1>(c, t, s, span, row);
}

// The same for few rows: all are one block, so each number is widened once, without a place in memory.
template <int Narrow>
static void attend_narrow(const AttentionCall &c, const AttentionTask &t, AttentionScratch &s, const Span &span) {
    constexpr int kMost = Narrow == kCacheI8 ? kByteRows : kCodeRows;
    if (t.rows == 1) attend_rows<true, Narrow, 1>(c, t, s, span, 0);
    if (t.rows == 2) attend_rows<true, Narrow, kMost >= 2 ? 2 : 1>(c, t, s, span, 0);
    if (t.rows == 3) attend_rows<true, Narrow, kMost >= 3 ? 3 : 1>(c, t, s, span, 0);
    if (t.rows == 4) attend_rows<true, Narrow, kMost >= 4 ? 4 : 1>(c, t, s, span, 0);
}

// Writes one query, multiplied by the score scale, to the broadcast side of products. The factor log2(e) turns the softmax's
// powers of e into powers of two.
template <bool Half> LANE void load_query(const AttentionCall &c, const Row &row, uint8_t *to) {
    const float scale = c.k_scale == 1 ? c.scale * kLog2E : c.scale * kLog2E * c.k_scale;
    const bool turns = c.element == kCacheK8V4;
    const F factor = set1(turns ? scale * turned_factor(c.dim) : scale);
    const float *q = c.q + row.token * c.q_row_stride + row.head * c.q_head_stride;
    const float *pe = c.q_pe + row.token * c.pe_row_stride + row.head * c.pe_head_stride;
    float query[kMaxHead];
    if (c.latent) q = joined(q, pe, c.dim_v, c.dim, query);
    if (turns) turn(q, c.dim, query), q = query;
    for (long i = 0; i < c.dim; i += 16) {
        const long j = i < c.dim - 16 ? i : c.dim - 16;
        store_broadcast<Half>(to + j * kBroadcastBytes<Half>, mul(load(q + j), factor));
    }
}

template <bool Half> static void load_queries(const AttentionCall &c, const AttentionTask &t, AttentionScratch &s) {
    for (long r = 0; r < t.rows; r++) load_query<Half>(c, s.row[r], s.q + r * kWidest * kBroadcastBytes<Half>);
}

// Merges the records left for a shared span into the rows; false if the task has to compute the span itself.
template <class S> LANE bool join_shared(const AttentionCall &c, const AttentionTask &t, S &s, long span) {
    bool folded = false;
    if (t.members || (!shared_record(c, s.row[0], t.head_kv, span, folded) && !folded)) return false;
    for (long r = 0; r < t.rows && !folded; r++)
        merge_record(c, shared_record(c, s.row[r], t.head_kv, span, folded), s.maximum + r, s.total + r, s.sums + r * kWidest);
    return true;
}

// Lists the task's rows, which have seen nothing yet, and the keys [low, high) that any of them sees.
template <class S> LANE void begin_rows(const AttentionCall &c, const AttentionTask &t, S &s, long &low, long &high) {
    set_rows(c, t, s.row);
    low = kNever, high = 0;
    for (long r = 0; r < t.rows; r++) {
        long from, to;
        row_range(s.row[r], from, to);
        low = from < low ? from : low, high = to > high ? to : high;
        s.maximum[r] = s.total[r] = 0;
        for (long i = 0; i < c.dim_v; i += 16) store(s.sums + r * kWidest + i, zero());
    }
}

template <class S> LANE void finish_rows(const AttentionCall &c, const AttentionTask &t, S &s) {
    if (t.partial || (t.members && !t.folded)) return;
    for (long r = 0; r < t.rows; r++) {
        bool folded = false;
        float *sums = s.sums + r * kWidest;
        if (t.members)
            store_record(c, shared_record(c, s.row[r], t.head_kv, t.span, folded), s.maximum[r], s.total[r], sums);
        else
            finish_row(c, s.row[r], s.maximum[r], s.total[r], sums);
    }
}

#ifdef CORE_TILES
#include "attention_tiles.inc.h"
constexpr long kAttentionRows = kMostTaskRows;
#else
constexpr long kAttentionRows = kTaskRows;
#endif

static void attention(const AttentionCall *call, const AttentionTask *task, void *memory) {
    const AttentionCall &c = *call;
    const AttentionTask &t = *task;
    const bool half = element_pair(c.element) == 2;
#ifdef CORE_TILES
    if (half) {
        const FlushSubnormals flush(true);
        return attention_tiled(c, t, *(TileScratch *)memory);
    }
#endif
    const bool narrow = c.element >= kCacheI8 && !c.latent && t.rows <= (c.element == kCacheI8 ? kByteRows : kCodeRows);
    AttentionScratch &s = *(AttentionScratch *)memory;
    long low, high;
    begin_rows(c, t, s, low, high);
    half ? load_queries<true>(c, t, s) : load_queries<false>(c, t, s);
    for (long i = t.span; i < t.span + t.spans; i++) {
        if (join_shared(c, t, s, i)) continue;
        Span span;
        span.first = i * kSpan;
        locate(c, t, s.span, span, low, high, narrow);
        if (narrow)
            c.element == kCacheI8 ? attend_narrow<kCacheI8>(c, t, s, span) : attend_narrow<kCacheK8V4>(c, t, s, span);
        else
            half ? attend_span<true>(c, t, s, span) : attend_span<false>(c, t, s, span);
    }
    finish_rows(c, t, s);
}

// Merges up to 16 records of one row, in order: what `merge` does, with the powers of all of them computed at once.
LANE void merge_records(const AttentionCall &c, const float *const *records, long count, float &maximum, float &total,
                        float *sums) {
    float old[16] = {}, fresh[16] = {};
    bool started = total != 0;
    for (long k = 0; k < count; k++) {
        if (records[k][1] == 0) continue;
        const float own = records[k][0], peak = started && maximum > own ? maximum : own;
        if (started) old[k] = maximum - peak;
        fresh[k] = own - peak, maximum = peak, started = true;
    }
    store(old, power_of_two(load(old)));
    store(fresh, power_of_two(load(fresh)));
    for (long i = 0; i < c.dim_v; i += 16) {
        F sum = load(sums + i);
        for (long k = 0; k < count; k++)
            if (records[k][1] != 0)
                sum = add(mul(sum, set1(old[k])), mul(load(records[k] + kRecordHead + i), set1(fresh[k])));
        store(sums + i, sum);
    }
    for (long k = 0; k < count; k++)
        if (records[k][1] != 0) total = total * old[k] + records[k][1] * fresh[k];
}

// Finishes the rows of a task whose spans were computed as separate tasks.
static void attention_merge(const AttentionCall *call, const AttentionTask *task) {
    const AttentionTask &t = *task;
#ifdef CORE_TILES
    const FlushSubnormals flush(element_pair(call->element) == 2);
#endif
    Row rows[kMostTaskRows];
    set_rows(*call, t, rows);
    for (long r = 0; r < t.rows; r++) {
        float sums[kMaxHead], maximum = 0, total = 0;
        const float *records[16];
        long count = 0;
        for (long i = 0; i < call->dim_v; i += 16) store(sums + i, zero());
        for (long span = t.span; span < t.span + t.spans; span++) {
            bool folded = false;
            const float *record = shared_record(*call, rows[r], t.head_kv, span, folded);
            if (!folded) records[count++] = record ? record : own_record(*call, t, span, r);
            if (count < 16 && span + 1 < t.span + t.spans) continue;
            merge_records(*call, records, count, maximum, total, sums);
            count = 0;
        }
        finish_row(*call, rows[r], maximum, total, sums);
    }
}

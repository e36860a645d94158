// Detects the spans whose blocks several sequences share, so that each is read once for all of them (included by
// attention.cpp alone).
//
// Sequences share a span if they have the same block ids there. Sequences with many rows of their own gain nothing
// and are left out. A sequence that is alone in a span is not considered again, so without a shared prefix the search
// costs one look-up per sequence.

struct Run { // consecutive spans with the same members
    int32_t first, spans;
    int32_t *members;
    long num_members, rows;
    bool folded;
};

struct Sharing {
    SharedSpans spans;
    Run *runs;
    long num_runs, floats, tasks;
};

// Working memory of the search; all are int32 [batch] except the last.
struct Search {
    int32_t *alive, *next, *leader, *last, *count;
    int32_t *table; // [slots] hash table: class or -1
    long slots;
};

long rows_of(const AttentionCall &c, long sequence) {
    return long(c.cu_seqlens[sequence + 1] - c.cu_seqlens[sequence]) * (c.heads_q / c.heads_kv);
}

long first_span(const AttentionCall &c, long sequence) { // first span that the sequence's first query sees
    long position = c.seq_lens[sequence] - (c.cu_seqlens[sequence + 1] - c.cu_seqlens[sequence]);
    return first_key(c, position) / kSpan;
}

bool may_share(const AttentionCall &c, long sequence) {
    long rows = rows_of(c, sequence);
    return !c.ahead && rows > 0 && rows <= kTaskRows && table_keys(c, sequence) >= (first_span(c, sequence) + 1) * kSpan;
}

bool same_blocks(const AttentionCall &c, long a, long b, long span) {
    const int32_t *x = c.block_table + a * c.table_stride, *y = c.block_table + b * c.table_stride;
    long first = span * kSpan / c.block_size, last = ((span + 1) * kSpan - 1) / c.block_size;
    // From the end: sequences whose prefixes differ in one block differ in all later ones.
    for (long i = last; i >= first; i--)
        if (x[i] != y[i]) return false;
    return true;
}

// Groups the sequences that see the span into classes of equal blocks; returns the number of classes.
long classify(const AttentionCall &c, Search &s, long alive, long span) {
    long classes = 0;
    for (long i = 0; i < s.slots; i++) s.table[i] = -1;
    for (long i = 0; i < alive; i++) {
        const int32_t q = s.alive[i];
        if (first_span(c, q) > span || table_keys(c, q) < (span + 1) * kSpan) continue;
        uint32_t block = (uint32_t)c.block_table[q * c.table_stride + ((span + 1) * kSpan - 1) / c.block_size];
        long at = (block * 2654435761u >> 7) % s.slots;
        while (s.table[at] >= 0 && !same_blocks(c, s.leader[s.table[at]], q, span)) at = (at + 1) % s.slots;
        int32_t kind = s.table[at];
        if (kind < 0) {
            kind = s.table[at] = int32_t(classes++);
            s.leader[kind] = q, s.count[kind] = 0;
        } else {
            s.next[s.last[kind]] = q;
        }
        s.last[kind] = q, s.next[q] = -1, s.count[kind]++;
    }
    return classes;
}

bool same_members(const Run &run, const int32_t *members, long count) {
    if (run.num_members != count) return false;
    for (long i = 0; i < count; i++)
        if (run.members[i] != members[i]) return false;
    return true;
}

// Adds the class's members to the runs: extends the run that ended at the previous span if its members are the same.
int32_t *add_run(const AttentionCall &c, Sharing &sharing, const Search &s, long kind, long span, int32_t *members) {
    long count = 0, rows = 0;
    bool folded = true; // true if no member sees an earlier span
    for (int32_t q = s.leader[kind]; q >= 0; q = s.next[q]) {
        members[count++] = q;
        rows += rows_of(c, q);
        folded = folded && first_span(c, q) == span;
    }
    for (long i = 0; i < sharing.num_runs; i++) {
        Run &run = sharing.runs[i];
        if (run.first + run.spans != span || !same_members(run, members, count)) continue;
        run.spans++;
        return members;
    }
    sharing.runs[sharing.num_runs++] = {int32_t(span), 1, members, count, rows, folded};
    return members + count;
}

// Keeps the sequences that may share the next span, in their order.
long still_alive(const AttentionCall &c, Search &s, long alive, long classes, long span) {
    int32_t *shares = s.last; // reuses the array: by sequence, 1 where it shared this span
    for (long i = 0; i < c.batch; i++) shares[i] = 0;
    for (long kind = 0; kind < classes; kind++)
        for (int32_t q = s.leader[kind]; q >= 0 && s.count[kind] > 1; q = s.next[q]) shares[q] = 1;
    long kept = 0;
    for (long i = 0; i < alive; i++) {
        const int32_t q = s.alive[i];
        // With a window, the first span's blocks may already be freed.
        const bool early = c.window && first_span(c, q) >= span;
        if ((shares[q] || early) && table_keys(c, q) >= (span + 2) * kSpan) s.alive[kept++] = q;
    }
    return kept;
}

// Assigns every member of every run its place among the records.
void place_records(const AttentionCall &c, Sharing &sharing, long threads) {
    const long record = kRecordHead + (c.dim_v + 15) / 16 * 16;
    long tasks = 0;
    for (long i = 0; i < sharing.num_runs; i++) tasks += ceil_div(sharing.runs[i].rows, kTaskRows) * c.heads_kv;
    int64_t *place = (int64_t *)sharing.spans.place;
    for (long i = 0; i < c.batch * sharing.spans.spans; i++) place[i] = kNotShared;
    for (long i = 0; i < sharing.num_runs; i++) {
        Run &run = sharing.runs[i];
        // Else one task per span, to occupy more threads.
        run.folded = run.folded && (threads == 1 || tasks >= 2 * threads);
        sharing.tasks += ceil_div(run.rows, kTaskRows) * c.heads_kv * (run.folded ? 1 : run.spans);
        for (long m = 0; m < run.num_members; m++)
            for (long span = run.first; span < run.first + run.spans; span++) {
                int64_t &at = place[run.members[m] * sharing.spans.spans + span];
                at = run.folded && span > run.first ? kFolded : sharing.floats;
                if (at >= 0) sharing.floats += rows_of(c, run.members[m]) * c.heads_kv * record;
            }
    }
}

// Bytes that `find_sharing` needs; 0 if nothing can be shared.
size_t sharing_bytes(const AttentionCall &c, long &spans) {
    long able = 0;
    spans = 0;
    for (long q = 0; q < c.batch; q++) {
        spans = c.seq_lens[q] > spans * kSpan ? ceil_div(c.seq_lens[q], kSpan) : spans;
        able += may_share(c, q);
    }
    if (able < 2) return 0;
    return c.batch * (spans * (sizeof(int64_t) + sizeof(Run) / 2 + sizeof(int32_t)) + 8 * sizeof(int32_t)) + sizeof(Run);
}

// Detects shared spans, using `memory` of `sharing_bytes`; false if there are none.
bool find_sharing(const AttentionCall &c, void *memory, long spans, long threads, Sharing &sharing) {
    sharing = {};
    sharing.spans.place = (int64_t *)memory, sharing.spans.spans = spans;
    sharing.runs = (Run *)((int64_t *)memory + c.batch * spans);
    int32_t *words = (int32_t *)(sharing.runs + c.batch * spans / 2 + 1), *members = words + 8 * c.batch;
    Search s = {words, words + c.batch, words + 2 * c.batch, words + 3 * c.batch, words + 4 * c.batch, words + 5 * c.batch,
                3 * c.batch};
    long alive = 0;
    for (long q = 0; q < c.batch; q++)
        if (may_share(c, q)) s.alive[alive++] = int32_t(q);
    for (long span = 0; alive > 1 && span < spans; span++) {
        const long classes = classify(c, s, alive, span);
        for (long kind = 0; kind < classes; kind++)
            if (s.count[kind] > 1) members = add_run(c, sharing, s, kind, span, members);
        alive = still_alive(c, s, alive, classes, span);
    }
    if (!sharing.num_runs) return false;
    place_records(c, sharing, threads);
    return true;
}

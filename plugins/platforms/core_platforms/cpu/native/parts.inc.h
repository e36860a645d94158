// Attention over parts of the keys (included by attention.cpp alone): see attention_parts.h.

struct RecordsJob { // task i is of group i % groups
    const KernelTable *table;
    const AttentionCall *calls; // [groups]
    long groups;
    const AttentionTask *tasks;
    std::atomic<bool> *exhausted;
};

void records_tile(const void *context, long tile) {
    const RecordsJob &job = *(const RecordsJob *)context;
    Scratch scratch(kAttentionBytes);
    if (scratch.memory)
        job.table->context->attention(&job.calls[tile % job.groups], &job.tasks[tile], scratch.memory);
    else
        job.exhausted->store(true);
}

long record_size(const AttentionCall &c) { return kRecordHead + ceil_div(c.dim_v, 16) * 16; }

// One task per kv head, run of rows and run of spans for each group. A run has several spans where the records of a task's
// rows follow each other from span to span. Without `tasks` they are only counted.
long make_records_tasks(const RecordsCall &c, long longest, AttentionTask *tasks) {
    const long record = record_size(c);
    long count = 0;
    for (long sequence = 0; sequence < c.batch; sequence++) {
        const long rows = rows_of(c, sequence), stored = rows * c.heads_kv;
        for (long row = 0; row < rows; row += kTaskRows)
            for (long head = 0; head < c.heads_kv; head++) {
                AttentionTask t = task_of(sequence, head, row, at_most(kTaskRows, rows - row));
                set_spans(c, t);
                const long end = t.span + t.spans, run = t.rows == stored ? longest : 1;
                for (long span = t.span; span < end; span += run)
                    for (long group = 0; group < c.groups; group++, count++) {
                        if (!tasks) continue;
                        t.span = int32_t(span), t.spans = int32_t(at_most(run, end - span));
                        t.partial = c.records + group * c.part + c.bases[sequence] + (span * stored + head * rows + row) * record;
                        tasks[count] = t;
                    }
            }
    }
    return count;
}

// Sets where each row finds the records of each span.
void set_places(const JoinCall &c, const SharedSpans &shared, int64_t *place) {
    const long record = record_size(c);
    for (long sequence = 0; sequence < c.batch; sequence++) {
        const long step = rows_of(c, sequence) * c.heads_kv * record;
        for (long span = 0; span < ceil_div(c.seq_lens[sequence], kSpan); span++) {
            const long turn = span / c.piece, own = turn / c.ranks * c.piece + span % c.piece;
            place[sequence * shared.spans + span] = turn % c.ranks * c.part + c.bases[sequence] + own * step;
        }
    }
}

struct JoinJob {
    const KernelTable *table;
    const AttentionCall *call;
    const AttentionTask *tasks;
};

void join_tile(const void *context, long tile) {
    const JoinJob &job = *(const JoinJob *)context;
    job.table->context->attention_merge(job.call, &job.tasks[tile]);
}

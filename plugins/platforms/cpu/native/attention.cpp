// Cuts attention into tasks of rows, and of key spans where there are fewer tasks than the threads could use.
#include "native.h"
#include "pool.h"

namespace {

constexpr long kWriteRows = 32; // fewer new tokens are written by the caller alone

struct AttentionJob {
    const KernelTable *table;
    const AttentionCall *call;
    AttentionTask *tasks;
};

struct WriteJob {
    const KernelTable *table;
    const CacheWriteCall *call;
};

long at_most(long a, long b) { return a < b ? a : b; }
long ceil_div(long a, long b) { return (a + b - 1) / b; }

void attention_tile(const void *context, long tile) {
    const AttentionJob &job = *(const AttentionJob *)context;
    job.table->attention(job.call, &job.tasks[tile]);
}

void merge_tile(const void *context, long tile) {
    const AttentionJob &job = *(const AttentionJob *)context;
    job.table->attention_merge(job.call, &job.tasks[tile]);
}

void write_tile(const void *context, long tile) {
    const WriteJob &job = *(const WriteJob *)context;
    job.table->cache_write(job.call, tile * kWriteRows, at_most((tile + 1) * kWriteRows, job.call->rows));
}

long rows_of(const AttentionCall &c, long sequence) {
    return (c.cu_seqlens[sequence + 1] - c.cu_seqlens[sequence]) * (c.heads_q / c.heads_kv);
}

// The spans that some of the rows [row, row + rows) see.
void set_spans(const AttentionCall &c, AttentionTask &t) {
    long group = c.heads_q / c.heads_kv, queries = c.cu_seqlens[t.sequence + 1] - c.cu_seqlens[t.sequence];
    long start = c.seq_lens[t.sequence] - queries;
    long low = c.window ? start + t.row / group + 1 - c.window : 0, high = start + (t.row + t.rows - 1) / group + 1;
    t.span = int32_t(low > 0 ? low / kSpan : 0);
    t.spans = int32_t(ceil_div(high, kSpan) - t.span);
}

// One task for each kv head and run of rows; the last rows, which see most keys, come first.
long make_tasks(const AttentionCall &c, AttentionTask *tasks) {
    long count = 0;
    for (long sequence = 0; sequence < c.batch; sequence++) {
        long rows = rows_of(c, sequence);
        for (long tile = ceil_div(rows, kTaskRows); tile-- > 0;)
            for (long head = 0; head < c.heads_kv; head++) {
                AttentionTask &t = tasks[count++];
                long row = tile * kTaskRows;
                t = {int32_t(sequence), int32_t(head), int32_t(row), int32_t(at_most(kTaskRows, rows - row)), 0, 0, nullptr};
                set_spans(c, t);
            }
    }
    return count;
}

// Runs every span of every task by itself, then merges: the same bits as one task after another.
bool run_split(const AttentionCall &c, AttentionJob job, long count, long spans, long floats) {
    Scratch scratch(spans * sizeof(AttentionTask) + floats * sizeof(float));
    if (!scratch.memory) return false;
    AttentionTask *parts = (AttentionTask *)scratch.memory;
    float *partial = (float *)(parts + spans);
    long part = 0;
    for (long i = 0; i < count; i++) {
        AttentionTask &t = job.tasks[i];
        t.partial = partial;
        for (long span = 0; span < t.spans; span++, partial += t.rows * (c.dim_v + 2)) {
            parts[part] = t;
            parts[part].span = int32_t(t.span + span), parts[part].spans = 1, parts[part].partial = partial;
            part++;
        }
    }
    AttentionJob split = {job.table, job.call, parts};
    pool_run(attention_tile, &split, spans);
    for (long i = 0; i < count; i++) merge_tile(&job, i);
    return true;
}

} // namespace

void run_cache_write(const CacheWriteCall &call) {
    WriteJob job = {kernels_active(), &call};
    pool_run(write_tile, &job, ceil_div(call.rows, kWriteRows));
}

bool run_attention(const AttentionCall &call) {
    long most = 0;
    for (long sequence = 0; sequence < call.batch; sequence++)
        most += ceil_div(rows_of(call, sequence), kTaskRows) * call.heads_kv;
    Scratch scratch(most * sizeof(AttentionTask));
    if (!scratch.memory) return false;
    AttentionJob job = {kernels_active(), &call, (AttentionTask *)scratch.memory};
    long count = make_tasks(call, job.tasks), spans = 0, floats = 0;
    for (long i = 0; i < count; i++) {
        spans += job.tasks[i].spans;
        floats += long(job.tasks[i].spans) * job.tasks[i].rows * (call.dim_v + 2);
    }
    if (pool_size() > 1 && count < 4 * pool_size() && spans > count) return run_split(call, job, count, spans, floats);
    pool_run(attention_tile, &job, count);
    return true;
}

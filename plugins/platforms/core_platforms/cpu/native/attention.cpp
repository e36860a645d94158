// Splits attention into tasks of rows, and into tasks of key spans where there are too few row tasks for the threads.
// Spans shared between sequences come first, in their own tasks (sharing.inc.h).
#include "attention_parts.h"
#include "native.h"
#include "pool.h"

#include <atomic>

namespace {

constexpr long kPartSpans = 16, kPartsPerThread = 8;
constexpr long kWriteRows = 32; // up to this many new tokens make a single tile, which the caller writes alone

struct AttentionJob {
    const KernelTable *table;
    const AttentionCall *call;
    AttentionTask *tasks;
    std::atomic<bool> *exhausted; // set by a thread that could not allocate its working memory
};

struct WriteJob {
    const KernelTable *table;
    const CacheWriteCall *call;
};

#include "sharing.inc.h"

void attention_tile(const void *context, long tile) {
    const AttentionJob &job = *(const AttentionJob *)context;
    Scratch scratch(kAttentionBytes);
    if (scratch.memory)
        job.table->context->attention(job.call, &job.tasks[tile], scratch.memory);
    else
        job.exhausted->store(true);
}

void merge_tile(const void *context, long tile) {
    const AttentionJob &job = *(const AttentionJob *)context;
    job.table->context->attention_merge(job.call, &job.tasks[tile]);
}

void write_tile(const void *context, long tile) {
    const WriteJob &job = *(const WriteJob *)context;
    job.table->context->cache_write(job.call, tile * kWriteRows, at_most((tile + 1) * kWriteRows, job.call->rows));
}

// Sets the range of spans seen by any of the rows [row, row + rows).
void set_spans(const AttentionCall &c, AttentionTask &t) {
    long group = c.heads_q / c.heads_kv, queries = c.cu_seqlens[t.sequence + 1] - c.cu_seqlens[t.sequence];
    long start = c.seq_lens[t.sequence] - queries;
    long low = first_key(c, start + t.row / group), high = end_key(c, t.sequence, start + (t.row + t.rows - 1) / group);
    t.span = int32_t(low / kSpan);
    t.spans = int32_t(ceil_div(high, kSpan) - t.span);
}

AttentionTask task_of(long sequence, long head, long row, long rows) {
    AttentionTask t = {};
    t.sequence = int32_t(sequence), t.head_kv = int32_t(head), t.row = int32_t(row), t.rows = int32_t(rows);
    return t;
}

// The number of tasks of `longest` rows.
long count_tasks(const AttentionCall &c, long longest) {
    long count = 0;
    for (long sequence = 0; sequence < c.batch; sequence++) count += ceil_div(rows_of(c, sequence), longest) * c.heads_kv;
    return count;
}

// The rows of a task: as many as the table likes, since all read the same keys, while four tasks are left for each thread.
long task_rows(const AttentionCall &c) {
    if (c.element == kCacheF32 || c.element == kCacheF16) return kTaskRows;
    long rows = kernels_active()->context->attention_rows;
    while (rows > kTaskRows && count_tasks(c, rows) < 4 * pool_size()) rows /= 2;
    return rows < kTaskRows ? kTaskRows : rows;
}

// One task per kv head and run of rows. The last rows see the most keys, so they come first: short tasks at the end
// finish together.
long make_tasks(const AttentionCall &c, AttentionTask *tasks, long longest) {
    long count = 0;
    for (long sequence = 0; sequence < c.batch; sequence++) {
        long rows = rows_of(c, sequence);
        for (long tile = ceil_div(rows, longest); tile-- > 0;)
            for (long head = 0; head < c.heads_kv; head++) {
                tasks[count] = task_of(sequence, head, tile * longest, at_most(longest, rows - tile * longest));
                set_spans(c, tasks[count++]);
            }
    }
    return count;
}

// Distributes the rows of all members over tasks of about equal size: one task for all spans of a folded run, else
// one per span.
long make_shared_tasks(const AttentionCall &c, const Sharing &sharing, AttentionTask *tasks) {
    long count = 0;
    for (long i = 0; i < sharing.num_runs; i++) {
        const Run &run = sharing.runs[i];
        const long tiles = ceil_div(run.rows, kTaskRows), rows = at_most(kTaskRows, ceil_div(ceil_div(run.rows, tiles), 12) * 12);
        for (long row = 0; row < run.rows; row += rows)
            for (long span = run.first; span < run.first + (run.folded ? 1 : run.spans); span++)
                for (long head = 0; head < c.heads_kv; head++) {
                    AttentionTask &t = tasks[count++];
                    t = task_of(run.members[0], head, row, at_most(rows, run.rows - row));
                    t.span = int32_t(span), t.spans = run.folded ? run.spans : 1, t.folded = run.folded;
                    t.members = run.members, t.num_members = int32_t(run.num_members);
                }
    }
    return count;
}

bool computed(const AttentionCall &c, const AttentionTask &t, long span) { // whether this task computes the span itself
    return !c.shared || c.shared->place[t.sequence * c.shared->spans + span] == kNotShared;
}

// Runs the spans of every task in parts, each span by itself, then merges in span order: the same bits as running one
// task after another. A part is as long as leaves several for each thread.
bool run_split(const AttentionCall &c, AttentionJob job, long count, long spans, long record) {
    long floats = 0;
    for (long i = 0; i < count; i++) floats += long(job.tasks[i].spans) * job.tasks[i].rows * record;
    Scratch scratch(spans * sizeof(AttentionTask) + floats * sizeof(float));
    if (!scratch.memory) return false;
    AttentionTask *parts = (AttentionTask *)scratch.memory;
    float *partial = (float *)(parts + spans);
    const long longest = at_most(kPartSpans, ceil_div(spans, kPartsPerThread * pool_size()));
    long part = 0;
    for (long i = 0; i < count; i++) {
        AttentionTask &t = job.tasks[i];
        t.partial = partial;
        for (long span = t.span; span < t.span + t.spans; span++, partial += t.rows * record) {
            if (!computed(c, t, span)) continue;
            AttentionTask *before = span > t.span && computed(c, t, span - 1) ? &parts[part - 1] : nullptr;
            if (before && before->spans < longest) {
                before->spans++;
                continue;
            }
            parts[part] = t;
            parts[part].span = int32_t(span), parts[part].spans = 1, parts[part].partial = partial;
            part++;
        }
    }
    AttentionJob split = job;
    split.tasks = parts;
    pool_run(attention_tile, &split, part);
    // Merging a few rows takes less time than waking the pool.
    if (count < 8)
        for (long i = 0; i < count; i++) merge_tile(&job, i);
    else
        pool_run(merge_tile, &job, count);
    return !job.exhausted->load();
}

bool run_own(const AttentionCall &call) {
    const long longest = task_rows(call);
    long spans = 0;
    Scratch scratch(count_tasks(call, longest) * sizeof(AttentionTask));
    if (!scratch.memory) return false;
    std::atomic<bool> exhausted{false};
    AttentionJob job = {kernels_active(), &call, (AttentionTask *)scratch.memory, &exhausted};
    const long count = make_tasks(call, job.tasks, longest), record = kRecordHead + ceil_div(call.dim_v, 16) * 16;
    for (long i = 0; i < count; i++) spans += job.tasks[i].spans;
    // Below four tasks per thread the last task would leave threads idle, so spans are distributed as well.
    if (pool_size() > 1 && count < 4 * pool_size() && spans > count) return run_split(call, job, count, spans, record);
    pool_run(attention_tile, &job, count);
    return !exhausted.load();
}

// Computes shared spans first, once for all sequences that share them; each sequence then merges the records left for
// it.
bool run_shared(const AttentionCall &call, Sharing &sharing) {
    Scratch scratch(sharing.tasks * sizeof(AttentionTask) + sharing.floats * sizeof(float));
    if (!scratch.memory) return false;
    AttentionCall shared = call;
    std::atomic<bool> exhausted{false};
    AttentionJob job = {kernels_active(), &shared, (AttentionTask *)scratch.memory, &exhausted};
    sharing.spans.records = (float *)(job.tasks + sharing.tasks);
    shared.shared = &sharing.spans;
    pool_run(attention_tile, &job, make_shared_tasks(call, sharing, job.tasks));
    return !exhausted.load() && run_own(shared);
}

#include "parts.inc.h"

} // namespace

void run_cache_write(const CacheWriteCall &call) {
    WriteJob job = {kernels_active(), &call};
    pool_run(write_tile, &job, ceil_div(call.rows, kWriteRows));
}

bool run_attention(const AttentionCall &call) {
    long spans = 0;
    const size_t bytes = sharing_bytes(call, spans);
    if (!bytes) return run_own(call);
    Scratch scratch(bytes);
    Sharing sharing;
    if (!scratch.memory) return false;
    return find_sharing(call, scratch.memory, spans, pool_size(), sharing) ? run_shared(call, sharing) : run_own(call);
}

bool run_attention_records(const RecordsCall &call) {
    const long most = make_records_tasks(call, 1, nullptr);
    // Long runs save the loading of queries; several tasks for each thread keep all of them busy.
    const long longest = at_most(kPartSpans, ceil_div(most, kPartsPerThread * pool_size() * call.groups));
    const long count = make_records_tasks(call, longest, nullptr);
    Scratch scratch(count * sizeof(AttentionTask) + call.groups * sizeof(AttentionCall));
    if (!scratch.memory) return false;
    AttentionCall *calls = (AttentionCall *)scratch.memory;
    AttentionTask *tasks = (AttentionTask *)(calls + call.groups);
    for (long group = 0; group < call.groups; group++) {
        calls[group] = call;
        calls[group].q += group * call.q_group;
        if (call.latent) calls[group].q_pe += group * call.pe_group;
    }
    make_records_tasks(call, longest, tasks);
    std::atomic<bool> exhausted{false};
    RecordsJob job = {kernels_active(), calls, call.groups, tasks, &exhausted};
    pool_run(records_tile, &job, count);
    return !exhausted.load();
}

bool run_attention_join(const JoinCall &call) {
    const long most = count_tasks(call, kTaskRows);
    long spans = 0;
    for (long sequence = 0; sequence < call.batch; sequence++) {
        const long own = ceil_div(call.seq_lens[sequence], kSpan);
        spans = own > spans ? own : spans;
    }
    Scratch scratch(most * sizeof(AttentionTask) + call.batch * spans * sizeof(int64_t));
    if (!scratch.memory) return false;
    AttentionTask *tasks = (AttentionTask *)scratch.memory;
    int64_t *place = (int64_t *)(tasks + most);
    SharedSpans shared = {place, spans, (float *)call.records};
    set_places(call, shared, place);
    AttentionCall own = call;
    own.shared = &shared;
    JoinJob job = {kernels_active(), &own, tasks};
    pool_run(join_tile, &job, make_tasks(own, tasks, kTaskRows));
    return true;
}

// The choice of keys by an index: scores of tiles of rows, spread over the threads, then the best keys of each row. Also gathers
// the chosen keys of rows into a cache of their own, which the calls of latent attention then read.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "native.h"
#include "pool.h"

namespace {

constexpr long kTileRows = 32;  // rows whose scores are in memory at once
constexpr long kPartKeys = 256; // keys of a task: a thread finds each key once for all rows of a tile and sequence
constexpr long kPartChosen = 256;

struct ScoreJob {
    const KernelTable *table;
    const IndexCall *call;
    const IndexTask *tasks;
};

struct ChosenRow {
    long token; // of the batch
    const float *scores;
    long keys; // visible ones
    int32_t *out;
};

struct QueryJob {
    const KernelTable *table;
    const IndexCall *call;
    const ChosenRow *rows;
    uint32_t *to; // [rows, words]
    long words;
};

struct ChoiceJob {
    const KernelTable *table;
    const IndexCall *call;
    const ChosenRow *rows;
    std::atomic<bool> *exhausted;
};

void score_tile(const void *context, long tile) {
    const ScoreJob &job = *(const ScoreJob *)context;
    job.table->context->index_scores(job.call, &job.tasks[tile]);
}

void query_tile(const void *context, long tile) {
    const QueryJob &job = *(const QueryJob *)context;
    if (job.rows[tile].keys > job.call->top_k) job.table->context->index_queries(job.call, job.rows[tile].token, job.to + tile * job.words);
}

// The top_k best keys in the order of their positions. Of equal scores the earlier keys win; NaN is the worst.
void choose_tile(const void *context, long tile) {
    const ChoiceJob &job = *(const ChoiceJob *)context;
    const ChosenRow &row = job.rows[tile];
    const long top_k = job.call->top_k;
    if (row.keys <= top_k) {
        for (long i = 0; i < top_k; i++) row.out[i] = int32_t(i < row.keys ? i : -1);
        return;
    }
    Scratch scratch(row.keys * sizeof(uint32_t));
    if (!scratch.memory) return job.exhausted->store(true);
    job.table->context->index_choose(row.scores, row.keys, top_k, (uint32_t *)scratch.memory, row.out);
}

struct GatherJob {
    const KernelTable *table;
    const ChosenCall *call;
    long parts; // of a row
};

void gather_tile(const void *context, long tile) {
    const GatherJob &job = *(const GatherJob *)context;
    const ChosenCall &c = *job.call;
    const long row = tile / job.parts, begin = tile % job.parts * kPartChosen, end = at_most(begin + kPartChosen, c.top_k);
    job.table->context->index_gather(&c, row, begin, end);
    if (begin) return;
    const int32_t *chosen = c.chosen + (c.first + row) * c.chosen_row_stride;
    long count = 0;
    while (count < c.top_k && chosen[count] >= 0) count++;
    c.lengths[row] = int32_t(count);
}

// Adds the tasks of some rows of a sequence; none where every key is chosen.
long add_tasks(const IndexCall &c, IndexTask t, IndexTask *to) {
    const long keys = t.position + t.rows;
    if (keys <= c.top_k) return 0;
    long count = 0;
    for (long first = 0; first < keys; first += kPartKeys) {
        to[count] = t;
        to[count].first = first, to[count].end = at_most(first + kPartKeys, keys);
        count++;
    }
    return count;
}

// A few rows take less time than waking the pool.
void run_few(TileFunction function, const void *context, long tiles) {
    if (tiles > 4) return pool_run(function, context, tiles);
    for (long tile = 0; tile < tiles; tile++) function(context, tile);
}

} // namespace

bool run_index(const IndexCall &call) {
    long longest = 0;
    for (long sequence = 0; sequence < call.batch; sequence++) longest = std::max<long>(longest, call.seq_lens[sequence]);
    const long stride = ceil_div(longest, 16) * 16, most = kTileRows * ceil_div(longest, kPartKeys);
    const long words = index_query_words(call);
    Scratch scratch(kTileRows * (words * sizeof(uint32_t) + stride * sizeof(float) + sizeof(ChosenRow)) + most * sizeof(IndexTask));
    if (!scratch.memory) return false;
    uint32_t *queries = (uint32_t *)scratch.memory;
    float *scores = (float *)(queries + kTileRows * words);
    IndexTask *tasks = (IndexTask *)(scores + kTileRows * stride);
    ChosenRow *rows = (ChosenRow *)(tasks + most);
    std::atomic<bool> exhausted{false};
    const QueryJob query = {kernels_active(), &call, rows, queries, words};
    const ScoreJob score = {kernels_active(), &call, tasks};
    const ChoiceJob choice = {kernels_active(), &call, rows, &exhausted};
    long filled = 0, count = 0;
    const auto run = [&]() {
        run_few(query_tile, &query, filled);
        pool_run(score_tile, &score, count);
        pool_run(choose_tile, &choice, filled);
        filled = count = 0;
    };
    for (long sequence = 0; sequence < call.batch; sequence++) {
        const long start = call.cu_seqlens[sequence], new_rows = call.cu_seqlens[sequence + 1] - start;
        for (long row = 0; row < new_rows;) {
            IndexTask t = {};
            t.sequence = sequence, t.token = start + row, t.rows = at_most(new_rows - row, kTileRows - filled);
            t.position = call.seq_lens[sequence] - new_rows + row, t.scores = scores + filled * stride, t.stride = stride;
            t.queries = queries + filled * words, t.query_words = words;
            count += add_tasks(call, t, tasks + count);
            for (long i = 0; i < t.rows; i++) {
                const long token = t.token + i;
                rows[filled + i] = {token, t.scores + i * stride, t.position + i + 1, call.out + token * call.out_row_stride};
            }
            filled += t.rows, row += t.rows;
            if (filled == kTileRows) run();
        }
    }
    run();
    return !exhausted.load();
}

bool run_index_gather(const ChosenCall &call) {
    const GatherJob job = {kernels_active(), &call, ceil_div(call.top_k, kPartChosen)};
    pool_run(gather_tile, &job, call.rows * job.parts);
    return true;
}

namespace {

struct WriteJob {
    const KernelTable *table;
    const IndexWriteCall *call;
};

constexpr long kWriteRows = 64;

void write_tile(const void *context, long tile) {
    const WriteJob &job = *(const WriteJob *)context;
    job.table->context->index_write(job.call, tile * kWriteRows, at_most((tile + 1) * kWriteRows, job.call->rows));
}

} // namespace

bool run_index_write(const IndexWriteCall &call) {
    const WriteJob job = {kernels_active(), &call};
    pool_run(write_tile, &job, ceil_div(call.rows, kWriteRows));
    return true;
}

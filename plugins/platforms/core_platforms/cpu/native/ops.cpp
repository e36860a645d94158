// Whole operations: stages activations, splits the work into tiles, and passes them to the pool and the active table.
#include "low_rank.h"
#include "native.h"
#include "pool.h"

#include <atomic>
#include <string.h>

namespace {

// Sums of a gated product that stay in the cache, and room for one panel of each half.
constexpr long kGatedFloats = kRowChunk * 2 * kPanel, kMostGatedFloats = kMostRowChunk * 2 * kPanel;
constexpr long kStageElements = 16384; // below this, the caller stages alone

struct LinearJob {
    const KernelTable *table;
    LinearCall call;
    const LinearRun *run;
    std::atomic<bool> *exhausted; // set by a thread that could not allocate its working memory
    long panels, panels_a_tile, panel_tiles, rows_a_tile;
};

void multiply(const LinearJob &job, const LinearCall &call, long panel, long begin, long end) {
    if (!job.table->linear(&call, panel, begin, end)) job.exhausted->store(true);
}

// Multiplies rows [begin, end) by neighbouring panels, into `out` [end - begin, stride].
void panels_apart(const LinearJob &job, long panel, long count, long begin, long end, float *out, long stride) {
    LinearCall call = job.call;
    call.out_stride = stride;
    // The kernel adds row and panel offsets, so point to where row 0 would be.
    call.out = (float *)((uintptr_t)out - sizeof(float) * (begin * stride + panel * kPanel));
    for (long i = 0; i < count; i++) multiply(job, call, panel + i, begin, end);
}

// Computes panels [panel, last) of the first half and their counterparts in the second. Their sums never leave the
// cache; as many panels are computed at a time as fit, so that neighbouring panels are read in sequence.
void gated_panels(const LinearJob &job, long panel, long last, long begin, long end) {
    float sums[kMostGatedFloats];
    const LinearRun &run = *job.run;
    const long rows = end - begin, fit = kGatedFloats / (2 * kPanel * rows), room = fit ? fit : 1;
    for (long count; panel < last; panel += count) {
        count = at_most(last - panel, room);
        const long width = count * kPanel;
        panels_apart(job, panel, count, begin, end, sums, 2 * width);
        panels_apart(job, panel + job.panels, count, begin, end, sums + width, 2 * width);
        float *out = run.out + begin * run.out_stride + panel * kPanel;
        const RowsCall gate = {sums, 2 * width, out, run.out_stride, rows, width, 0, run.activation};
        job.table->gated(&gate, 0, rows);
    }
}

// Applies the activation to a panel's sums while they are in the cache.
void activate_panel(const LinearJob &job, long panel, long begin, long end) {
    const LinearRun &run = *job.run;
    const long rows = end - begin, width = at_most(kPanel, run.weight->n - panel * kPanel);
    float *out = run.out + begin * run.out_stride + panel * kPanel;
    const RowsCall call = {out, run.out_stride, out, run.out_stride, rows, width, 0, run.activation};
    job.table->activate(&call, 0, rows);
}

void linear_tile(const void *context, long tile) {
    const LinearJob &job = *(const LinearJob *)context;
    long begin = tile / job.panel_tiles * job.rows_a_tile, end = at_most(begin + job.rows_a_tile, job.call.rows);
    long panel = tile % job.panel_tiles * job.panels_a_tile, last = at_most(panel + job.panels_a_tile, job.panels);
    if (job.run->gated) return gated_panels(job, panel, last, begin, end);
    for (; panel < last; panel++) {
        multiply(job, job.call, panel, begin, end);
        if (job.run->activated) activate_panel(job, panel, begin, end);
    }
}

// A product and the updates of adapters after it: tiles of A x among tiles of the product, then those of B (A x), which wait
// for the others; threads have claimed them before. A x waits for memory where products of many rows wait for arithmetic.
struct JoinedJob {
    LinearJob linear;
    const LowRankWork *updates;
    long linear_tiles, update_tiles;
    std::atomic<long> *finished; // tiles of the product
};

void joined_tile(const void *context, long tile) {
    const JoinedJob &job = *(const JoinedJob *)context;
    const long inner = job.updates->tiles(), first = inner + job.linear_tiles;
    if (tile < first) {
        const long before = inner * tile / first; // tiles of A x before this one
        if (inner * (tile + 1) / first > before) return job.updates->tile(before);
        linear_tile(&job.linear, tile - before);
        job.finished->fetch_add(1, std::memory_order_release);
        return;
    }
    tile -= first;
    pool_wait(*job.finished, job.linear_tiles);
    const long panels = job.linear.panels, panel = panels * tile / job.update_tiles;
    const long last = panels * (tile + 1) / job.update_tiles;
    const LinearCall &call = job.linear.call;
    if (!job.updates->update(panel, last, call.out, call.out_stride)) job.linear.exhausted->store(true);
}

void stage_tile(const void *context, long tile) {
    const LinearJob &job = *(const LinearJob *)context;
    job.table->stage(&job.call, tile * 8, at_most(tile * 8 + 8, job.call.rows));
}

template <class Call> struct RowsJob {
    void (*function)(const Call *, long, long);
    const Call *call;
    long chunk;
};

template <class Call> void rows_tile(const void *context, long tile) {
    const RowsJob<Call> &job = *(const RowsJob<Call> *)context;
    job.function(job.call, tile * job.chunk, at_most((tile + 1) * job.chunk, job.call->rows));
}

template <class Call> void over_rows(void (*function)(const Call *, long, long), const Call &call, long width) {
    if (call.rows * width < kSmallElements) {
        function(&call, 0, call.rows);
        return;
    }
    // Four chunks per thread even out threads that start late or lose their processor.
    RowsJob<Call> job = {function, &call, ceil_div(call.rows, pool_size() * 4)};
    pool_run(rows_tile<Call>, &job, ceil_div(call.rows, job.chunk));
}

struct RouteJob {
    const KernelTable *table;
    RouteCall call;
};

void route_tile(const void *context, long tile) {
    const RouteJob &job = *(const RouteJob *)context;
    job.table->route(&job.call, tile * 16, at_most(tile * 16 + 16, job.call.rows));
}

// updates: of adapters for the same rows, or null.
bool run_product(const LinearRun &run, const LowRankWork *updates) {
    const PackedLinear *weight = run.weight;
    const long rows = run.rows;
    if (rows == 0) return true;
    LinearJob job = {};
    std::atomic<bool> exhausted{false};
    job.table = kernels_active(), job.run = &run, job.exhausted = &exhausted;
    job.call = {weight, run.x, run.x_stride, run.out, run.out_stride, rows, run.accumulate, nullptr, 0, nullptr, nullptr, nullptr};
    size_t row_bytes = job.table->staged_bytes(weight);
    size_t meta_bytes = weight->input_groups * sizeof(GroupMeta);
    Scratch scratch((row_bytes + meta_bytes) * rows);
    if (row_bytes && scratch.memory) {
        job.call.staged = (uint8_t *)scratch.memory;
        job.call.staged_stride = row_bytes;
        job.call.meta = (GroupMeta *)(job.call.staged + row_bytes * rows);
        if (rows * weight->k < kStageElements)
            job.table->stage(&job.call, 0, rows);
        else
            pool_run(stage_tile, &job, ceil_div(rows, 8));
    } else if (row_bytes) {
        return false; // out of memory
    }
    job.panels = run.gated ? weight->panels / 2 : weight->panels;
    const long row_block = job.table->row_block;
    long row_tiles = ceil_div(rows, job.table->row_chunk(weight)), panels = job.panels * row_tiles / (pool_size() * 8);
    // Whole row blocks, so that only the last tile runs the slower narrow blocks.
    job.rows_a_tile = ceil_div(ceil_div(rows, row_tiles), row_block) * row_block;
    row_tiles = ceil_div(rows, job.rows_a_tile);
    job.panels_a_tile = panels < 1 ? 1 : at_most(panels, job.panels);
    job.panel_tiles = ceil_div(job.panels, job.panels_a_tile);
    const long tiles = job.panel_tiles * row_tiles;
    if (!updates) {
        pool_run(linear_tile, &job, tiles);
        return !exhausted.load();
    }
    std::atomic<long> finished{0};
    const JoinedJob joined = {job, updates, tiles, at_most(job.panels, pool_size()), &finished};
    pool_run(joined_tile, &joined, updates->tiles() + tiles + joined.update_tiles);
    return !exhausted.load();
}

} // namespace

bool run_linear(const LinearRun &run) { return run_product(run, nullptr); }

bool run_joined(const JoinedRun &run) {
    for (long row = 0; row < run.rows; row += kLowRankRows) {
        LinearRun linear = run.linear;
        LowRankCall updates = run.updates;
        linear.x += row * linear.x_stride, linear.out += row * linear.out_stride;
        linear.rows = updates.rows = at_most(kLowRankRows, run.rows - row);
        updates.x = linear.x, updates.which += row;
        const LowRankWork work(updates);
        if (!work.ok() || !run_product(linear, work.empty() ? nullptr : &work)) return false;
    }
    return true;
}

long missing_row(const GatherCall &call) {
    const long end = call.whole ? call.whole : call.weight->n;
    for (long i = 0; i < call.rows; i++)
        if (call.ids[i] < 0 || call.ids[i] >= end) return i;
    return -1;
}

bool run_gather(const GatherCall &call) {
    if (missing_row(call) >= 0) return false;
    for (long i = 0; call.whole && i < call.rows; i++) {
        const int64_t id = call.ids[i] - call.first;
        float *out = call.out + i * call.out_stride;
        if (id >= 0 && id < call.weight->n)
            unpack_rows(call.weight, &id, 1, out, call.out_stride);
        else
            memset(out, 0, call.weight->k * sizeof(float));
    }
    if (call.whole) return true;
    unpack_rows(call.weight, call.ids, call.rows, call.out, call.out_stride);
    return true;
}

void run_take(const TakeCall &call) {
    for (long i = 0; i < call.rows; i++)
        memcpy(call.out + i * call.out_stride, call.x + call.which[i] * call.x_stride, call.width * sizeof(float));
}

void run_norm(const NormCall &call) { over_rows(kernels_active()->norm, call, call.heads * call.width); }
void run_rotary(const RotaryCall &call) { over_rows(kernels_active()->rotary, call, call.heads * call.half * 2); }
void run_gated(const RowsCall &call) { over_rows(kernels_active()->gated, call, call.width * 8); }
void run_activate(const RowsCall &call) { over_rows(kernels_active()->activate, call, call.width * 8); }
void run_add(const RowsCall &call) { over_rows(kernels_active()->add, call, call.width); }
void run_open_gate(const RowsCall &call) { over_rows(kernels_active()->open_gate, call, call.width * 8); }
void run_scale(const RowsCall &call) { over_rows(kernels_active()->scale, call, call.width); }
void run_soft_cap(const RowsCall &call) { over_rows(kernels_active()->soft_cap, call, call.width * 8); }
void run_race(const RaceCall &call) { over_rows(kernels_active()->race, call, call.vocab); }
void run_logprobs(const LogprobsCall &call) { over_rows(kernels_active()->logprobs, call, call.vocab); }

bool run_route(const RouteCall &call) {
    RouteJob job = {kernels_active(), call};
    job.call.padded = ceil_div(call.experts, 16) * 16;
    Scratch scratch(call.rows * 3 * job.call.padded * sizeof(float));
    if (!scratch.memory) return false;
    job.call.work = (float *)scratch.memory;
    const long tiles = ceil_div(call.rows, 16);
    if (call.rows * call.experts * call.top_k >= kSmallElements) {
        pool_run(route_tile, &job, tiles);
    } else {
        for (long tile = 0; tile < tiles; tile++) route_tile(&job, tile);
    }
    return true;
}

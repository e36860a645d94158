// The updates of adapters over the thread pool: rows grouped by adapter, both products in one parallel region.
//
// A tile computes some units: of A x, a panel of ranks and a subtree of segments for a chunk of rows; of B h, a panel of
// outputs for a chunk. Tiles of A x come first. Tiles are claimed in order, so whoever claims one of B h knows that each
// tile of A x has a thread that runs it, and waits for these alone.
#include "native.h"
#include "pool.h"

#include <atomic>
#include <sched.h>
#include <string.h>

namespace {

constexpr long kChunkRows = 48;        // rows that share a unit: their inputs stay in the second-level cache
constexpr long kTileWork = 8192;       // products per tile and lane: fewer are not worth another claim
constexpr long kSpinsBeforeYield = 4000;

struct Chunk { // rows with one adapter
    const LowRankUpdate *update;
    int32_t begin, end;   // places in `order`
    int32_t inner, outer; // number of the chunk's first unit of each product
};

struct Job {
    const KernelTable *table;
    const LowRankCall *call;
    int32_t *order; // the rows with adapters, grouped by adapter
    Chunk *chunks;
    long num_chunks;
    long width;  // numbers of A x per row
    long splits; // subtrees of segments that are computed apart; a power of two
    float *inner; // [rows, splits, width]
    long inner_units, outer_units, inner_tiles, outer_tiles;
    std::atomic<long> *finished; // tiles of A x
    std::atomic<bool> *exhausted;
};

LowRankTask task_of(const Job &job, const Chunk &chunk, long split) {
    const long stride = job.splits * job.width;
    float *inner = job.inner + chunk.begin * stride + split * job.width;
    return {job.call, chunk.update, job.order + chunk.begin, chunk.end - chunk.begin, inner, stride};
}

// The last chunk whose first unit is not after `unit`.
template <int32_t Chunk::*First> long chunk_of(const Job &job, long unit) {
    long low = 0, high = job.num_chunks;
    while (high - low > 1) {
        const long middle = (low + high) / 2;
        (job.chunks[middle].*First <= unit ? low : high) = middle;
    }
    return low;
}

void inner_units(const Job &job, long unit, long last) {
    const long segments = job.call->segments / job.splits;
    for (long i = chunk_of<&Chunk::inner>(job, unit); unit < last; i++) {
        const Chunk &chunk = job.chunks[i];
        const long end = at_most(last, chunk.inner + chunk.update->panels * job.splits);
        for (; unit < end; unit++) {
            const long panel = (unit - chunk.inner) / job.splits, split = (unit - chunk.inner) % job.splits;
            const LowRankTask task = task_of(job, chunk, split);
            job.table->low_rank_inner(&task, panel, split * segments, segments);
        }
    }
}

// Adds the subtrees of each row; leaves [count, width] in `sums`.
void join(const Job &job, const LowRankTask &task, float *sums) {
    const long width = task.update->panels * kRankLanes;
    for (long row = 0; row < task.count; row++) {
        float *to = sums + row * width;
        const float *from = task.inner + row * task.inner_stride;
        if (job.splits == 2) {
            for (long i = 0; i < width; i++) to[i] = from[i] + from[job.width + i];
        } else if (job.splits == 4) {
            for (long i = 0; i < width; i++)
                to[i] = (from[i] + from[job.width + i]) + (from[2 * job.width + i] + from[3 * job.width + i]);
        } else {
            const float *second = from + 4 * job.width;
            for (long i = 0; i < width; i++) {
                const float left = (from[i] + from[job.width + i]) + (from[2 * job.width + i] + from[3 * job.width + i]);
                const float right = (second[i] + second[job.width + i]) + (second[2 * job.width + i] + second[3 * job.width + i]);
                to[i] = left + right;
            }
        }
    }
}

void outer_units(const Job &job, long unit, long last) {
    for (long i = chunk_of<&Chunk::outer>(job, unit); unit < last; i++) {
        const Chunk &chunk = job.chunks[i];
        const long end = at_most(last, chunk.outer + chunk.update->output_panels);
        LowRankTask task = task_of(job, chunk, 0);
        const long width = chunk.update->panels * kRankLanes;
        Scratch scratch(job.splits > 1 ? task.count * width * sizeof(float) : 0);
        if (job.splits > 1) {
            if (!scratch.memory) return job.exhausted->store(true);
            join(job, task, (float *)scratch.memory);
            task.inner = (float *)scratch.memory, task.inner_stride = width;
        }
        job.table->low_rank_outer(&task, unit - chunk.outer, end - chunk.outer);
        unit = end;
    }
}

void wait_for_inner(const Job &job) {
    for (long spins = 0; job.finished->load(std::memory_order_acquire) < job.inner_tiles; spins++) {
        if (spins >= kSpinsBeforeYield) sched_yield();
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

void tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    if (tile < job.inner_tiles) {
        inner_units(job, job.inner_units * tile / job.inner_tiles, job.inner_units * (tile + 1) / job.inner_tiles);
        job.finished->fetch_add(1, std::memory_order_release);
        return;
    }
    tile -= job.inner_tiles;
    wait_for_inner(job);
    outer_units(job, job.outer_units * tile / job.outer_tiles, job.outer_units * (tile + 1) / job.outer_tiles);
}

const LowRankUpdate *update_of(const LowRankCall &c, long row) {
    return c.which[row] < 0 ? nullptr : c.table[c.which[row]];
}

// Groups the rows by adapter and cuts the groups into chunks; `starts`: int32 [table_rows + 1].
void group_rows(Job &job, int32_t *starts) {
    const LowRankCall &c = *job.call;
    memset(starts, 0, (c.table_rows + 1) * sizeof(int32_t));
    for (long row = 0; row < c.rows; row++)
        if (update_of(c, row)) starts[c.which[row] + 1]++;
    for (long i = 0; i < c.table_rows; i++) starts[i + 1] += starts[i];
    for (long row = 0; row < c.rows; row++)
        if (update_of(c, row)) job.order[starts[c.which[row]]++] = (int32_t)row;
    long begin = 0; // filling has moved each start to the group's end
    for (long i = 0; i < c.table_rows; i++)
        for (const long end = starts[i]; begin < end;) {
            const long last = at_most(begin + kChunkRows, end);
            job.chunks[job.num_chunks++] = {c.table[i], (int32_t)begin, (int32_t)last, 0, 0};
            begin = last;
        }
}

// Numbers the units, and chooses how many tiles share them.
void cut(Job &job) {
    const long threads = pool_size();
    long panels = 0, work = 0;
    for (long i = 0; i < job.num_chunks; i++) {
        Chunk &chunk = job.chunks[i];
        panels += chunk.update->panels;
        const long ranks = chunk.update->panels * kRankLanes;
        work += (chunk.end - chunk.begin) * ranks * (job.call->k + chunk.update->output_panels * kPanel) / 16;
        job.width = ranks > job.width ? ranks : job.width;
    }
    const long wanted = work < kTileWork ? 1 : panels < 4 * threads ? threads : 4 * threads;
    job.splits = 1;
    while (job.splits < job.call->segments && panels * job.splits < 2 * wanted && panels * job.splits % wanted) job.splits *= 2;
    for (long i = 0; i < job.num_chunks; i++) {
        Chunk &chunk = job.chunks[i];
        chunk.inner = (int32_t)job.inner_units, chunk.outer = (int32_t)job.outer_units;
        job.inner_units += chunk.update->panels * job.splits, job.outer_units += chunk.update->output_panels;
    }
    job.inner_tiles = at_most(job.inner_units, wanted), job.outer_tiles = at_most(job.outer_units, wanted);
}

bool run_rows(const LowRankCall &call) {
    Job job = {};
    std::atomic<long> finished{0};
    std::atomic<bool> exhausted{false};
    job.table = kernels_active(), job.call = &call, job.finished = &finished, job.exhausted = &exhausted;
    const long most_chunks = call.rows / kChunkRows + at_most(call.rows, call.table_rows);
    Scratch lists(most_chunks * sizeof(Chunk) + (call.rows + call.table_rows + 1) * sizeof(int32_t));
    if (!lists.memory) return false;
    job.chunks = (Chunk *)lists.memory, job.order = (int32_t *)(job.chunks + most_chunks);
    group_rows(job, job.order + call.rows);
    if (!job.num_chunks) return true;
    cut(job);
    Scratch inner(call.rows * job.splits * job.width * sizeof(float));
    if (!inner.memory) return false;
    job.inner = (float *)inner.memory;
    pool_run(tile, &job, job.inner_tiles + job.outer_tiles);
    return !exhausted.load();
}

} // namespace

bool run_low_rank(const LowRankCall &call) {
    for (long row = 0; row < call.rows; row += kLowRankRows) {
        LowRankCall part = call;
        part.x += row * call.x_stride, part.out += row * call.out_stride, part.which += row;
        part.rows = at_most(kLowRankRows, call.rows - row);
        if (!run_rows(part)) return false;
    }
    return true;
}

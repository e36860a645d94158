// A layer of experts as grouped matrix products. (token, expert) pairs are sorted by expert, stably, so that each
// expert's weights are read once per chunk of tokens. Experts have no capacity limit. A token's bits do not depend on
// its neighbours, because each pair is one row of a product with independent rows, and a token sums its pairs in
// order of their experts.
#include "native.h"
#include "pool.h"
#include "ranks.h"

#include <atomic>
#include <string.h>

namespace {

constexpr size_t kWorkBytes = size_t(128) << 20; // working memory of one chunk of tokens
constexpr long kTilesPerThread = 8; // measured: with 32, whose runs of panels are shorter, one token took 4 to 7% longer

// Rows [begin, end) of the sorted pairs, all of one expert, that are multiplied together.
struct Block {
    int32_t expert, begin, end;
};

struct Job {
    const KernelTable *table;
    const ExpertsCall *call;
    std::atomic<bool> *exhausted; // set by a thread that could not allocate its working memory
    long token, tokens, pairs;    // first token, token count and pair count of this chunk
    int32_t *start;               // [experts + 1] first sorted position of each expert
    int32_t *order, *where;       // [pairs] pair at a position, position of a pair
    const float *weights;         // [tokens, top_k], of the chunk
    LinearCall stage;             // stages the chunk's tokens
    Block *blocks;
    long block_count;
    std::atomic<long> *done; // [blocks] tiles of the first product that are done; one more once the block is finished
    LinearCall up, down;        // over all pairs; a tile sets the weight, and for `up` the inputs
    long up_panels, down_panels; // panels per tile
    long up_tiles, down_tiles;   // tiles per block
    RowsCall gate;
    CombineCall combine;
};

// Allocates aligned parts of a memory block; with a null block it only counts bytes.
struct Parts {
    uint8_t *memory;
    size_t used = 0;
    template <class T> T *take(size_t count) {
        T *part = memory ? (T *)(memory + used) : nullptr;
        used += (count * sizeof(T) + 63) / 64 * 64;
        return part;
    }
};

void place_stage(LinearCall &call, const KernelTable *table, long rows, Parts &parts) {
    const size_t row_bytes = table->staged_bytes(call.weight);
    if (!row_bytes) return;
    call.staged_stride = row_bytes;
    call.staged = parts.take<uint8_t>(row_bytes * rows);
    call.meta = parts.take<GroupMeta>(call.weight->input_groups * rows);
}

// Whether each block stages its own inputs: they depend on the expert, not on the token alone.
bool stages_apart(const ExpertsLayer &layer) { return layer.weight_inputs || layer.own_inputs; }

void stage_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    job.table->stage(&job.stage, tile * 8, at_most(tile * 8 + 8, job.tokens));
}

long token_of(const Job &job, long position) { return job.order[position] / job.call->top_k; }

// Points `call` to the inputs of one row where they lie already.
bool in_place(const Job &job, const Block &block, LinearCall &call) {
    if (block.end - block.begin > 1 || stages_apart(*job.call->layer)) return false;
    const LinearCall &from = job.stage;
    const long token = token_of(job, block.begin);
    call.x = from.x + token * from.x_stride;
    if (!from.staged) return true;
    call.staged_stride = from.staged_stride;
    call.staged = from.staged + token * from.staged_stride;
    call.meta = from.meta + token * from.weight->input_groups;
    return true;
}

// Copies the inputs of a block's rows next to one another, where asked each multiplied by its weight, and stages them.
// Their scales differ from the token's, so the token's staged row cannot be reused.
void gather_apart(const Job &job, const Block &block, LinearCall &call, Parts parts) {
    const LinearCall &from = job.stage;
    const long rows = block.end - block.begin, k = from.weight->k;
    float *x = parts.take<float>(rows * k);
    for (long i = 0; i < rows; i++) {
        const float *row = from.x + token_of(job, block.begin + i) * from.x_stride;
        const float weight = job.call->layer->weight_inputs ? job.weights[job.order[block.begin + i]] : 1;
        for (long j = 0; j < k; j++) x[i * k + j] = weight * row[j];
    }
    call.x = x, call.x_stride = k;
    call.weight = job.call->layer->gate_up[block.expert];
    place_stage(call, job.table, rows, parts);
    if (call.staged) job.table->stage(&call, 0, rows);
}

// Copies the inputs of a block's rows next to one another.
void gather(const Job &job, const Block &block, LinearCall &call, Parts parts) {
    if (stages_apart(*job.call->layer)) return gather_apart(job, block, call, parts);
    const LinearCall &from = job.stage;
    const long rows = block.end - block.begin, k = from.weight->k, groups = from.weight->input_groups;
    float *x = nullptr;
    if (from.staged)
        place_stage(call, job.table, rows, parts);
    else
        call.x = x = parts.take<float>(rows * k), call.x_stride = k;
    for (long i = 0; i < rows; i++) {
        const long token = token_of(job, block.begin + i);
        if (x) {
            memcpy(x + i * k, from.x + token * from.x_stride, k * sizeof(float));
            continue;
        }
        memcpy(call.staged + i * call.staged_stride, from.staged + token * from.staged_stride, from.staged_stride);
        memcpy(call.meta + i * groups, from.meta + token * groups, groups * sizeof(GroupMeta));
    }
}

size_t gathered_bytes(const Job &job, long rows) {
    Parts parts = {nullptr};
    LinearCall call = job.up;
    if (stages_apart(*job.call->layer) || !job.stage.staged) parts.take<float>(rows * job.stage.weight->k);
    place_stage(call, job.table, rows, parts);
    return parts.used;
}

// Multiplies rows [begin, end) by panels [panel, last) of a block's expert; the next block's expert is read afterwards, or
// what `after` points to behind the last one.
void multiply(const Job &job, LinearCall &call, const PackedLinear *const *weights, long index, long panel, long last, long begin,
              long end, const uint8_t *after) {
    const PackedLinear &weight = *weights[job.blocks[index].expert];
    call.weight = &weight;
    for (; panel < last; panel++) {
        if (panel + 1 == weight.panels)
            call.next = index + 1 < job.block_count ? weights[job.blocks[index + 1].expert]->data : after;
        if (!job.table->linear(&call, panel, begin, end)) job.exhausted->store(true);
    }
}

// Applies the activation in place, and stages the second product's inputs.
void finish_block(const Job &job, const Block &block) {
    (job.call->layer->plain ? job.table->activate : job.table->gated)(&job.gate, block.begin, block.end);
    if (!job.down.staged) return;
    LinearCall down = job.down;
    down.weight = job.call->layer->down[block.expert];
    job.table->stage(&down, block.begin, block.end);
}

// Some panels of the first product for one block. The thread that computes a block's last panels finishes it.
void up_tile(const Job &job, long tile) {
    const long index = tile / job.up_tiles, panel = tile % job.up_tiles * job.up_panels;
    const long last = at_most(panel + job.up_panels, job.up.weight->panels);
    const Block &block = job.blocks[index];
    const long rows = block.end - block.begin;
    LinearCall call = job.up;
    call.out += block.begin * call.out_stride;
    const bool copies = !in_place(job, block, call);
    Scratch scratch(copies ? gathered_bytes(job, rows) : 0);
    if (scratch.memory) {
        if (copies) gather(job, block, call, Parts{(uint8_t *)scratch.memory});
        const uint8_t *after = job.call->layer->down[job.blocks[0].expert]->data;
        multiply(job, call, job.call->layer->gate_up, index, panel, last, 0, rows, after);
    } else {
        job.exhausted->store(true); // the tile still counts: others wait for it
    }
    if (job.done[index].fetch_add(1, std::memory_order_acq_rel) + 1 < job.up_tiles) return;
    finish_block(job, block);
    job.done[index].store(job.up_tiles + 1, std::memory_order_release);
}

void down_tile(const Job &job, long tile) {
    const long index = tile / job.down_tiles, panel = tile % job.down_tiles * job.down_panels;
    const long last = at_most(panel + job.down_panels, job.down.weight->panels);
    LinearCall call = job.down;
    pool_wait(job.done[index], job.up_tiles + 1);
    multiply(job, call, job.call->layer->down, index, panel, last, job.blocks[index].begin, job.blocks[index].end, nullptr);
}

// Both products are one job: a thread that finds no tile of the first begins the second, of blocks that were finished long
// before, in place of waiting for the slowest tile of the first.
void product_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    const long first = job.block_count * job.up_tiles;
    tile < first ? up_tile(job, tile) : down_tile(job, tile - first);
}

void combine_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    job.table->combine(&job.combine, tile * 8, at_most(tile * 8 + 8, job.tokens));
}

// Copies the outputs of a token's choices next to one another, in the order of its choices.
void apart_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    const CombineCall &c = job.combine;
    for (long row = tile * 8; row < at_most(tile * 8 + 8, job.tokens); row++) {
        float *out = c.out + row * c.out_stride;
        const int32_t *where = c.where + row * c.top_k;
        memset(out, 0, c.top_k * c.width * sizeof(float));
        for (long j = 0; j < c.top_k && where[j] != kAbsent; j++)
            memcpy(out + c.order[where[j]] % c.top_k * c.width, c.y + where[j] * c.width, c.width * sizeof(float));
    }
}

void run(TileFunction function, const Job &job, long tiles, long elements) {
    if (elements >= kSmallElements) return pool_run(function, &job, tiles);
    for (long tile = 0; tile < tiles; tile++) function(&job, tile);
}

void sort_few(int32_t *values, long count) {
    for (long i = 1; i < count; i++) {
        const int32_t value = values[i];
        long j = i;
        for (; j > 0 && values[j - 1] > value; j--) values[j] = values[j - 1];
        values[j] = value;
    }
}

// Sorts the chunk's pairs by expert; `where` then lists each token's positions in order of its experts' ids.
void sort_pairs(Job &job) {
    const long experts = job.call->layer->experts;
    const int64_t *ids = job.call->ids + job.token * job.call->top_k;
    memset(job.start, 0, (experts + 1) * sizeof(int32_t));
    for (long p = 0; p < job.pairs; p++)
        if (ids[p] >= 0) job.start[ids[p] + 1]++;
    for (long e = 0; e < experts; e++) job.start[e + 1] += job.start[e];
    for (long p = 0; p < job.pairs; p++) {
        job.where[p] = ids[p] < 0 ? kAbsent : job.start[ids[p]]++;
        if (ids[p] < 0) continue;
        job.order[job.where[p]] = (int32_t)p;
    }
    for (long p = 0; p < job.pairs; p += job.call->top_k) sort_few(job.where + p, job.call->top_k);
    for (long e = experts; e > 0; e--) job.start[e] = job.start[e - 1]; // counting has moved each start to its end
    job.start[0] = 0;
}

// Cuts the sorted pairs into blocks, and both products into tiles.
void cut(Job &job) {
    job.block_count = 0;
    for (long e = 0; e < job.call->layer->experts; e++)
        for (long begin = job.start[e]; begin < job.start[e + 1]; begin += kRowChunk)
            job.blocks[job.block_count++] = {(int32_t)e, (int32_t)begin, (int32_t)at_most(begin + kRowChunk, job.start[e + 1])};
    const long wanted = pool_size() * kTilesPerThread, up = job.up.weight->panels, down = job.down.weight->panels;
    job.up_panels = at_most(up, ceil_div(job.block_count * up, wanted));
    job.down_panels = at_most(down, ceil_div(job.block_count * down, wanted));
    job.up_tiles = ceil_div(up, job.up_panels), job.down_tiles = ceil_div(down, job.down_panels);
    for (long i = 0; i < job.block_count; i++) job.done[i].store(0, std::memory_order_relaxed);
}

// Assigns a place to every buffer of the job; returns their total size in bytes.
size_t place(Job &job, Parts parts) {
    const ExpertsCall &c = *job.call;
    const PackedLinear *up = c.layer->gate_up[0], *down = c.layer->down[0];
    const long most_blocks = job.pairs / kRowChunk + at_most(c.layer->experts, job.pairs);
    job.start = parts.take<int32_t>(c.layer->experts + 1);
    job.order = parts.take<int32_t>(job.pairs);
    job.where = parts.take<int32_t>(job.pairs);
    job.blocks = parts.take<Block>(most_blocks);
    job.done = parts.take<std::atomic<long>>(most_blocks);
    job.stage = {up, c.x + job.token * c.x_stride, c.x_stride, nullptr, 0, job.tokens, 0, nullptr, 0, nullptr, nullptr, nullptr};
    job.weights = c.weights + job.token * c.top_k;
    if (!stages_apart(*c.layer)) place_stage(job.stage, job.table, job.tokens, parts);
    float *inner = parts.take<float>(job.pairs * up->n), *y = parts.take<float>(job.pairs * down->n);
    job.up = {up, nullptr, 0, inner, up->n, job.pairs, 0, nullptr, 0, nullptr, nullptr, nullptr};
    job.down = {down, inner, up->n, y, down->n, job.pairs, 0, nullptr, 0, nullptr, nullptr, nullptr};
    place_stage(job.down, job.table, job.pairs, parts);
    job.gate = {inner, up->n, inner, up->n, job.pairs, down->k, 0, c.layer->activation};
    float *out = c.out + job.token * c.out_stride;
    const float *weights = c.layer->weight_inputs ? nullptr : job.weights;
    const int64_t *ids = c.ids + job.token * c.top_k;
    const long ranges = c.layer->ranges;
    job.combine = {y,   down->n, job.tokens,                c.top_k, job.where, job.order,
                   ids, weights, c.layer->experts / ranges, ranges,  out,       c.out_stride, c.accumulate};
    return parts.used;
}

void run_chunk(Job &job) {
    const long hidden = job.stage.weight->k;
    sort_pairs(job);
    if (job.start[job.call->layer->experts]) { // at least one choice is of this rank
        cut(job);
        if (job.stage.staged) run(stage_tile, job, ceil_div(job.tokens, 8), job.tokens * hidden);
        pool_run(product_tile, &job, job.block_count * (job.up_tiles + job.down_tiles));
    }
    run(job.call->apart ? apart_tile : combine_tile, job, ceil_div(job.tokens, 8), job.pairs * hidden);
}

} // namespace

bool run_experts(const ExpertsCall &call) {
    if (call.rows == 0) return true;
    Job job = {};
    std::atomic<bool> exhausted{false};
    job.exhausted = &exhausted;
    job.table = kernels_active(), job.call = &call;
    job.tokens = 1, job.pairs = call.top_k;
    // Sizes grow linearly with the tokens, so the size for one token gives the tokens per chunk.
    const long most = kWorkBytes / place(job, Parts{nullptr}) + 1;
    // Equal chunks: a small last one would read every expert for few tokens.
    const long chunk = ceil_div(call.rows, ceil_div(call.rows, most));
    job.tokens = chunk, job.pairs = chunk * call.top_k;
    Scratch scratch(place(job, Parts{nullptr}));
    if (!scratch.memory) return false;
    for (long token = 0; token < call.rows; token += chunk) {
        job.token = token, job.tokens = at_most(chunk, call.rows - token), job.pairs = job.tokens * call.top_k;
        place(job, Parts{(uint8_t *)scratch.memory});
        run_chunk(job);
    }
    return !exhausted.load();
}

bool run_combine(const CombineCall &call) {
    Scratch scratch(call.rows * call.top_k * sizeof(int32_t));
    if (!scratch.memory) return false;
    int32_t *where = (int32_t *)scratch.memory;
    for (long row = 0; row < call.rows; row++)
        for (long j = 0; j < call.top_k; j++) { // choices in order of their experts' ids
            const int64_t *ids = call.ids + row * call.top_k;
            long place = row * call.top_k + j;
            for (; place > row * call.top_k && call.ids[where[place - 1]] > ids[j]; place--) where[place] = where[place - 1];
            where[place] = (int32_t)(row * call.top_k + j);
        }
    Job job = {};
    job.table = kernels_active(), job.tokens = call.rows, job.combine = call;
    job.combine.where = where, job.combine.order = nullptr;
    run(combine_tile, job, ceil_div(call.rows, 8), call.rows * call.top_k * call.width);
    return true;
}

void run_place(const PlaceCall &call) {
    long given[kMostRanks] = {};
    for (long p = 0; p < call.rows * call.top_k; p++) {
        const int32_t *copies = call.table + call.ids[p] * call.columns;
        int32_t slot = copies[1];
        for (int32_t i = 2; i <= copies[0]; i++)
            if (given[copies[i] / call.per_rank] < given[slot / call.per_rank]) slot = copies[i];
        const long rank = slot / call.per_rank;
        given[rank]++;
        call.slots[p] = rank == call.rank ? slot - rank * call.per_rank : -1;
        call.loads[call.ids[p]]++;
    }
}

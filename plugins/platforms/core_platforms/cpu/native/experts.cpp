// A layer of experts as grouped matrix products. (token, expert) pairs are sorted by expert, stably, so that each
// expert's weights are read once per chunk of tokens. Experts have no capacity limit. A token's bits do not depend on
// its neighbours, because each pair is one row of a product with independent rows, and a token sums its pairs in
// order of their experts.
#include "native.h"
#include "pool.h"

#include <atomic>
#include <string.h>

namespace {

constexpr size_t kWorkBytes = size_t(128) << 20; // working memory of one chunk of tokens

struct Tile {
    int32_t expert, begin, end, panel, last;
};

// A product per expert over that expert's rows of the sorted pairs.
struct Product {
    const PackedLinear *const *weights;
    LinearCall call; // over all pairs; the weight is set per tile
    Tile *tiles;
};

struct Job {
    const KernelTable *table;
    const ExpertsCall *call;
    std::atomic<bool> *exhausted; // set by a thread that could not allocate its working memory
    long token, tokens, pairs; // first token, token count and pair count of this chunk
    long wanted;               // wanted number of tiles in a product
    int32_t *start;            // [experts + 1] first sorted position of each expert
    int32_t *order, *where;    // [pairs] pair at a position, position of a pair
    const float *weights;      // [tokens, top_k], of the chunk
    LinearCall stage;          // stages the chunk's tokens
    Product up, down;
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

void stage_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    job.table->stage(&job.stage, tile * 8, at_most(tile * 8 + 8, job.tokens));
}

// Copies the rows of the sorted pairs, each multiplied by its weight, and stages them. Their scales differ from the
// token's, so the token's staged row cannot be reused.
void gather_weighted(const Job &job, long begin, long end) {
    const LinearCall &from = job.stage, &to = job.up.call;
    for (long i = begin; i < end; i++) {
        const float *x = from.x + job.order[i] / job.call->top_k * from.x_stride, weight = job.weights[job.order[i]];
        float *row = (float *)to.x + i * to.x_stride;
        for (long k = 0; k < from.weight->k; k++) row[k] = weight * x[k];
    }
    if (to.staged) job.table->stage(&to, begin, end);
}

void gather_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    const LinearCall &from = job.stage, &to = job.up.call;
    const size_t groups = from.weight->input_groups;
    const long begin = tile * 32, end = at_most(begin + 32, job.pairs);
    if (job.call->layer->weight_inputs) return gather_weighted(job, begin, end);
    for (long i = begin; i < end; i++) {
        const long token = job.order[i] / job.call->top_k;
        if (!from.staged) {
            memcpy((float *)to.x + i * to.x_stride, from.x + token * from.x_stride, from.weight->k * sizeof(float));
            continue;
        }
        memcpy(to.staged + i * to.staged_stride, from.staged + token * from.staged_stride, from.staged_stride);
        if (groups) memcpy(to.meta + i * groups, from.meta + token * groups, groups * sizeof(GroupMeta));
    }
}

void product_tile(const Job &job, const Product &product, const Tile &tile) {
    LinearCall call = product.call;
    call.weight = product.weights[tile.expert];
    for (long panel = tile.panel; panel < tile.last; panel++)
        if (!job.table->linear(&call, panel, tile.begin, tile.end)) job.exhausted->store(true);
}

void up_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    product_tile(job, job.up, job.up.tiles[tile]);
}

void down_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    product_tile(job, job.down, job.down.tiles[tile]);
}

// Applies the activation in place, and stages the second product's inputs.
void gate_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    const long begin = tile * 8, end = at_most(begin + 8, job.pairs);
    (job.call->layer->plain ? job.table->activate : job.table->gated)(&job.gate, begin, end);
    if (job.down.call.staged) job.table->stage(&job.down.call, begin, end);
}

void combine_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    job.table->combine(&job.combine, tile * 8, at_most(tile * 8 + 8, job.tokens));
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
    for (long p = 0; p < job.pairs; p++) job.start[ids[p] + 1]++;
    for (long e = 0; e < experts; e++) job.start[e + 1] += job.start[e];
    for (long p = 0; p < job.pairs; p++) {
        job.where[p] = job.start[ids[p]]++;
        job.order[job.where[p]] = (int32_t)p;
    }
    for (long p = 0; p < job.pairs; p += job.call->top_k) sort_few(job.where + p, job.call->top_k);
    for (long e = experts; e > 0; e--) job.start[e] = job.start[e - 1]; // counting has moved each start to its end
    job.start[0] = 0;
}

long cut(const Job &job, Product &product) { // returns the number of tiles
    const long experts = job.call->layer->experts, panels = product.call.weight->panels;
    long chunks = 0, count = 0;
    for (long e = 0; e < experts; e++) chunks += ceil_div(job.start[e + 1] - job.start[e], kRowChunk);
    const long panels_a_tile = at_most(panels, ceil_div(chunks * panels, job.wanted));
    for (long e = 0; e < experts; e++)
        for (long begin = job.start[e]; begin < job.start[e + 1]; begin += kRowChunk)
            for (long panel = 0; panel < panels; panel += panels_a_tile)
                product.tiles[count++] = {(int32_t)e, (int32_t)begin, (int32_t)at_most(begin + kRowChunk, job.start[e + 1]),
                                          (int32_t)panel, (int32_t)at_most(panel + panels_a_tile, panels)};
    return count;
}

long most_tiles(const Job &job, const PackedLinear *weight) { // upper limit on what `cut` returns
    const long chunks = job.pairs / kRowChunk + at_most(job.call->layer->experts, job.pairs);
    return at_most(chunks * weight->panels, job.wanted + chunks);
}

void place_stage(LinearCall &call, const KernelTable *table, long rows, Parts &parts) {
    const size_t row_bytes = table->staged_bytes(call.weight);
    if (!row_bytes) return;
    call.staged_stride = row_bytes;
    call.staged = parts.take<uint8_t>(row_bytes * rows);
    call.meta = parts.take<GroupMeta>(call.weight->input_groups * rows);
}

// Assigns a place to every buffer of the job; returns their total size in bytes.
size_t place(Job &job, Parts parts) {
    const ExpertsCall &c = *job.call;
    const PackedLinear *up = c.layer->gate_up[0], *down = c.layer->down[0];
    job.start = parts.take<int32_t>(c.layer->experts + 1);
    job.order = parts.take<int32_t>(job.pairs);
    job.where = parts.take<int32_t>(job.pairs);
    job.stage = {up, c.x + job.token * c.x_stride, c.x_stride, nullptr, 0, job.tokens, 0, nullptr, 0, nullptr, nullptr};
    job.weights = c.weights + job.token * c.top_k;
    if (!c.layer->weight_inputs) place_stage(job.stage, job.table, job.tokens, parts);
    const bool direct = job.table->staged_bytes(up) == 0 || c.layer->weight_inputs;
    const float *x = direct ? parts.take<float>(job.pairs * up->k) : nullptr;
    float *inner = parts.take<float>(job.pairs * up->n), *y = parts.take<float>(job.pairs * down->n);
    job.up = {c.layer->gate_up, {up, x, up->k, inner, up->n, job.pairs, 0, nullptr, 0, nullptr, nullptr}, nullptr};
    place_stage(job.up.call, job.table, job.pairs, parts);
    job.down = {c.layer->down, {down, inner, up->n, y, down->n, job.pairs, 0, nullptr, 0, nullptr, nullptr}, nullptr};
    place_stage(job.down.call, job.table, job.pairs, parts);
    job.up.tiles = parts.take<Tile>(most_tiles(job, up));
    job.down.tiles = parts.take<Tile>(most_tiles(job, down));
    job.gate = {inner, up->n, inner, up->n, job.pairs, down->k, 0, c.layer->activation};
    float *out = c.out + job.token * c.out_stride;
    const float *weights = c.layer->weight_inputs ? nullptr : job.weights;
    const int64_t *ids = c.ids + job.token * c.top_k;
    long ranges = 1;
    while (2 * ranges <= kCombineRanges && c.layer->experts % (2 * ranges) == 0) ranges *= 2;
    job.combine = {y,   down->n, job.tokens,                c.top_k, job.where, job.order,
                   ids, weights, c.layer->experts / ranges, ranges,  out,       c.out_stride, c.accumulate};
    return parts.used;
}

void run_chunk(Job &job) {
    const long hidden = job.stage.weight->k, inner = job.down.call.weight->k;
    sort_pairs(job);
    if (job.stage.staged) run(stage_tile, job, ceil_div(job.tokens, 8), job.tokens * hidden);
    run(gather_tile, job, ceil_div(job.pairs, 32), job.pairs * hidden / 4);
    pool_run(up_tile, &job, cut(job, job.up));
    run(gate_tile, job, ceil_div(job.pairs, 8), job.pairs * inner * 8);
    pool_run(down_tile, &job, cut(job, job.down));
    run(combine_tile, job, ceil_div(job.tokens, 8), job.pairs * hidden);
}

struct RouteJob {
    const KernelTable *table;
    RouteCall call;
};

void route_tile(const void *context, long tile) {
    const RouteJob &job = *(const RouteJob *)context;
    job.table->route(&job.call, tile * 16, at_most(tile * 16 + 16, job.call.rows));
}

} // namespace

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

bool run_experts(const ExpertsCall &call) {
    if (call.rows == 0) return true;
    Job job = {};
    std::atomic<bool> exhausted{false};
    job.exhausted = &exhausted;
    job.table = kernels_active(), job.call = &call, job.wanted = pool_size() * 8;
    job.tokens = 1, job.pairs = call.top_k;
    // Sizes grow linearly with the tokens, so the size for one token gives the tokens per chunk.
    const long chunk = at_most(call.rows, kWorkBytes / place(job, Parts{nullptr}) + 1);
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

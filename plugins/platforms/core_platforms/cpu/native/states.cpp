// One step of a layer with a recurrent state: convolution, the layer's own products, state updates, gates. Tasks are
// sequences times channels or heads.
#include "native.h"
#include "pool.h"

#include <atomic>

namespace {

constexpr long kSmallUpdate = 8192; // numbers of state; below this, the caller updates alone

struct Job {
    const KernelTable *table;
    const StateCall *call;
    long tasks; // tasks per sequence
    std::atomic<bool> *exhausted;
};

bool idle(const StateCall &c, long sequence) { return c.cu_seqlens[sequence + 1] == c.cu_seqlens[sequence]; }

void convolve_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    const long sequence = tile / job.tasks, channel = tile % job.tasks * kStateChannels;
    if (idle(*job.call, sequence)) return;
    job.table->context->state_convolve(job.call, sequence, channel, at_most(channel + kStateChannels, job.call->layer->channels));
}

void update_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    const long sequence = tile / job.tasks;
    if (idle(*job.call, sequence)) return;
    Scratch scratch(kStateFloats * sizeof(float));
    if (scratch.memory)
        job.table->context->state_update(job.call, sequence, tile % job.tasks, (float *)scratch.memory);
    else
        job.exhausted->store(true);
}

void finish_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    job.table->context->state_finish(job.call, tile * 8, at_most(tile * 8 + 8, job.call->cu_seqlens[job.call->batch]));
}

void run(TileFunction function, const Job &job, long tiles, bool large) {
    if (large) return pool_run(function, &job, tiles);
    for (long tile = 0; tile < tiles; tile++) function(&job, tile);
}

bool product(const PackedLinear *weight, const float *x, long x_stride, long rows, float *out) {
    LinearRun linear = {};
    linear.weight = weight, linear.x = x, linear.x_stride = x_stride, linear.rows = rows;
    linear.out = out, linear.out_stride = weight->n;
    return run_linear(linear);
}

// Runs the layer's own products; their results are stored after the mixed channels.
bool own_products(const KernelTable *table, StateCall &c, long tokens, float *memory) {
    const StateLayer &l = *c.layer;
    float *first = memory, *second = first + (l.first ? tokens * l.first->n : 0);
    if (l.op == kMamba1) {
        c.first = first, c.first_stride = l.first->n, c.second = second, c.second_stride = l.second->n;
        if (!product(l.first, c.mixed, l.channels, tokens, first)) return false;
        if (l.norm != kNoNorm) table->context->state_select(&c, first, 0, tokens);
        return product(l.second, first, l.first->n, tokens, second);
    }
    const float *f = c.x + l.channels, *g = f + (l.rank ? l.rank : l.heads * l.length) + l.heads;
    if (l.first) {
        c.first = first, c.first_stride = l.first->n;
        if (!product(l.first, f, c.x_stride, tokens, first)) return false;
    }
    if (l.second) {
        c.second = second, c.second_stride = l.second->n;
        if (!product(l.second, g, c.x_stride, tokens, second)) return false;
    }
    return true;
}

} // namespace

bool run_state(const StateCall &given) {
    StateCall c = given;
    const StateLayer &l = *c.layer;
    const long tokens = c.cu_seqlens[c.batch];
    if (tokens == 0) return true;
    long own = 0;
    if (l.first) own += l.first->n;
    if (l.second) own += l.second->n;
    Scratch scratch(tokens * ((l.op == kShortConv ? 0 : l.channels) + own) * sizeof(float));
    if (!scratch.memory && l.op != kShortConv) return false;
    std::atomic<bool> exhausted{false};
    Job job = {kernels_active(), &c, ceil_div(l.channels, kStateChannels), &exhausted};
    c.mixed = (float *)scratch.memory;
    run(convolve_tile, job, job.tasks * c.batch, tokens * l.channels * 8 >= kSmallElements);
    if (l.op == kShortConv) return true;
    if (own && !own_products(job.table, c, tokens, c.mixed + tokens * l.channels)) return false;
    c.unit = l.op == kMamba1 ? 64 : l.rows;
    job.tasks = l.heads * ceil_div(l.rows, c.unit);
    run(update_tile, job, job.tasks * c.batch, tokens * l.heads * l.rows * l.length >= kSmallUpdate);
    if (l.op == kMamba1 || l.op == kMamba2)
        run(finish_tile, job, ceil_div(tokens, 8), tokens * l.heads * l.rows * 8 >= kSmallElements);
    return !exhausted.load();
}

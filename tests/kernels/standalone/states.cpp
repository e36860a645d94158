// Layers with a recurrent state: each rule with each type of stored numbers, in two steps, so that states are read again.
#include "common.h"

struct Rule {
    const char *name;
    int op, norm;
    long channels, heads, rows, length, inputs, outputs;
};
static const long rank = 5;
static const Rule rules[] = {
    {"short convolution", kShortConv, kNoNorm, 70, 0, 0, 0, 210, 70},
    {"mamba1", kMamba1, kWeightedNorm, 96, 1, 96, 16, 192, 96},
    {"mamba2", kMamba2, kAfterGate, 4 * 24 + 2 * 2 * 64, 4, 24, 64, 4 * 24 + 4 * 24 + 2 * 2 * 64 + 4, 4 * 24},
    {"gated delta", kGatedDelta, kAfterGate, 2 * 2 * 128 + 4 * 33, 4, 33, 128, 2 * 2 * 128 + 4 * 33 + 4 * 33 + 8, 4 * 33},
    {"kimi delta", kKda, kAfterGate, 3 * 2 * 32, 2, 32, 32, 3 * 64 + 64 + 2 + 64, 64},
};

static PackedLinear *plain(long n, long k) {
    Floats values = random(n * k);
    PackSource s = {};
    s.format = kF32, s.n = n, s.k = k, s.values = values.data();
    return pack_linear(&s);
}

static void step(const Rule &r, const StateLayer &l, std::vector<uint8_t> &raw, long block_bytes, long blocks, const char *what,
                 std::vector<int32_t> starts, std::vector<int32_t> lens) {
    const long batch = (long)lens.size(), tokens = starts.back();
    Floats x = random(tokens * r.inputs), out(tokens * r.outputs);
    std::vector<int32_t> table(batch * blocks);
    for (long i = 0; i < batch * blocks; i++) table[i] = (int32_t)(batch * blocks - 1 - i);
    StateCall c = {};
    c.layer = &l, c.x = x.data(), c.x_stride = r.inputs, c.out = out.data(), c.out_stride = r.outputs;
    c.raw = raw.data(), c.block_bytes = block_bytes, c.cu_seqlens = starts.data(), c.seq_lens = lens.data();
    c.block_table = c.sources = table.data(), c.table_stride = blocks, c.batch = batch;
    run_state(c);
    note(what, out);
    note(what, raw.data(), raw.size());
}

static void run_rule(const Rule &r, int element, long block_bytes) {
    const long kernel = 4, item = element == kCacheF32 ? 4 : 2;
    Floats taps = random(kernel * r.channels), bias = random(r.channels), rate = random(r.heads * r.length * r.rows + r.heads + 1);
    Floats dt_bias = random(4096), skip = random(4096), gain = random(4096), b_weight = random(64), c_weight = random(64);
    for (float &value : rate) value = -value * value;
    StateLayer l = {};
    l.op = r.op, l.window_element = l.element = element, l.channels = r.channels, l.kernel = kernel;
    l.heads = r.heads, l.rows = r.rows, l.length = r.length, l.key_heads = l.groups = 2;
    if (r.op == kMamba1) l.rank = rank, l.first = plain(rank + 2 * r.length, r.channels), l.second = plain(r.channels, rank);
    l.norm = r.norm, l.norm_groups = 2, l.norm_eps = 1e-6f, l.qk_eps = 1e-6f, l.beta_scale = 1, l.dt_max = 1e30f;
    l.z_scale = l.dt_scale = 1, l.taps = taps.data(), l.bias = bias.data(), l.rate = rate.data(), l.dt_bias = dt_bias.data();
    l.skip = skip.data(), l.norm_weight = gain.data(), l.b_weight = b_weight.data(), l.c_weight = c_weight.data();
    const long bytes = (kernel - 1) * r.channels * item + 4 + r.heads * r.rows * r.length * item;
    const long blocks = ceil_div(bytes, block_bytes);
    std::vector<uint8_t> raw(3 * blocks * block_bytes);
    char what[96];
    snprintf(what, sizeof what, "%s, element %d, blocks of %ld bytes", r.name, element, block_bytes);
    step(r, l, raw, block_bytes, blocks, what, {0, 19, 20, 22}, {19, 1, 2});
    step(r, l, raw, block_bytes, blocks, what, {0, 1, 4, 5}, {20, 4, 3});
    if (l.first) free_linear((PackedLinear *)l.first), free_linear((PackedLinear *)l.second);
}

void note_states() {
    for (const Rule &r : rules)
        for (int element : {kCacheF32, kCacheBF16, kCacheF16})
            for (long block_bytes : {1024L, 1L << 18}) run_rule(r, element, block_bytes);
}

// Runs every table of kernels of this processor against plain loops in double precision. Prints one line a table; the exit
// status counts failures. With an argument it also prints a digest of every result.
#include "common.h"

static double e4m3(int byte) { // 4 bits of exponent, 3 of mantissa, no infinities
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    const double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return byte & 128 ? -value : value;
}

// A weight in any format, with its values in double.
struct Weight {
    PackedLinear *packed;
    std::vector<double> values;
    long group;
};

static Weight make_weight(int format, int activation, long n, long k) {
    const long group = 32;
    Weight w = {nullptr, std::vector<double>(n * k), group};
    PackSource s = {};
    s.format = format, s.activation = activation, s.n = n, s.k = k, s.group = group;
    s.zero = format == kInt4 ? 8 : format == kInt8 ? 128 : 0;
    Floats dense = random(n * k), scale(n * k / group), bias;
    std::vector<uint16_t> half(n * k);
    std::vector<uint8_t> bytes(n * k);
    Floats codes = random(16);
    for (float &value : codes) value = bf16(value); // so that products of rounded inputs see the same numbers
    for (float &value : scale) value = 0.01f * (1.5f + uniform());
    for (long i = 0; i < n * k; i++) {
        if (format == kF32) w.values[i] = dense[i];
        if (format == kBF16) half[i] = upper(bf16(dense[i])), w.values[i] = bf16(dense[i]);
        if (format == kF16) half[i] = (uint16_t)(0x3800 + (i * 37 & 0x7ff)), w.values[i] = ldexp(1024 + (half[i] & 0x3ff), (half[i] >> 10) - 25);
        if (format < kInt4) continue;
        const bool nibbles = format == kInt4 || format == kCode4;
        int value = (int)(i * 2654435761u >> 13 & (nibbles ? 15 : 255));
        if (format == kE4M3 && (value & 127) == 127) value = 0; // not a number
        if (nibbles)
            bytes[i / 2] |= (uint8_t)(value << (i % 2 * 4));
        else
            bytes[i] = (uint8_t)value;
        w.values[i] = scale[i / group] * (format == kCode4 ? codes[value] : format == kE4M3 ? e4m3(value) : value - s.zero);
    }
    if (format == kCode4) s.codes = codes.data();
    s.scale = scale.data();
    s.values = format == kF32 ? (void *)dense.data() : format >= kInt4 ? (void *)bytes.data() : (void *)half.data();
    w.packed = pack_linear(&s);
    return w;
}

static void put_field(std::vector<uint8_t> &plane, long bits, long i, int value) { // the lowest bits of a byte come first
    plane[i * bits / 8] |= (uint8_t)(value << i * bits % 8);
}

// Planes of bits with sub-scales, in super-groups of a unit.
static Weight make_planes(int format, int activation, long n, long k) {
    const long all_bits[] = {2, 3, 4, 5, 6, 4}, bits = all_bits[format - kPlanes2], low = bits < 4 ? 2 : 4;
    Weight w = {nullptr, std::vector<double>(n * k), bits == 6 ? 16 : 32};
    std::vector<uint8_t> lows(n * k * low / 8), highs(n * k * (bits - low) / 8);
    std::vector<uint16_t> scale(n * k / kUnit);
    std::vector<int8_t> sub(n * k / w.group);
    Floats codes(16);
    for (int i = 0; i < 16; i++) codes[i] = (float)(i * i - 120);
    for (size_t i = 0; i < scale.size(); i++) scale[i] = (uint16_t)(0x2000 + (i * 37 & 0x3ff));
    for (size_t i = 0; i < sub.size(); i++) sub[i] = (int8_t)(i * 29);
    PackSource s = {};
    s.format = format, s.activation = activation, s.n = n, s.k = k, s.group = w.group, s.super = kUnit;
    s.scale_type = kScaleF16, s.zero = format == kPlanesCode4 ? 128 : 1 << (bits - 1);
    for (long i = 0; i < n * k; i++) {
        const int value = (int)(i * 2654435761u >> 13 & ((1 << bits) - 1));
        put_field(lows, low, i, value & ((1 << low) - 1));
        if (bits > low) put_field(highs, bits - low, i, value >> low);
        const uint16_t half = scale[i / kUnit];
        const double factor = ldexp(1024 + (half & 0x3ff), (half >> 10) - 25) * sub[i / w.group];
        w.values[i] = factor * (format == kPlanesCode4 ? codes[value] : value - s.zero);
    }
    s.values = lows.data(), s.high = highs.data(), s.scale = scale.data(), s.sub_scale = sub.data();
    if (format == kPlanesCode4) s.codes = codes.data();
    w.packed = pack_linear(&s);
    return w;
}

static double rounded(const float *x, long k, int activation, long group) { // the k-th of a row, as its product sees it
    if (activation == kRoundBF16) return bf16(x[k]);
    if (activation != kQuantInt8) return x[k];
    float peak = 0;
    for (long i = k / group * group; i < k / group * group + group; i++) peak = fmaxf(peak, fabsf(x[i]));
    const float scale = peak / 127.0f;
    return rintf(x[k] * (1.0f / scale)) * (double)scale;
}

static void run_rows(const Weight &w, const float *x, long rows, float *out) {
    LinearRun run = {};
    run.weight = w.packed, run.x = x, run.x_stride = w.packed->k, run.rows = rows;
    run.out = out, run.out_stride = w.packed->n;
    run_linear(run);
}

static void test_linears() {
    const int kinds[][2] = {{kF32, kNone}, {kF16, kNone}, {kBF16, kNone}, {kBF16, kRoundBF16}, {kInt4, kNone},
                            {kInt4, kQuantInt8}, {kInt8, kNone}, {kInt8, kQuantInt8}, {kCode4, kNone},
                            {kCode4, kRoundBF16}, {kE4M3, kNone}, {kE4M3, kRoundBF16}, {kPlanes2, kQuantInt8},
                            {kPlanes3, kQuantInt8}, {kPlanes4, kQuantInt8}, {kPlanes5, kQuantInt8}, {kPlanes6, kQuantInt8},
                            {kPlanesCode4, kQuantInt8}, {kPlanes6, kNone}, {kPlanesCode4, kNone}};
    for (auto &kind : kinds)
        for (long rows : {1, 2, 3, 9, 37}) {
            const long n = 75, k = kind[0] >= kInt4 ? 96 : 77;
            Weight w = (kind[0] >= kPlanes2 ? make_planes : make_weight)(kind[0], kind[1], n, k);
            Floats x = random(rows * k), out(rows * n, 9), alone(n);
            run_rows(w, x.data(), rows, out.data());
            std::vector<double> want(rows * n);
            for (long r = 0; r < rows; r++)
                for (long i = 0; i < n; i++)
                    for (long j = 0; j < k; j++) want[r * n + i] += rounded(&x[r * k], j, kind[1], w.group) * w.values[i * k + j];
            char what[64];
            snprintf(what, sizeof what, "linear of format %d, activation %d, %ld rows", kind[0], kind[1], rows);
            close(what, out, want, kind[1] == kRoundBF16 ? 2e-5 : 3e-6);
            run_rows(w, &x[(rows - 1) * k], 1, alone.data());
            if (memcmp(alone.data(), &out[(rows - 1) * n], n * 4)) printf("%s depends on its neighbours\n", what), failures++;
            free_linear(w.packed);
        }
}

static void test_rows() {
    const long rows = 5, width = 83;
    Floats x = random(rows * 2 * width), gain = random(width), out(rows * width);
    std::vector<double> norm(rows * width), gate[2] = {norm, norm};
    for (long r = 0; r < rows; r++) {
        const float *row = &x[r * 2 * width];
        double squares = 0;
        for (long i = 0; i < width; i++) squares += (double)row[i] * row[i];
        for (long i = 0; i < width; i++) {
            const double g = 8 * row[i], up = row[width + i];
            norm[r * width + i] = row[i] / sqrt(squares / width + 1e-6) * gain[i];
            gate[0][r * width + i] = g / (1 + exp(-g)) * up;
            gate[1][r * width + i] = 0.5 * g * (1 + tanh(0.7978845608 * (g + 0.044715 * g * g * g))) * up;
        }
    }
    NormCall n = {};
    n.x = x.data(), n.row_stride = 2 * width, n.head_stride = width;
    n.out = out.data(), n.out_row_stride = n.out_head_stride = width;
    n.weight = gain.data(), n.eps = 1e-6f, n.rows = rows, n.heads = 1, n.width = width;
    run_norm(n);
    close("rms_norm", out, norm, 1e-6);
    for (long r = 0; r < rows; r++)
        for (long i = 0; i < width; i++) x[r * 2 * width + i] *= 8;
    for (int act = 0; act < 2; act++) {
        RowsCall g = {};
        g.x = x.data(), g.x_stride = 2 * width, g.out = out.data(), g.out_stride = width;
        g.rows = rows, g.width = width, g.activation.kind = act ? kGeluTanh : kSilu;
        run_gated(g);
        close(act ? "gated gelu_tanh" : "gated silu", out, gate[act], 2e-6);
    }
}

static void test_rotary() {
    const long rows = 4, heads = 3, half = 20;
    Floats x = random(rows * heads * half * 2), cosine = random(rows * half), sine = random(rows * half);
    const int64_t positions[] = {2, 0, 3, 1};
    std::vector<double> want(x.size());
    for (long r = 0; r < rows; r++)
        for (long h = 0; h < heads; h++)
            for (long i = 0; i < half; i++) {
                const long at = (r * heads + h) * half * 2 + i;
                const double c = cosine[positions[r] * half + i], s = sine[positions[r] * half + i];
                want[at] = x[at] * c - x[at + half] * s, want[at + half] = x[at + half] * c + x[at] * s;
            }
    run_rotary({x.data(), heads * half * 2, half * 2, rows, heads, half, cosine.data(), sine.data(), positions});
    close("rotary", x, want, 1e-6);
}

static void test_attention(int half, long block_size) { // three sequences: a prompt, two decodes, one behind its window
    const long batch = 3, heads_q = 6, heads_kv = 2, dim = 48, lengths[] = {37, 21, 160}, queries[] = {37, 1, 1};
    const long width = 160 / block_size, window = 100, bytes = block_size * heads_kv * dim * 2 * (half ? 2 : 4);
    std::vector<uint8_t> cache(batch * width * bytes);
    std::vector<int32_t> table(batch * width), lens(lengths, lengths + 3), starts = {0, 37, 38, 39};
    for (long i = 0; i < batch * width; i++) table[i] = (int32_t)(batch * width - 1 - i);
    Floats keys[3], values[3];
    for (long s = 0; s < batch; s++) {
        const long count = lengths[s];
        keys[s] = random(count * heads_kv * dim), values[s] = random(count * heads_kv * dim);
        std::vector<int64_t> slots(count);
        for (long i = 0; i < count; i++) slots[i] = table[s * width + i / block_size] * block_size + i % block_size;
        CacheWriteCall w = {};
        w.k = keys[s].data(), w.k_row_stride = heads_kv * dim, w.k_head_stride = dim;
        w.v = values[s].data(), w.v_row_stride = heads_kv * dim, w.v_head_stride = dim;
        w.cache = cache.data(), w.slots = slots.data(), w.rows = count, w.heads_kv = heads_kv, w.dim = w.dim_v = dim;
        w.block_size = block_size, w.block_bytes = bytes, w.head_bytes = bytes / heads_kv, w.element = half ? kCacheBF16 : kCacheF32;
        w.k_scale = w.v_scale = 1;
        run_cache_write(w);
    }
    Floats q = random(39 * heads_q * dim), out(q.size());
    AttentionCall c = {};
    c.q = q.data(), c.q_row_stride = heads_q * dim, c.q_head_stride = dim;
    c.out = out.data(), c.out_row_stride = heads_q * dim, c.out_head_stride = dim;
    c.cache = cache.data(), c.cu_seqlens = starts.data(), c.seq_lens = lens.data(), c.block_table = table.data();
    c.table_stride = width, c.batch = batch, c.heads_q = heads_q, c.heads_kv = heads_kv, c.dim = c.dim_v = dim;
    c.block_size = block_size, c.block_bytes = bytes, c.head_bytes = bytes / heads_kv;
    c.element = half ? kCacheBF16 : kCacheF32, c.k_scale = c.v_scale = 1, c.scale = 0.3f, c.window = window;
    run_attention(c);
    std::vector<double> want(q.size());
    for (long s = 0, row = 0; s < batch; s++)
        for (long i = 0; i < queries[s]; i++, row++)
            for (long h = 0; h < heads_q; h++) {
                const long position = lens[s] - queries[s] + i, kv = h / (heads_q / heads_kv);
                double sum = 0;
                for (long j = position < window ? 0 : position - window + 1; j <= position; j++) {
                    double score = 0;
                    const float *k = &keys[s][(j * heads_kv + kv) * dim], *v = &values[s][(j * heads_kv + kv) * dim];
                    for (long d = 0; d < dim; d++) score += (double)q[(row * heads_q + h) * dim + d] * (half ? bf16(k[d]) : k[d]);
                    const double weight = exp(score * 0.3);
                    sum += weight;
                    for (long d = 0; d < dim; d++) want[(row * heads_q + h) * dim + d] += weight * (half ? bf16(v[d]) : v[d]);
                }
                for (long d = 0; d < dim; d++) want[(row * heads_q + h) * dim + d] /= sum;
            }
    char what[64];
    snprintf(what, sizeof what, "attention, bf16 %d, blocks of %ld", half, block_size);
    close(what, out, want, half ? 8e-3 : 1e-5);
}

static std::vector<int64_t> race(const Floats &logits, long rows, long vocab) {
    std::vector<int64_t> which(rows), keys(rows * 5), out(rows);
    Floats heat(rows);
    for (long r = 0; r < rows; r++) {
        which[r] = r, heat[r] = 0.3f + 0.2f * (float)r;
        for (long i = 0; i < 5; i++) keys[r * 5 + i] = 77 * r + i;
    }
    RaceCall c = {};
    c.logits = logits.data(), c.stride = c.vocab = vocab, c.rows = rows;
    c.which = which.data(), c.keys = keys.data(), c.temperatures = heat.data(), c.out = out.data();
    run_race(c);
    return out;
}

static void test_race() { // the generic table is tested against the core's sampler elsewhere
    Floats logits = random(8 * 1003);
    for (float &value : logits) value *= 9;
    const char *name = kernels_active()->name;
    std::vector<int64_t> got = race(logits, 8, 1003);
    kernels_select("generic");
    if (got != race(logits, 8, 1003)) printf("%s: the race has other winners\n", name), failures++;
    kernels_select(name);
}

static void test_experts() {
    const long tokens = 21, hidden = 64, inner = 32, experts = 5, top_k = 2;
    Weight up[experts], down[experts];
    const PackedLinear *both[2 * experts];
    for (long e = 0; e < experts; e++) {
        up[e] = make_weight(kF32, kNone, 2 * inner, hidden), down[e] = make_weight(kF32, kNone, hidden, inner);
        both[e] = up[e].packed, both[experts + e] = down[e].packed;
    }
    Floats x = random(tokens * hidden), logits = random(tokens * experts), weights(tokens * top_k), out(tokens * hidden);
    std::vector<int64_t> ids(tokens * top_k);
    RouteCall r = {};
    r.logits = logits.data(), r.stride = r.experts = experts, r.rows = tokens, r.top_k = top_k, r.renormalize = 1;
    r.groups = r.top_groups = 1, r.factor = 1, r.ids = ids.data(), r.weights = weights.data();
    run_route(r);
    ExpertsLayer layer = {};
    layer.experts = experts, layer.ranges = 1, layer.gate_up = both, layer.down = both + experts;
    ExpertsCall call = {};
    call.layer = &layer, call.x = x.data(), call.x_stride = hidden, call.rows = tokens, call.top_k = top_k;
    call.ids = ids.data(), call.weights = weights.data(), call.out = out.data(), call.out_stride = hidden;
    run_experts(call);
    std::vector<double> want(tokens * hidden), share(tokens * top_k);
    for (long t = 0; t < tokens; t++) {
        const float *l = &logits[t * experts];
        long best[2] = {0, -1};
        for (long e = 1; e < experts; e++) best[0] = l[e] > l[best[0]] ? e : best[0];
        for (long e = 0; e < experts; e++)
            if (e != best[0] && (best[1] < 0 || l[e] > l[best[1]])) best[1] = e;
        for (long j = 0; j < top_k; j++) {
            const Weight &u = up[best[j]], &d = down[best[j]];
            share[t * top_k + j] = exp(l[best[j]]) / (exp(l[best[0]]) + exp(l[best[1]]));
            double act[inner];
            for (long i = 0; i < inner; i++) {
                double g = 0, v = 0;
                for (long k = 0; k < hidden; k++)
                    g += x[t * hidden + k] * u.values[i * hidden + k], v += x[t * hidden + k] * u.values[(inner + i) * hidden + k];
                act[i] = g / (1 + exp(-g)) * v;
            }
            for (long h = 0; h < hidden; h++)
                for (long i = 0; i < inner; i++)
                    want[t * hidden + h] += share[t * top_k + j] * act[i] * d.values[h * inner + i];
        }
    }
    close("routing", weights, share, 1e-6);
    close("experts", out, want, 1e-5);
    for (const PackedLinear *l : both) free_linear((PackedLinear *)l);
}

int main(int count, char **) {
    digests = count > 1;
    pool_init(2);
    for (int i = 0; const KernelTable *table = kernels_at(i); i++) {
        kernels_select(table->name);
        state = 1; // the same inputs for each table
        test_linears();
        test_rows();
        test_rotary();
        for (int half = 0; half < 2; half++)
            for (long block_size : {16, 8}) test_attention(half, block_size);
        test_race();
        test_experts();
        note_linears();
        note_rows();
        note_caches();
        note_states();
        printf("%s %s\n", table->name, failures ? "FAILED" : "ok");
    }
    pool_init(1);
    return failures;
}

// Attention over caches of every element type, with windows, caps, sinks, slopes and tokens that see ahead, and over latents.
#include "common.h"

struct Kind {
    const char *name;
    int element, scaled;
    long heads_q, heads_kv, dim, dim_v, block_size;
    bool latent;
};

static const Kind kinds[] = {
    {"float32", kCacheF32, 0, 4, 2, 32, 32, 16, false},          {"bfloat16", kCacheBF16, 0, 4, 2, 64, 64, 16, false},
    {"float16", kCacheF16, 0, 6, 2, 48, 48, 16, false},          {"float16, odd blocks", kCacheF16, 0, 4, 2, 32, 32, 8, false},
    {"e4m3", kCacheE4M3, 0, 4, 1, 64, 64, 16, false},            {"e5m2", kCacheE5M2, 0, 4, 2, 32, 32, 16, false},
    {"e4m3 with scales", kCacheE4M3, 1, 4, 2, 64, 64, 16, false}, {"int8 with scales", kCacheI8, 1, 4, 2, 64, 64, 16, false},
    {"8 and 4 bits", kCacheK8V4, 1, 4, 2, 64, 64, 16, false},    {"8 and 4 bits, odd blocks", kCacheK8V4, 1, 4, 2, 64, 64, 8, false},
    {"latent float32", kCacheF32, 0, 4, 1, 80, 64, 16, true},    {"latent bfloat16", kCacheBF16, 0, 4, 1, 80, 64, 16, true},
};
static const long batch = 3, lengths[] = {45, 300, 161}, queries[] = {45, 1, 20}, tokens = 66, most = 320;

static long bytes_of(const Kind &k, long numbers) {
    return k.element == kCacheF32 ? numbers * 4 : k.element <= kCacheF16 ? numbers * 2 : numbers;
}

static void shape(CacheShape &c, const Kind &k) {
    const long keys = bytes_of(k, k.block_size * k.dim), values = k.latent ? 0 : bytes_of(k, k.block_size * k.dim_v);
    c.heads_kv = k.heads_kv, c.dim = k.dim, c.dim_v = k.dim_v, c.block_size = k.block_size, c.element = k.element;
    c.head_bytes = keys + (k.element == kCacheK8V4 ? values / 2 : values) + (k.scaled ? 8 * k.block_size : 0);
    c.block_bytes = c.head_bytes * k.heads_kv, c.scaled = k.scaled, c.latent = k.latent;
    c.k_scale = k.element == kCacheE4M3 && !k.scaled ? 0.5f : 1, c.v_scale = c.k_scale;
}

// Returns the blocks of all sequences after their keys were written.
static std::vector<uint8_t> filled(const Kind &k, const std::vector<int32_t> &table) {
    const long width = most / k.block_size, rest = k.dim - k.dim_v;
    CacheWriteCall w = {};
    shape(w, k);
    std::vector<uint8_t> cache(batch * width * w.block_bytes);
    for (long s = 0; s < batch; s++) {
        const long count = lengths[s], keys = k.latent ? k.dim_v : k.heads_kv * k.dim, values = k.latent ? rest : k.heads_kv * k.dim_v;
        Floats key = random(count * keys), value = random(count * values);
        for (float &number : key) number *= number; // unequal sizes
        std::vector<int64_t> slots(count);
        for (long i = 0; i < count; i++) slots[i] = table[s * width + i / k.block_size] * k.block_size + i % k.block_size;
        w.k = key.data(), w.k_row_stride = keys, w.k_head_stride = k.latent ? keys : k.dim;
        w.v = value.data(), w.v_row_stride = values, w.v_head_stride = k.latent ? values : k.dim_v;
        w.cache = cache.data(), w.slots = slots.data(), w.rows = count;
        run_cache_write(w);
    }
    return cache;
}

static void attend(const Kind &k, AttentionCall c, const char *way) {
    const long width = most / k.block_size, rest = k.dim - k.dim_v, inputs = k.latent ? k.dim_v : k.dim;
    std::vector<int32_t> table(batch * width), lens(lengths, lengths + batch), starts = {0, 45, 46, 66};
    for (long i = 0; i < batch * width; i++) table[i] = (int32_t)(batch * width - 1 - i);
    const std::vector<uint8_t> cache = filled(k, table);
    Floats q = random(tokens * k.heads_q * inputs), rotated = random(tokens * k.heads_q * rest + 1), out(tokens * k.heads_q * k.dim_v);
    shape(c, k);
    c.q = q.data(), c.q_row_stride = k.heads_q * inputs, c.q_head_stride = inputs;
    c.q_pe = rotated.data(), c.pe_row_stride = k.heads_q * rest, c.pe_head_stride = rest;
    c.out = out.data(), c.out_row_stride = k.heads_q * k.dim_v, c.out_head_stride = k.dim_v;
    c.cache = cache.data(), c.cu_seqlens = starts.data(), c.seq_lens = lens.data(), c.block_table = table.data();
    c.table_stride = width, c.batch = batch, c.heads_q = k.heads_q, c.scale = 0.25f;
    run_attention(c);
    char what[96];
    snprintf(what, sizeof what, "attention over %s%s", k.name, way);
    note(what, out);
}

void note_caches() {
    const Floats sinks = {0.5f, -1, 2, 0}, slopes = {0.5f, 0.25f, 0.125f, 0.0625f};
    for (const Kind &k : kinds) {
        AttentionCall c = {};
        attend(k, c, "");
        if (k.heads_q != 4 || k.latent) continue;
        c.cap = 5, c.window = 40, c.sinks = sinks.data();
        attend(k, c, ", with cap, window and sinks");
        c = {};
        c.window = -64, c.slopes = slopes.data();
        attend(k, c, ", with chunks and slopes");
    }
}

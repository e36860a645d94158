// The keys and scores of an index, which chooses the keys that latent attention reads (DeepSeek V3.2). A score is the sum over
// the index's heads of weight * max(0, query . key * scale), in float32 and in the order of the heads.
//
// Keys lie row by row behind a block's latents, [block_size][dim]. The lanes of a score are keys, so that a score depends on
// its own query and key alone: not on the batch, blocks, chunks or threads.

constexpr int kIndexHeads = 4; // heads whose sums stay in registers

template <int Element> LANE F index_load(const uint8_t *p) {
    if (Element == kCacheF32) return load((const float *)p);
    if (Element == kCacheF16) return load_half((const uint16_t *)p);
    return as_float(shift_left<16>(load_u16((const uint16_t *)p)));
}

// A key as float32 in every 16th place of `to`.
template <int Element> static void index_spread(const uint8_t *from, long dim, float *to) {
    constexpr long bytes = Element == kCacheF32 ? 4 : 2;
    alignas(64) float wide[16];
    alignas(64) uint8_t part[64];
    for (long i = 0; i < dim; i += 16) {
        const uint8_t *p = from + i * bytes;
        if (dim - i < 16) {
            memset(part, 0, sizeof part);
            memcpy(part, p, (dim - i) * bytes);
            p = part;
        }
        store(wide, index_load<Element>(p));
        for (long j = 0; j < at_most(16, dim - i); j++) to[(i + j) * 16] = wide[j];
    }
}

LANE const uint8_t *index_key(const IndexCall &c, long sequence, long key) {
    const long slot = index_slot(c, sequence, key), bytes = c.element == kCacheF32 ? 4 : 2;
    return c.cache + (size_t)(slot / c.block_size) * c.block_bytes + c.offset + slot % c.block_size * c.dim * bytes;
}

template <int H> LANE F index_heads(const IndexCall &c, const float *q, const float *weights, const float *keys, F total) {
    F acc[H];
    for (int h = 0; h < H; h++) acc[h] = zero();
    for (long i = 0; i < c.dim; i++) {
        const F key = load(keys + 16 * i);
        for (int h = 0; h < H; h++) acc[h] = fma(set1(q[h * c.dim + i]), key, acc[h]);
    }
    for (int h = 0; h < H; h++) total = fma(set1(weights[h]), max(mul(acc[h], set1(c.scale)), zero()), total);
    return total;
}

static void index_scores(const IndexCall *call, const IndexTask *task) {
    const IndexCall &c = *call;
    const IndexTask &t = *task;
    alignas(64) float keys[kMaxIndex * 16];
    memset(keys, 0, c.dim * 16 * sizeof(float)); // lanes without a key have scores that nobody reads
    for (long first = t.first; first < t.end; first += 16) {
        for (long lane = 0; lane < at_most(16, t.end - first); lane++) {
            const uint8_t *key = index_key(c, t.sequence, first + lane);
            if (c.element == kCacheF32) index_spread<kCacheF32>(key, c.dim, keys + lane);
            if (c.element == kCacheF16) index_spread<kCacheF16>(key, c.dim, keys + lane);
            if (c.element == kCacheBF16) index_spread<kCacheBF16>(key, c.dim, keys + lane);
        }
        for (long row = 0; row < t.rows; row++) {
            if (t.position + row < first) continue;
            const float *q = c.q + (t.token + row) * c.q_row_stride, *weights = c.weights + (t.token + row) * c.weights_row_stride;
            F total = zero();
            long h = 0;
            for (; h + kIndexHeads <= c.heads; h += kIndexHeads)
                total = index_heads<kIndexHeads>(c, q + h * c.dim, weights + h, keys, total);
            for (; h < c.heads; h++) total = index_heads<1>(c, q + h * c.dim, weights + h, keys, total);
            store(t.scores + row * t.stride + first, total);
        }
    }
}

template <int Element> static void index_store(const float *from, uint8_t *to, long dim) {
    constexpr long bytes = Element == kCacheF32 ? 4 : 2;
    alignas(64) uint32_t codes[16];
    for (long i = 0; i < dim; i += 16) {
        const long n = at_most(16, dim - i);
        istore(codes, narrow<Element>(n < 16 ? load_part(from + i, n) : load(from + i), set1(1)));
        for (long j = 0; j < n; j++) memcpy(to + (i + j) * bytes, codes + j, bytes);
    }
}

static void index_write(const IndexWriteCall *call, long begin, long end) {
    const IndexWriteCall &c = *call;
    for (long row = begin; row < end; row++) {
        const long slot = c.slots[row], bytes = c.element == kCacheF32 ? 4 : 2;
        if (slot < 0) continue;
        uint8_t *to = c.cache + (size_t)(slot / c.block_size) * c.block_bytes + c.offset + slot % c.block_size * c.dim * bytes;
        const float *from = c.k + row * c.k_row_stride;
        if (c.element == kCacheF32) index_store<kCacheF32>(from, to, c.dim);
        if (c.element == kCacheF16) index_store<kCacheF16>(from, to, c.dim);
        if (c.element == kCacheBF16) index_store<kCacheBF16>(from, to, c.dim);
    }
}

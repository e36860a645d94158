// The keys and scores of an index, which chooses the keys that latent attention reads (DeepSeek V3.2). A score is the sum over
// the index's heads of weight * max(0, query . key * scale), in float32 and in the order of the heads.
//
// Keys lie row by row behind a block's latents, [block_size][dim]. The lanes of a score are keys, so that a score depends on
// its own query and key alone: not on the batch, blocks, chunks or threads.

constexpr int kIndexHeads = kAttentionSums >= 24 ? 8 : 4; // heads whose sums stay in registers

// Neighbouring bfloat16 numbers share a word, which is taken apart as it is multiplied; other types have a float32 a word.
LANE long index_words(int element, long dim) { return element == kCacheBF16 ? (dim + 1) / 2 : dim; }

// Sixteen words of a key from word i on; those beyond its end are zeros.
template <int Element> LANE I index_part(const uint8_t *key, long i, long dim) {
    constexpr long word = Element == kCacheF16 ? 2 : 4, item = Element == kCacheF32 ? 4 : 2;
    const long left = dim * item - i * word;
    const uint8_t *p = key + i * word;
    if (left < 16 * word) {
        alignas(64) uint8_t part[64] = {};
        memcpy(part, p, left);
        return Element == kCacheF16 ? as_int(load_half((const uint16_t *)part)) : iload(part);
    }
    return Element == kCacheF16 ? as_int(load_half((const uint16_t *)p)) : iload(p);
}

// Sixteen keys side by side: word i of key k at to[16 * i + k], with room for a multiple of sixteen words. Four keys are
// transposed at a time.
template <int Element> static void index_spread(const uint8_t *const (&from)[16], long dim, uint32_t *to) {
    for (long i = 0, words = index_words(Element, dim); i < words; i += 16)
        for (long k = 0; k < 16; k += 4) {
            I x[4];
            for (long j = 0; j < 4; j++) x[j] = index_part<Element>(from[k + j], i, dim);
            transpose(x); // part b of x[j] is word i + 4 * b + j of the four keys
            for (long j = 0; j < 4; j++) store_parts((uint8_t *)(to + (i + j) * 16 + k), 4 * 64, x[j]);
        }
}

LANE const uint8_t *index_key(const IndexCall &c, long sequence, long key) {
    const long slot = index_slot(c, sequence, key), bytes = c.element == kCacheF32 ? 4 : 2;
    return c.cache + (size_t)(slot / c.block_size) * c.block_bytes + c.offset + slot % c.block_size * c.dim * bytes;
}

// The keys [first, first + 16) of a sequence; those from `end` on are the last one again, and nobody reads their scores. Within
// a block nothing is divided for each key.
LANE void index_keys(const IndexCall &c, long sequence, long first, long end, const uint8_t *(&to)[16]) {
    const bool in_one_block = !c.tails && c.block_size % 16 == 0; // `first` is a multiple of 16
    const long bytes = c.dim * (c.element == kCacheF32 ? 4 : 2);
    if (in_one_block) to[0] = index_key(c, sequence, first);
    for (long lane = in_one_block; lane < 16; lane++) {
        const long key = at_most(first + lane, end - 1);
        to[lane] = in_one_block ? to[0] + (key - first) * bytes : index_key(c, sequence, key);
    }
}

template <bool Pairs, int H>
LANE F index_heads(const IndexCall &c, const float *q, const float *weights, const uint32_t *keys, F total) {
    constexpr long together = Pairs ? 2 : 1;
    F acc[H];
    for (int h = 0; h < H; h++) acc[h] = zero();
    long i = 0;
    for (; i + together <= c.dim; i += together) {
        const I word = iload(keys + i / together * 16);
        const F key = as_float(Pairs ? shift_left<16>(word) : word);
        for (int h = 0; h < H; h++) acc[h] = fma(set1(q[h * c.dim + i]), key, acc[h]);
        if (!Pairs) continue;
        const F next = as_float(iand(word, iset1((int32_t)0xffff0000)));
        for (int h = 0; h < H; h++) acc[h] = fma(set1(q[h * c.dim + i + 1]), next, acc[h]);
    }
    if (i < c.dim) { // the first half of the last pair, of an odd number of numbers
        const F key = as_float(shift_left<16>(iload(keys + i / together * 16)));
        for (int h = 0; h < H; h++) acc[h] = fma(set1(q[h * c.dim + i]), key, acc[h]);
    }
    for (int h = 0; h < H; h++) total = fma(set1(weights[h]), max(mul(acc[h], set1(c.scale)), zero()), total);
    return total;
}

template <int Element> static void index_scores_of(const IndexCall &c, const IndexTask &t) {
    constexpr bool pairs = Element == kCacheBF16;
    alignas(64) uint32_t keys[kMaxIndex * 16];
    for (long first = t.first; first < t.end; first += 16) {
        const uint8_t *from[16];
        index_keys(c, t.sequence, first, t.end, from);
        index_spread<Element>(from, c.dim, keys);
        for (long row = 0; row < t.rows; row++) {
            if (t.position + row < first) continue;
            const float *q = c.q + (t.token + row) * c.q_row_stride, *weights = c.weights + (t.token + row) * c.weights_row_stride;
            F total = zero();
            long h = 0;
            for (; h + kIndexHeads <= c.heads; h += kIndexHeads)
                total = index_heads<pairs, kIndexHeads>(c, q + h * c.dim, weights + h, keys, total);
            for (; h < c.heads; h++) total = index_heads<pairs, 1>(c, q + h * c.dim, weights + h, keys, total);
            store(t.scores + row * t.stride + first, total);
        }
    }
}

static void index_scores(const IndexCall *call, const IndexTask *task) {
    if (call->element == kCacheF32) index_scores_of<kCacheF32>(*call, *task);
    if (call->element == kCacheF16) index_scores_of<kCacheF16>(*call, *task);
    if (call->element == kCacheBF16) index_scores_of<kCacheBF16>(*call, *task);
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

// The keys and scores of an index, which chooses the keys that latent attention reads (DeepSeek V3.2). A score is the sum over
// the index's heads of weight * max(0, query . key * scale), in float32.
//
// Keys lie row by row behind a block's latents, [block_size][dim]. Two neighbouring words of a key are broadcast from where they
// lie, and multiplied with the same words of eight heads: no key is transposed, and each broadcast serves two vectors of heads,
// without which reading would take longer than the products. A score depends on its own query and key alone: not on the batch,
// blocks, chunks or threads.
//
// A word is a float32; where the processor multiplies pairs of bfloat16 and keys are bfloat16, it is such a pair, and queries are
// rounded to bfloat16, as in attention.

constexpr long kIndexGroup = 32; // keys that are found at once: 8 KB of bfloat16 stay in the first-level cache for all rows
constexpr int kIndexKeys = kAttentionSums >= 16 ? 8 : 2; // keys whose sums stay in registers
constexpr long kIndexStep = (kMaxIndex + 16) * sizeof(uint32_t); // of copied keys; no power of two: they would share cache sets

LANE bool index_pairs(const IndexCall &c) { return kRounds && c.element == kCacheBF16; }
LANE long index_words(const IndexCall &c) { return ((index_pairs(c) ? (c.dim + 1) / 2 : c.dim) + 1) & -2; }
LANE long index_panels(const IndexCall &c) { return (c.heads + 15) / 16; }

// Writes a row's queries as [heads / 16][words / 2] pairs of vectors of two words of eight heads, and then its weights. Head h of
// sixteen is in vector h / 2 % 2, there in part h / 4, and there number h % 2, so that `add_neighbours` puts the sums of all heads
// in order. What fills heads and words up is zero.
static void index_queries(const IndexCall *call, long row, uint32_t *to) {
    const IndexCall &c = *call;
    const long words = index_words(c), panels = index_panels(c);
    const float *q = c.q + row * c.q_row_stride;
    memset(to, 0, panels * words * 64);
    for (long h = 0; h < c.heads; h++) {
        uint32_t *lane = to + h / 16 * words * 16 + h % 4 / 2 * 16 + h % 16 / 4 * 4 + h % 2 * 2;
        const float *query = q + h * c.dim;
        for (long i = 0; i < c.dim; i += 16) {
            const long n = at_most(16, c.dim - i);
            alignas(64) uint32_t part[16];
            const F x = n < 16 ? load_part(query + i, n) : load(query + i);
#ifdef CORE_BF16_DOT
            if (index_pairs(c)) {
                store_bf16((uint16_t *)part, x);
                for (long j = 0; j < (n + 1) / 2; j++) lane[(i / 2 + j) / 2 * 32 + j % 2] = part[j];
                continue;
            }
#endif
            store((float *)part, x);
            for (long j = 0; j < n; j++) lane[(i + j) / 2 * 32 + j % 2] = part[j];
        }
    }
    float *weights = (float *)(to + panels * words * 16);
    memset(weights, 0, panels * 64);
    memcpy(weights, c.weights + row * c.weights_row_stride, c.heads * sizeof(float));
}

LANE const uint8_t *index_key(const IndexCall &c, long sequence, long key) {
    const long slot = index_slot(c, sequence, key), bytes = c.element == kCacheF32 ? 4 : 2;
    return c.cache + (size_t)(slot / c.block_size) * c.block_bytes + c.offset + slot % c.block_size * c.dim * bytes;
}

// Sixteen keys `step` bytes apart, in the words that products broadcast.
struct IndexKeys {
    const uint8_t *first;
    long step;
    ptrdiff_t ahead; // bytes from a key to one that is fetched; 0: none
};

// Copies a key to `to` in words, filled up with zeros.
template <int Element> LANE void index_copy(const IndexCall &c, const uint8_t *key, uint32_t *to) {
    constexpr bool pairs = kRounds && Element == kCacheBF16;
    to[index_words(c) - 2] = to[index_words(c) - 1] = 0;
    if (pairs || Element == kCacheF32) {
        memcpy(to, key, c.dim * (pairs ? 2 : 4));
        return;
    }
    for (long i = 0; i < c.dim; i += 16) {
        const long n = at_most(16, c.dim - i);
        const uint16_t *from = (const uint16_t *)key + i;
        uint16_t part[16] = {};
        if (n < 16) memcpy(part, from, n * sizeof *part), from = part;
        istore(to + i, Element == kCacheBF16 ? shift_left<16>(load_u16(from)) : as_int(load_half(from)));
    }
}

// The keys [first, first + 16) of a sequence, `first` a multiple of 16, where they lie or in `room`. Nobody reads the scores of
// those from `end` on.
template <int Element> LANE IndexKeys index_keys(const IndexCall &c, const IndexTask &t, long first, uint8_t *room) {
    constexpr bool pairs = kRounds && Element == kCacheBF16;
    const long bytes = c.dim * (Element == kCacheF32 ? 4 : 2);
    const bool in_block = !c.tails && c.block_size % 16 == 0;
    const uint8_t *key = index_key(c, t.sequence, first);
    if (in_block && (Element == kCacheF32 || pairs) && bytes % 8 == 0) {
        const bool follows = first + 16 < t.end;
        return {key, bytes, follows ? index_key(c, t.sequence, first + 16) - key : 0};
    }
    for (long k = 0; k < 16; k++, key += bytes) {
        if (!in_block) key = index_key(c, t.sequence, at_most(first + k, t.end - 1));
        index_copy<Element>(c, key, (uint32_t *)(room + k * kIndexStep));
    }
    return {room, kIndexStep, 0};
}

// Adds the scores of some keys by sixteen heads to total, [K].
template <bool Pairs, int K>
LANE void index_heads(const uint32_t *q, F weights, IndexKeys keys, long words, F scale, F (&total)[K]) {
    F acc[K][2];
    for (int k = 0; k < K; k++) acc[k][0] = acc[k][1] = zero();
    const long step = keys.step, step3 = 3 * step;
    const uint8_t *low = keys.first, *high = low + 4 * step; // four keys share an address
    for (long i = 0; i < words; i += 2, low += 8, high += 8, q += 32) {
        const I first = iload(q), second = iload(q + 16);
        for (int k = 0; k < K; k++) {
            const I key = load_pair((k < 4 ? low : high) + (k % 4 == 3 ? step3 : k % 4 * step));
#ifdef CORE_BF16_DOT
            if (Pairs) acc[k][0] = dot_bf16(acc[k][0], first, key), acc[k][1] = dot_bf16(acc[k][1], second, key);
#endif
            if (Pairs) continue;
            acc[k][0] = fma(as_float(first), as_float(key), acc[k][0]);
            acc[k][1] = fma(as_float(second), as_float(key), acc[k][1]);
        }
    }
    for (int k = 0; k < K; k++) {
        const F products = add_neighbours(acc[k][0], acc[k][1]);
        total[k] = fma(weights, max(mul(products, scale), zero()), total[k]);
    }
}

// The scores of sixteen keys by a row.
template <bool Pairs> LANE void index_scores_at(const IndexCall &c, const uint32_t *q, IndexKeys keys, float *scores) {
    constexpr int K = kIndexKeys;
    const long words = index_words(c), panels = index_panels(c);
    const float *weights = (const float *)(q + panels * words * 16);
    for (long first = 0; first < 16; first += K, keys.first += K * keys.step) {
        for (int k = 0; k < K && keys.ahead; k++)
            for (long line = 0; line < words * 4; line += 64) __builtin_prefetch(keys.first + keys.ahead + k * keys.step + line);
        F total[K];
        for (int k = 0; k < K; k++) total[k] = zero();
        for (long p = 0; p < panels; p++)
            index_heads<Pairs, K>(q + p * words * 16, load(weights + 16 * p), keys, words, set1(c.scale), total);
        for (int k = 0; k < K; k++) {
            const float score = sum(total[k]);
            scores[first + k] = score == score ? score : -__builtin_inff(); // NaN is the worst
        }
    }
}

template <int Element> static void index_scores_of(const IndexCall &c, const IndexTask &t) {
    constexpr bool pairs = kRounds && Element == kCacheBF16;
    alignas(64) uint8_t room[kIndexGroup * kIndexStep];
    for (long first = t.first; first < t.end; first += kIndexGroup) {
        const long groups = at_most(kIndexGroup, t.end - first + 15) / 16;
        IndexKeys keys[kIndexGroup / 16];
        for (long g = 0; g < groups; g++) keys[g] = index_keys<Element>(c, t, first + 16 * g, room + g * 16 * kIndexStep);
        for (long row = 0; row < t.rows; row++) {
            if (t.position + row < first) continue;
            const uint32_t *q = t.queries + row * t.query_words;
            for (long g = 0; g < groups; g++) {
                index_scores_at<pairs>(c, q, keys[g], t.scores + row * t.stride + first + 16 * g);
                keys[g].ahead = 0; // the first row's
            }
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

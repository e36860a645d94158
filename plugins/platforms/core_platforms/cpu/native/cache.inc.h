// Writes keys and values into the blocks of a paged KV cache; span.inc.h describes their layout.
//
// Two neighbouring values of a pair share 16 or 32 bits, which are written at once. The even row of a pair therefore
// also writes its odd one, if that follows in the same call: two threads must not read, modify and write the same
// word.

// The scale that maps the largest magnitude of `width` numbers to `most`; 0 if all are 0, NaN when one is not finite.
// `inverse`: 1 / scale.
LANE float row_scale(const float *x, long width, float most, float &inverse) {
    F top = zero(), check = zero();
    for (long i = 0; i < width; i += 16) {
        F a = load(x + (i < width - 16 ? i : width - 16));
        top = max(top, abs(a)), check = fma(a, zero(), check);
    }
    const float size = largest(top);
    inverse = size < 1e-30f ? 0 : most / size;
    return (size < 1e-30f ? 0 : size / most) + sum(check);
}

template <int Element> LANE void narrow_row(const float *x, long width, float inverse, uint32_t *codes) {
    for (long i = 0; i < width; i += 16) {
        const long j = i < width - 16 ? i : width - 16; // the last vector may recompute a few numbers
        istore(codes + j, narrow<Element>(load(x + j), set1(inverse)));
    }
}

// Writes one lane of the layout bytes [n / pair][lanes][pair].
template <int Element> LANE void scatter(uint8_t *to, const uint32_t *codes, long n, long pair, long stride) {
    constexpr long bytes = Element == kCacheF32 ? 4 : Element <= kCacheF16 ? 2 : 1;
    for (long i = 0; i < n; i += pair) {
        uint32_t word = pair == 2 ? codes[i] | codes[i + 1] << (bytes * 8 % 32) : codes[i];
        memcpy(to + i / pair * stride, &word, pair * bytes);
    }
}

// Writes the values of the tokens 2i and 2i + 1 to `to`; a missing one keeps its stored bits.
template <int Element>
LANE void write_pair(uint8_t *to, const float *even, const float *odd, float even_inverse, float odd_inverse, long width) {
    constexpr int bits = Element == kCacheBF16 ? 16 : 8;
    constexpr int32_t low = (1 << bits) - 1, high = (int32_t)((uint32_t)low << bits);
    for (long i = 0; i < width; i += 16) {
        const long j = i < width - 16 ? i : width - 16;
        uint8_t *p = to + j * (bits / 4);
        I old = izero();
        if (!even || !odd) old = bits == 16 ? iload(p) : load_u16((const uint16_t *)p);
        I first = even ? narrow<Element>(load(even + j), set1(even_inverse)) : iand(old, iset1(low));
        I second = odd ? shift_left<bits>(narrow<Element>(load(odd + j), set1(odd_inverse))) : iand(old, iset1(high));
        if (bits == 16)
            istore(p, ixor(first, second));
        else
            store_u16((uint16_t *)p, ixor(first, second));
    }
}

struct WrittenRow { // one head of one token
    const float *k, *v;
    uint8_t *base; // start of the head's part of the block
    long offset;   // token's place in the block
    float k_inverse, v_inverse;
};

template <int Element> LANE WrittenRow written_row(const CacheWriteCall &c, long row, long head) {
    constexpr long bytes = Element == kCacheF32 ? 4 : Element <= kCacheF16 ? 2 : 1;
    const long slot = c.slots[row];
    WrittenRow w = {};
    w.k = c.k + row * c.k_row_stride + head * c.k_head_stride, w.v = c.v + row * c.v_row_stride + head * c.v_head_stride;
    w.base = c.cache + (size_t)(slot / c.block_size) * c.block_bytes + head * c.head_bytes;
    w.offset = slot % c.block_size;
    w.k_inverse = 1.0f / c.k_scale, w.v_inverse = 1.0f / c.v_scale;
    if (c.scaled) {
        float *scales = (float *)(w.base + c.block_size * (c.dim + c.dim_v) * bytes) + w.offset;
        scales[0] = row_scale(w.k, c.dim, element_most(Element), w.k_inverse);
        scales[c.block_size] = row_scale(w.v, c.dim_v, element_most(Element), w.v_inverse);
    }
    return w;
}

template <int Element, bool Grouped> LANE void write_keys(const CacheWriteCall &c, const WrittenRow &w) {
    constexpr long bytes = Element == kCacheF32 ? 4 : Element <= kCacheF16 ? 2 : 1;
    constexpr long pair = Element == kCacheF32 || Element == kCacheF16 ? 1 : 2;
    uint32_t codes[kMaxHead];
    float key[kMaxHead];
    const float *k = c.latent ? joined(w.k, w.v, c.dim_v, c.dim, key) : w.k;
    narrow_row<Element>(k, c.dim, w.k_inverse, codes);
    if (Grouped) {
        uint8_t *to = w.base + (w.offset / 16 * 16 * c.dim + w.offset % 16 * pair) * bytes;
        scatter<Element>(to, codes, c.dim, pair, 16 * pair * bytes);
    } else {
        scatter<Element>(w.base + w.offset * c.dim * bytes, codes, c.dim, 1, bytes);
    }
}

// Keys of bytes and values of 4-bit codes, both turned (kv_codes.inc.h). No two tokens share what is written at once.
template <bool Grouped> static void write_codes(const CacheWriteCall &c, long begin, long end) {
    for (long row = begin; row < end; row++)
        for (long head = 0; head < c.heads_kv && c.slots[row] >= 0; head++) {
            float turned[kMaxHead], inverse;
            uint32_t codes[kMaxHead];
            const float *v = c.v + row * c.v_row_stride + head * c.v_head_stride;
            uint8_t *base = c.cache + (size_t)(c.slots[row] / c.block_size) * c.block_bytes + head * c.head_bytes;
            uint8_t *values = base + c.block_size * c.dim;
            const long offset = c.slots[row] % c.block_size, half = c.dim_v / 2;
            float *scales = (float *)(values + c.block_size * half) + offset;
            turn(c.k + row * c.k_row_stride + head * c.k_head_stride, c.dim, turned);
            scales[0] = row_scale(turned, c.dim, 127, inverse) * turned_factor(c.dim);
            narrow_row<kCacheI8>(turned, c.dim, inverse, codes);
            if (Grouped)
                scatter<kCacheI8>(base + offset / 16 * 16 * c.dim + offset % 16 * 2, codes, c.dim, 2, 32);
            else
                scatter<kCacheI8>(base + offset * c.dim, codes, c.dim, 1, 1);
            scales[c.block_size] = encode(v, c.dim_v, codes);
            if (Grouped)
                store_codes(values + offset / 2 * 2 * half + offset % 2 * 2, 4, codes, c.dim_v);
            else
                store_codes(values + offset * half, 2, codes, c.dim_v);
        }
}

// Whether the previous row writes this row's values: it is the odd one of a pair, in the same call.
LANE bool follows(const CacheWriteCall &c, long row) {
    return row > 0 && row < c.rows && c.slots[row] >= 0 && c.slots[row] % 2 == 1 && c.slots[row - 1] == c.slots[row] - 1;
}

template <int Element, bool Grouped> static void write_rows(const CacheWriteCall &c, long begin, long end) {
    constexpr long bytes = Element == kCacheF32 ? 4 : Element <= kCacheF16 ? 2 : 1;
    constexpr bool pairs = Grouped && Element != kCacheF32 && Element != kCacheF16;
    for (long row = begin; row < end; row++) {
        if (c.slots[row] < 0 || (pairs && !c.latent && follows(c, row))) continue;
        const bool two = pairs && follows(c, row + 1);
        for (long head = 0; head < c.heads_kv; head++) {
            WrittenRow first = written_row<Element>(c, row, head), second = first;
            write_keys<Element, Grouped>(c, first);
            if (c.latent) continue;
            if (two) {
                second = written_row<Element>(c, row + 1, head);
                write_keys<Element, Grouped>(c, second);
            }
            uint8_t *values = first.base + c.block_size * c.dim * bytes;
            if (!pairs) {
                uint32_t codes[kMaxHead];
                narrow_row<Element>(first.v, c.dim_v, first.v_inverse, codes);
                scatter<Element>(values + first.offset * c.dim_v * bytes, codes, c.dim_v, 1, bytes);
                continue;
            }
            values += first.offset / 2 * 2 * c.dim_v * bytes;
            const bool odd = first.offset % 2;
            write_pair<Element>(values, odd ? nullptr : first.v, odd ? first.v : two ? second.v : nullptr,
                                first.v_inverse, odd ? first.v_inverse : second.v_inverse, c.dim_v);
        }
    }
}

template <int Element> LANE void write_element(const CacheWriteCall &c, long begin, long end) {
    c.block_size % 16 == 0 ? write_rows<Element, true>(c, begin, end) : write_rows<Element, false>(c, begin, end);
}

static void cache_write(const CacheWriteCall *c, long begin, long end) {
    if (c->element == kCacheF32) write_element<kCacheF32>(*c, begin, end);
    if (c->element == kCacheBF16) write_element<kCacheBF16>(*c, begin, end);
    if (c->element == kCacheF16) write_element<kCacheF16>(*c, begin, end);
    if (c->element == kCacheE4M3) write_element<kCacheE4M3>(*c, begin, end);
    if (c->element == kCacheE5M2) write_element<kCacheE5M2>(*c, begin, end);
    if (c->element == kCacheI8) write_element<kCacheI8>(*c, begin, end);
    if (c->element != kCacheK8V4) return;
    c->block_size % 16 == 0 ? write_codes<true>(*c, begin, end) : write_codes<false>(*c, begin, end);
}

// Reads and writes parts of recurrent states, which may spread over several blocks.

struct StatePiece {
    uint8_t *raw;
    const int32_t *blocks;
    long block_bytes;
};

LANE StatePiece state_of(const StateCall &c, long sequence) {
    return {c.raw, c.block_table + sequence * c.table_stride, c.block_bytes};
}

// Where the step reads the state; these blocks are left as they are, unless it writes there.
LANE StatePiece source_of(const StateCall &c, long sequence) {
    return {c.raw, c.sources + sequence * c.table_stride, c.block_bytes};
}

// Where byte `at` of a state lies.
LANE uint8_t *place_of(const StatePiece &s, long at) {
    return s.raw + s.blocks[at / s.block_bytes] * s.block_bytes + at % s.block_bytes;
}

// Copies bytes of the state, from byte `begin` on, out of the blocks or into them.
template <bool Store> static void copy_state(const StatePiece &s, long begin, long left, void *memory) {
    uint8_t *local = (uint8_t *)memory;
    while (left > 0) {
        const long bytes = at_most(left, s.block_bytes - begin % s.block_bytes);
        uint8_t *place = place_of(s, begin);
        if (Store)
            memcpy(place, local, bytes);
        else
            memcpy(local, place, bytes);
        local += bytes, begin += bytes, left -= bytes;
    }
}

// How many of `rows` rows from byte `at` on lie in one block, one after the other.
LANE long rows_in_block(const StatePiece &s, long at, long rows, long row) {
    return at_most(rows, (s.block_bytes - at % s.block_bytes) / row);
}

// Whether rows, from byte `begin` on, are updated where they lie, with their numbers of `item` bytes aligned: in one block, or in
// several if no row crosses from one to the next. Only 16 bits gain by the latter; float32 is faster through a copy (13 ms beside
// 15 for 288 states of 1 MiB).
LANE bool rows_lie_whole(const StatePiece &s, long begin, long rows, long row, long item) {
    const bool within_one = begin % s.block_bytes + rows * row <= s.block_bytes;
    const bool by_row = item == 2 && s.block_bytes % row == 0 && begin % row == 0;
    return (within_one || by_row) && ((uintptr_t)s.raw | s.block_bytes | begin) % item == 0;
}

LANE long state_item(int element) { return element == kCacheF32 ? 4 : 2; }

// Where the recurrent state begins, after the window of the convolution's inputs.
LANE long recurrent_start(const StateLayer &l) {
    return ceil_div((l.kernel - 1) * l.channels * state_item(l.window_element), 4) * 4;
}

// The number that is stored for x. Numbers are rounded after every token, in prompts too, so that a state has the same bits
// however many tokens a step takes.
template <int Element> LANE F as_stored(F x) {
    if (Element == kCacheF32) return x;
#if defined(__AVX512BF16__)
    if (Element == kCacheBF16) return (F)_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow_bf16(x)), 16);
#endif
    if (Element == kCacheBF16) return as_float(bf16_bits(x));
#ifdef CORE_HALF
    return round_half(x);
#else
    uint16_t bits[16];
    store_u16(bits, narrow<kCacheF16>(x, set1(1)));
    return load_half(bits);
#endif
}

template <int Element> LANE void store_narrow(uint16_t *p, F x) {
#if defined(__AVX512BF16__)
    if (Element == kCacheBF16) return store_bf16(p, x);
#endif
#ifdef CORE_HALF
    if (Element == kCacheF16) return store_half(p, x);
#endif
    store_u16(p, narrow<Element>(x, set1(1)));
}

template <int Element> LANE F load_stored(const void *p, long at, long n) {
    if (Element == kCacheF32) return load_upto((const float *)p + at, n);
    const uint16_t *from = (const uint16_t *)p + at;
    uint16_t part[16] = {};
    if (n < 16) memcpy(part, from, n * sizeof *part), from = part;
    return Element == kCacheBF16 ? as_float(shift_left<16>(load_u16(from))) : load_half(from);
}

template <int Element> LANE void store_stored(void *p, long at, F x, long n) {
    if (Element == kCacheF32) return store_upto((float *)p + at, x, n);
    uint16_t *to = (uint16_t *)p + at, part[16];
    store_narrow<Element>(n < 16 ? part : to, x);
    if (n < 16) memcpy(to, part, n * sizeof *part);
}

// Reads or writes `count` numbers of the window, from number `at` on.
template <int Element, bool Store> static void copy_window(const StatePiece &s, long at, long count, float *memory) {
    if (Element == kCacheF32) return copy_state<Store>(s, at * 4, count * 4, memory);
    uint16_t bits[kStateChannels];
    if (!Store) copy_state<false>(s, at * 2, count * 2, bits);
    for (long i = 0; i < count; i += 16)
        if (Store)
            store_stored<Element>(bits, i, load_upto(memory + i, count - i), count - i);
        else
            store_upto(memory + i, load_stored<Element>(bits, i, count - i), count - i);
    if (Store) copy_state<true>(s, at * 2, count * 2, bits);
}

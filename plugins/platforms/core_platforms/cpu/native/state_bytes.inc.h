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

// Copies `count` numbers of the state, starting at `at`, out of the blocks or into them.
template <bool Store> static void copy_state(const StatePiece &s, long at, long count, float *memory) {
    uint8_t *local = (uint8_t *)memory;
    long begin = at * (long)sizeof(float), left = count * (long)sizeof(float);
    while (left > 0) {
        const long inside = begin % s.block_bytes, bytes = at_most(left, s.block_bytes - inside);
        uint8_t *place = s.raw + s.blocks[begin / s.block_bytes] * s.block_bytes + inside;
        if (Store)
            memcpy(place, local, bytes);
        else
            memcpy(local, place, bytes);
        local += bytes, begin += bytes, left -= bytes;
    }
}

// Address of these numbers if a single block holds them all, else null.
LANE float *state_place(const StatePiece &s, long at, long count) {
    const long begin = at * (long)sizeof(float), inside = begin % s.block_bytes;
    if (inside + count * (long)sizeof(float) > s.block_bytes) return nullptr;
    uint8_t *place = s.raw + s.blocks[begin / s.block_bytes] * s.block_bytes + inside;
    return (uintptr_t)place % sizeof(float) ? nullptr : (float *)place;
}

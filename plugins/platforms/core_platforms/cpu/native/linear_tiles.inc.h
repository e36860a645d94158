// The integer sums of sixteen rows by sixteen outputs, in tiles (tiles_amx.h). Included by linear_int.inc.h, where a set has tiles.
//
// Sums of integers are exact, so tiles give the bits of every other instruction set. bfloat16 has tiles too, but they add
// even and odd products apart and flush small ones, so a row would have other bits in a tile than alone: products of
// bfloat16 stay in vectors.

constexpr int kTileRows = 16;

// Inputs multiplied at a time: the largest power of two, at most 64, that divides a group's inputs.
LANE long tile_step(long size) { return at_most(size & -size, 64); }

// Expands `step` inputs of 16 outputs to bytes [step / 4][16][4] as tiles read them.
template <Integers Stored> LANE void spread_nibbles(const uint8_t *w, long step, I table, uint8_t *out) {
    for (long k = 0; k < step; k += 8, w += kPanel * 4, out += 128) {
        const I both = iload(w);
        I low = iand(both, iset1(0x0f0f0f0f)), high = iand(shift_right<4>(both), iset1(0x0f0f0f0f));
        if (Stored == kTableNibbles) low = lookup_bytes(table, low), high = lookup_bytes(table, high);
        istore(out, low);
        istore(out + 64, high);
    }
}

// Adds the products of `size` inputs of a group to the sums of sixteen rows, as `int_dot` does.
template <Integers Stored>
LANE void tile_dot(const uint8_t *w, const uint8_t *x, long stride, long size, I table, I (&dot)[kTileRows][1]) {
    constexpr bool kPairs = Stored == kNibbles || Stored == kTableNibbles;
    const long step = tile_step(size);
    alignas(64) uint8_t bytes[kPairs ? 16 * 64 : 64];
    alignas(64) int32_t sums[kTileRows * 16];
    tile_clear();
    for (long k = 0; k < size; k += step, x += step, w += step * (kPairs ? kPanel / 2 : kPanel)) {
        tile_inputs(x, stride);
        if (kPairs) {
            spread_nibbles<Stored>(w, step, table, bytes);
            tile_weights(bytes, 64);
        } else {
            tile_weights(w, kPanel * 4);
        }
        tile_multiply();
    }
    tile_sums(sums);
    for (int r = 0; r < kTileRows; r++) dot[r][0] = iadd(dot[r][0], iload(sums + 16 * r));
}

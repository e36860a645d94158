// Tiles of AMX, for sums of products of 8-bit integers: up to sixteen rows by sixteen outputs, 64 inputs at a time.
//
// Every thread configures its own tiles before it multiplies and releases them afterwards, so that the kernel need not
// save 8 KiB whenever it is interrupted. The kernel allows tiles to a process that asks for them (dispatch.cpp).
//
// GCC 12's intrinsics do not tell the compiler that they read memory, hence the barriers before them.
#define CORE_TILES 1

#define TILE_BARRIER __asm__ volatile("" ::: "memory")

struct alignas(64) TileShapes { // the operand of ldtilecfg
    uint8_t palette, start;
    uint8_t unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// Tile 0: sums [16][16]; tile 1: inputs [16][step]; tile 2: weights [step / 4][16][4].
LANE void tiles_begin(long step) {
    TileShapes shapes = {};
    shapes.palette = 1;
    shapes.rows[0] = 16, shapes.row_bytes[0] = 64;
    shapes.rows[1] = 16, shapes.row_bytes[1] = (uint16_t)step;
    shapes.rows[2] = (uint8_t)(step / 4), shapes.row_bytes[2] = 64;
    TILE_BARRIER;
    _tile_loadconfig(&shapes);
}
LANE void tiles_end() { _tile_release(); }
LANE void tile_clear() { _tile_zero(0); }
LANE void tile_inputs(const uint8_t *x, long stride) {
    TILE_BARRIER;
    _tile_loadd(1, x, stride);
}
LANE void tile_weights(const uint8_t *w, long stride) {
    TILE_BARRIER;
    _tile_loadd(2, w, stride);
}
LANE void tile_multiply() { _tile_dpbsud(0, 1, 2); } // signed inputs, unsigned weights
LANE void tile_sums(int32_t *sums) { // [16][16]
    _tile_stored(0, sums, 64);
    TILE_BARRIER;
}
#undef TILE_BARRIER

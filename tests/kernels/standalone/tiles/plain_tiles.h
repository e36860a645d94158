// Tiles of AMX in plain C++, in place of tiles_amx.h, after the pseudocode of the instructions in Intel's manual. What a
// processor would refuse or read beyond is an abort here.
#define CORE_TILES 1

struct PlainTile {
    uint8_t bytes[16][64];
    long rows, row_bytes;
};
static thread_local PlainTile tiles[3];
static thread_local bool configured = false;

struct Multiplied { // how many products tiles made, told at the end: a check that uses none proves nothing
    std::atomic<long> tiles{0};
    ~Multiplied() { fprintf(stderr, "%ld tiles were multiplied\n", tiles.load()); }
};
static Multiplied multiplied;

LANE void require(bool holds) {
    if (!holds) abort();
}
LANE void tiles_begin(long step) {
    require(!configured && step % 4 == 0 && step > 0 && step <= 64);
    const long rows[] = {16, 16, step / 4}, row_bytes[] = {64, step, 64};
    for (int i = 0; i < 3; i++) {
        memset(tiles[i].bytes, 0xa5, sizeof tiles[i].bytes); // results must not depend on what was there
        tiles[i].rows = rows[i], tiles[i].row_bytes = row_bytes[i];
    }
    configured = true;
}
LANE void tiles_end() {
    require(configured);
    configured = false;
}
LANE void tile_clear() {
    require(configured);
    memset(tiles[0].bytes, 0, sizeof tiles[0].bytes);
}
LANE void tile_fill(PlainTile &tile, const uint8_t *from, long stride) {
    require(configured);
    for (long r = 0; r < tile.rows; r++) memcpy(tile.bytes[r], from + r * stride, tile.row_bytes);
}
LANE void tile_inputs(const uint8_t *x, long stride) { tile_fill(tiles[1], x, stride); }
LANE void tile_weights(const uint8_t *w, long stride) { tile_fill(tiles[2], w, stride); }
LANE void tile_multiply() { // TDPBSUD: signed bytes of the first operand, unsigned ones of the second, sums modulo 2^32
    multiplied.tiles++;
    require(configured && tiles[1].row_bytes == 4 * tiles[2].rows);
    for (long m = 0; m < tiles[1].rows; m++)
        for (long k = 0; k < tiles[2].rows; k++)
            for (long n = 0; n < 16; n++) {
                uint32_t sum;
                memcpy(&sum, tiles[0].bytes[m] + 4 * n, 4);
                for (long i = 0; i < 4; i++)
                    sum += (uint32_t)((int8_t)tiles[1].bytes[m][4 * k + i] * (int)tiles[2].bytes[k][4 * n + i]);
                memcpy(tiles[0].bytes[m] + 4 * n, &sum, 4);
            }
}
LANE void tile_sums(int32_t *sums) {
    require(configured);
    memcpy(sums, tiles[0].bytes, sizeof tiles[0].bytes);
}

// Tiles of AMX in plain C++, in place of tiles_amx.h, after the pseudocode of the instructions in Intel's manual. What a
// processor would refuse or read beyond is an abort here. The including file names what it computes (TILES_OF).
#define CORE_TILES 1

struct PlainTile {
    uint8_t bytes[16][64];
    long rows, row_bytes;
};
static thread_local PlainTile tiles[8];
static thread_local bool configured = false;

struct Multiplied { // how many products tiles made, told at the end: a check that uses none proves nothing
    std::atomic<long> tiles{0};
    ~Multiplied() { fprintf(stderr, "%ld tiles of " TILES_OF "\n", tiles.load()); }
};
static Multiplied multiplied;

LANE void require(bool holds) {
    if (!holds) abort();
}
LANE void tiles_begin(long first, long second, long step) {
    require(!configured && step % 4 == 0 && step > 0 && step <= 64);
    require(first > 0 && first <= 16 && second > 0 && second <= 16);
    for (int i = 0; i < 8; i++) {
        memset(tiles[i].bytes, 0xa5, sizeof tiles[i].bytes); // results must not depend on what was there
        tiles[i].rows = i > 5 ? step / 4 : i < 2 || i == 4 ? first : second;
        tiles[i].row_bytes = i == 4 || i == 5 ? step : 64;
    }
    configured = true;
}
LANE void tiles_end() { configured = false; }
template <int Tile> LANE void tile_clear() {
    require(configured);
    memset(tiles[Tile].bytes, 0, sizeof tiles[Tile].bytes);
}
template <int Tile> LANE void tile_load(const void *from, long stride) {
    require(configured);
    for (long r = 0; r < tiles[Tile].rows; r++)
        memcpy(tiles[Tile].bytes[r], (const uint8_t *)from + r * stride, tiles[Tile].row_bytes);
}
template <int Tile> LANE void tile_store(void *to, long stride) {
    require(configured);
    for (long r = 0; r < tiles[Tile].rows; r++)
        memcpy((uint8_t *)to + r * stride, tiles[Tile].bytes[r], tiles[Tile].row_bytes);
}
LANE void require_shapes(const PlainTile &sums, const PlainTile &inputs, const PlainTile &weights) {
    require(configured && sums.rows == inputs.rows && inputs.row_bytes == 4 * weights.rows);
    multiplied.tiles++;
}
// TDPBSSD and TDPBSUD: signed bytes of the inputs, signed or unsigned ones of the weights, sums modulo 2^32.
template <int Sums, int Inputs, int Weights, bool Signed> LANE void tile_multiply() {
    PlainTile &sums = tiles[Sums];
    const PlainTile &inputs = tiles[Inputs], &weights = tiles[Weights];
    require_shapes(sums, inputs, weights);
    for (long m = 0; m < inputs.rows; m++)
        for (long k = 0; k < weights.rows; k++)
            for (long n = 0; n < 16; n++) {
                uint32_t sum;
                memcpy(&sum, sums.bytes[m] + 4 * n, 4);
                for (long i = 0; i < 4; i++) {
                    const uint8_t byte = weights.bytes[k][4 * n + i];
                    sum += (uint32_t)((int8_t)inputs.bytes[m][4 * k + i] * (Signed ? (int)(int8_t)byte : (int)byte));
                }
                memcpy(sums.bytes[m] + 4 * n, &sum, 4);
            }
}
// TDPBF16PS: the even and the odd products of a step are added apart, each with one rounding, and then both.
LANE float widened(const uint8_t *p) {
    uint16_t half;
    memcpy(&half, p, 2);
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
template <int Sums, int Inputs, int Weights> static void tile_multiply_bf16() {
    PlainTile &sums = tiles[Sums];
    const PlainTile &inputs = tiles[Inputs], &weights = tiles[Weights];
    require_shapes(sums, inputs, weights);
    for (long m = 0; m < inputs.rows; m++)
        for (long n = 0; n < 16; n++) {
            float even = 0, odd = 0, sum;
            for (long k = 0; k < weights.rows; k++) {
                const uint8_t *x = inputs.bytes[m] + 4 * k, *pair = weights.bytes[k] + 4 * n;
                even = __builtin_fmaf(widened(x), widened(pair), even);
                odd = __builtin_fmaf(widened(x + 2), widened(pair + 2), odd);
            }
            memcpy(&sum, sums.bytes[m] + 4 * n, 4);
            sum += even + odd;
            memcpy(sums.bytes[m] + 4 * n, &sum, 4);
        }
}
LANE I sub_bytes(I a, I b) {
    alignas(64) uint8_t left[64], right[64];
    istore(left, a), istore(right, b);
    for (int i = 0; i < 64; i++) left[i] = (uint8_t)(left[i] - right[i]);
    return iload(left);
}
struct FlushSubnormals { // see tiles_amx.h
    unsigned before = _mm_getcsr();
    explicit FlushSubnormals(bool flush) { _mm_setcsr(flush ? before | 0x8040 : before); }
    ~FlushSubnormals() { _mm_setcsr(before); }
    FlushSubnormals(const FlushSubnormals &) = delete;
};

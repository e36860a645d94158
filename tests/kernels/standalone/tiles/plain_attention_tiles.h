// Tiles of bfloat16 in plain C++, in place of tiles_attention_amx.h, after the pseudocode of TDPBF16PS in Intel's manual, and
// what attention needs of instructions for BF16, for lanes that have none.
#define CORE_ATTENTION_TILES 1
#define CORE_BF16_DOT 1

LANE void require(bool holds) {
    if (!holds) abort();
}
LANE uint16_t rounded(float x) { // to the nearest, ties to even; subnormal numbers are flushed
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return 0x7fc0;
    if (!(bits & 0x7f800000)) return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
LANE float widened(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
LANE void store_bf16(uint16_t *p, F x) {
    float lanes[16];
    store(lanes, x);
    for (int i = 0; i < 16; i++) p[i] = rounded(lanes[i]);
}
LANE I pack_bf16(F low, F high) {
    uint16_t both[32];
    store_bf16(both, low), store_bf16(both + 16, high);
    return iload(both);
}
LANE F dot_bf16(F acc, I w, I x) {
    const I high = iset1((int32_t)0xffff0000);
    acc = fma(as_float(iand(w, high)), as_float(iand(x, high)), acc);
    return fma(as_float(shift_left<16>(w)), as_float(shift_left<16>(x)), acc);
}
LANE I bf16_table(const float *p) {
    uint16_t table[32];
    store_bf16(table, load(p)), store_bf16(table + 16, load(p));
    return iload(table);
}
LANE I lookup_bf16(I table, I index) {
    uint16_t entries[32], which[32], out[32];
    istore(entries, table), istore(which, index);
    for (int i = 0; i < 32; i++) out[i] = entries[which[i] & 15];
    return iload(out);
}

struct AttentionTile {
    uint8_t bytes[16][64];
    long rows;
};
static thread_local AttentionTile attention_tiles[8];
static thread_local bool attention_configured = false;

struct MultipliedTiles { // a check that uses none proves nothing
    std::atomic<long> tiles{0};
    ~MultipliedTiles() { fprintf(stderr, "%ld tiles of attention\n", tiles.load()); }
};
static MultipliedTiles multiplied_tiles;

LANE void attention_tiles_begin(long rows) {
    require(!attention_configured && rows > 0 && rows <= 16);
    memset(attention_tiles, 0xa5, sizeof attention_tiles); // results must not depend on what was there
    for (int i = 0; i < 8; i++) attention_tiles[i].rows = i < 6 ? rows : 16;
    attention_configured = true;
}
LANE void attention_tiles_end() {
    require(attention_configured);
    attention_configured = false;
}
template <int Tile> LANE void clear_sums() {
    require(attention_configured);
    memset(attention_tiles[Tile].bytes, 0, sizeof attention_tiles[Tile].bytes);
}
template <int Tile> LANE void load_tile(const void *p, long stride) {
    require(attention_configured);
    for (long r = 0; r < attention_tiles[Tile].rows; r++) memcpy(attention_tiles[Tile].bytes[r], (const uint8_t *)p + r * stride, 64);
}
template <int Sums, int Inputs, int Columns> static void add_pair_products() {
    multiplied_tiles.tiles++;
    for (long m = 0; m < attention_tiles[Sums].rows; m++) {
        const uint16_t *x = (const uint16_t *)attention_tiles[Inputs].bytes[m];
        float *sums = (float *)attention_tiles[Sums].bytes[m];
        for (long n = 0; n < 16; n++) {
            float even = 0, odd = 0;
            for (long k = 0; k < 16; k++) {
                const uint16_t *pair = (const uint16_t *)attention_tiles[Columns].bytes[k] + 2 * n;
                even = __builtin_fmaf(widened(x[2 * k]), widened(pair[0]), even);
                odd = __builtin_fmaf(widened(x[2 * k + 1]), widened(pair[1]), odd);
            }
            sums[n] += even + odd;
        }
    }
}
template <int Tile> LANE void store_sums(float *p, long stride) {
    require(attention_configured);
    for (long r = 0; r < attention_tiles[Tile].rows; r++) memcpy((uint8_t *)p + r * stride, attention_tiles[Tile].bytes[r], 64);
}

struct FlushSubnormals { // see tiles_attention_amx.h
    unsigned before = _mm_getcsr();
    explicit FlushSubnormals(bool flush) { _mm_setcsr(flush ? before | 0x8040 : before); }
    ~FlushSubnormals() { _mm_setcsr(before); }
    FlushSubnormals(const FlushSubnormals &) = delete;
};

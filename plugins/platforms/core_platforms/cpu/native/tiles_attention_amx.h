// Tiles of AMX for attention: sums of products of bfloat16, up to sixteen rows by sixteen columns, 32 inputs at a time.
//
// TDPBF16PS adds the sixteen even and the sixteen odd products of its 32 inputs apart, then both to the sum, rounds after
// each step, and takes and makes no subnormal numbers. So an element of a tile depends on its own row and column alone, and
// inputs that are 0 change nothing: attention_tiles.inc.h relies on both.
//
// Every task configures its thread's tiles and releases them, as products do (tiles_amx.h).
#define CORE_ATTENTION_TILES 1

// Tiles 0 to 3: sums [rows][16]; 4 and 5: inputs [rows][32]; 6 and 7: pairs of inputs by columns [16][16][2].
LANE void attention_tiles_begin(long rows) {
    struct alignas(64) { // the operand of ldtilecfg
        uint8_t palette, start;
        uint8_t unused[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shapes = {};
    shapes.palette = 1;
    for (int i = 0; i < 8; i++) shapes.row_bytes[i] = 64, shapes.rows[i] = i < 6 ? (uint8_t)rows : 16;
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
}
LANE void attention_tiles_end() { __asm__ volatile("tilerelease" ::: "memory"); }
template <int Tile> LANE void clear_sums() { __asm__ volatile("tilezero %%tmm%c0" ::"i"(Tile)); }
template <int Tile> LANE void load_tile(const void *p, long stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(Tile) : "memory");
}
template <int Sums, int Inputs, int Columns> LANE void add_pair_products() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Inputs), "i"(Columns));
}
template <int Tile> LANE void store_sums(float *p, long stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(Tile) : "memory");
}

// Makes vectors take and make no subnormal numbers, as tiles do, in a scope.
struct FlushSubnormals {
    unsigned before = _mm_getcsr();
    explicit FlushSubnormals(bool flush) { _mm_setcsr(flush ? before | 0x8040 : before); }
    ~FlushSubnormals() { _mm_setcsr(before); }
    FlushSubnormals(const FlushSubnormals &) = delete;
};

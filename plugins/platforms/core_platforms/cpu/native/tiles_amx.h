// Tiles of AMX, for sums of products of 8-bit integers and of bf16: up to sixteen rows by sixteen outputs, 64 bytes of inputs
// at a time. Products of matrices and attention use them.
//
// Tiles 0 to 3 hold sums [rows][16], 4 and 5 inputs [rows][step], 6 and 7 weights [step / 4][16][4 bytes]. Every thread
// configures its own tiles before it multiplies and releases them afterwards, so that the kernel need not save 8 KiB whenever
// it is interrupted. The kernel allows tiles to a process that asks for them (dispatch.cpp).
//
// The instructions are written out: GCC 12's intrinsics take no template argument for a tile, and do not tell the compiler
// that they read memory.
#define CORE_TILES 1

struct alignas(64) TileShapes { // the operand of ldtilecfg
    uint8_t palette, start;
    uint8_t unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// first, second: rows of tiles 0, 1 and 4; of 2, 3 and 5. step: bytes of a row of inputs, a multiple of 4, at most 64.
LANE void tiles_begin(long first, long second, long step) {
    TileShapes shapes = {};
    shapes.palette = 1;
    for (int i = 0; i < 4; i++) shapes.rows[i] = (uint8_t)(i < 2 ? first : second), shapes.row_bytes[i] = 64;
    for (int i = 4; i < 6; i++) shapes.rows[i] = (uint8_t)(i < 5 ? first : second), shapes.row_bytes[i] = (uint16_t)step;
    for (int i = 6; i < 8; i++) shapes.rows[i] = (uint8_t)(step / 4), shapes.row_bytes[i] = 64;
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
}
LANE void tiles_end() { __asm__ volatile("tilerelease" ::: "memory"); }
template <int Tile> LANE void tile_clear() { __asm__ volatile("tilezero %%tmm%c0" ::"i"(Tile)); }
template <int Tile> LANE void tile_load(const void *from, long stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile> LANE void tile_store(void *to, long stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(Tile) : "memory");
}
// Adds to the tile Sums the products of signed inputs, and weights that are signed or not.
template <int Sums, int Inputs, int Weights, bool Signed> LANE void tile_multiply() {
    if constexpr (Signed)
        __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Inputs), "i"(Weights));
    else
        __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Inputs), "i"(Weights));
}
// The same of bf16. A sum adds the even and the odd products of a step apart, each in the order of the inputs, and then both,
// rounding after each addition; numbers below the least normal one count as zero. So an element depends on its own row and
// column alone, and inputs that are 0 change nothing: attention_tiles.inc.h relies on both.
template <int Sums, int Inputs, int Weights> LANE void tile_multiply_bf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Inputs), "i"(Weights));
}
LANE I sub_bytes(I a, I b) { return (I)_mm512_sub_epi8((__m512i)a, (__m512i)b); }

// Makes vectors take and make no subnormal numbers, as tiles do, in a scope.
struct FlushSubnormals {
    unsigned before = _mm_getcsr();
    explicit FlushSubnormals(bool flush) { _mm_setcsr(flush ? before | 0x8040 : before); }
    ~FlushSubnormals() { _mm_setcsr(before); }
    FlushSubnormals(const FlushSubnormals &) = delete;
};

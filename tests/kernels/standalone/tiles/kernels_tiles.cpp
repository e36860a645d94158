// The products of `amx` as this machine can run them: tiles in plain C++, and the lanes of AVX2.
//
// Only whole blocks of sixteen rows are compiled here, each kind of integers as linear.inc.h chooses it; the rows that are left,
// and all other kinds, are AVX2's own.
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"
#include "pool.h"

#pragma GCC diagnostic ignored "-Wunused-function"

namespace {
#ifdef TEST_REAL_TILES
#include "lanes_avx512.h"
#include "tiles_amx.h"
#else
#include "lanes_avx2.h"
#include "plain_tiles.h"
#endif
#include "linear.inc.h"

template <Integers Stored> long group_rows(const LinearCall &c, long panel, long begin, long end) {
    const PackedLinear &l = *c.weight;
    if (l.input_groups == 1 && !l.has_minimum && !l.has_zeros) return tile_blocks<RowDotKind<Stored>>(c, panel, begin, end);
    if (l.has_zeros) return tile_blocks<IntDotKind<Stored, true, true>>(c, panel, begin, end);
    if (l.input_parts > 1) return tile_blocks<IntDotKind<Stored, true, false>>(c, panel, begin, end);
    return tile_blocks<IntDotKind<Stored, false, false>>(c, panel, begin, end);
}

template <int Bits, bool Table> long plane_rows(const LinearCall &c, long panel, long begin, long end) {
    const PackedLinear &l = *c.weight, spread = spread_form(l);
    Scratch scratch(spread.panel_bytes);
    spread_panel<Bits, Table>(l, spread, l.data + panel * l.panel_bytes, (uint8_t *)scratch.memory);
    LinearCall call = c;
    call.weight = &spread, call.panel = (const uint8_t *)scratch.memory;
    if (l.has_zeros) return tile_blocks<IntDotKind<kSmallBytes, false, true>>(call, panel, begin, end);
    return tile_blocks<IntDotKind<Table ? kBytes : kSmallBytes, false, false>>(call, panel, begin, end);
}

long rows_in_tiles(const LinearCall &c, long panel, long begin, long end) {
    if (c.weight->activation != kQuantInt8) return begin;
    switch (c.weight->format) {
    case kInt4: return group_rows<kNibbles>(c, panel, begin, end);
    case kInt8: return group_rows<kBytes>(c, panel, begin, end);
    case kCode4: return tile_blocks<IntDotKind<kTableNibbles, false, false>>(c, panel, begin, end);
    case kPlanes3: return plane_rows<3, false>(c, panel, begin, end);
    case kPlanes4: return plane_rows<4, false>(c, panel, begin, end);
    case kPlanes6: return plane_rows<6, false>(c, panel, begin, end);
    case kPlanesCode4: return plane_rows<4, true>(c, panel, begin, end);
    }
    return begin;
}
} // namespace

bool tiled_linear(const LinearCall *c, long panel, long begin, long end) {
    const long row = rows_in_tiles(*c, panel, begin, end);
    return row == end || core_kernels_avx2.linear(c, panel, row, end);
}

// The packed matrix product, written once against the sixteen lanes of the including file.
//
// A lane is an output n. Each output has one accumulator that walks k in ascending order (bf16 dot: pairs; integers:
// whole groups), so its bits depend on k and the format alone, never on the neighbouring rows. The inner block
// handles R rows and V of a panel's two vectors; R and V affect only the speed.
//
// A weight that may be split along k has several equal segments, each with its own accumulator, that are added as a
// binary tree. A rank that computes half of the segments then holds a whole subtree, and adding two halves gives the
// bits of a single rank.

constexpr long kPrefetch = 1536; // bytes ahead

LANE const float *row_f32(const LinearCall &c, long row) { return c.x + row * c.x_stride; }
LANE const uint8_t *row_staged(const LinearCall &c, long row) { return c.staged + row * c.staged_stride; }
LANE const float *row_any(const LinearCall &c, long row) {
    return c.staged ? (const float *)row_staged(c, row) : row_f32(c, row);
}
LANE int32_t read_i32(const uint8_t *p) {
    int32_t value;
    memcpy(&value, p, 4);
    return value;
}
template <int R> LANE void prefetch(const uint8_t *w) {
    if (R >= 6) { // measured: with fewer rows the hardware prefetcher is ahead, and more requests slow it down
        __builtin_prefetch(w + kPrefetch);
        __builtin_prefetch(w + kPrefetch + 64);
    }
}

struct Steps { // a range of steps along k; a step is one input, a pair or a group, depending on the kind
    long begin, end;
};

#include "linear_float.inc.h"
#include "linear_groups.inc.h"
#include "linear_int.inc.h"
#include "linear_planes.inc.h"

template <int R, int V> LANE void add_block(const F (&left)[R][V], F (&right)[R][V]) {
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) right[r][v] = add(left[r][v], right[r][v]);
}

template <int R, int V> LANE void move_block(F (&from)[R][V], F (&to)[R][V]) { // and resets `from` to zero
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) to[r][v] = from[r][v], from[r][v] = zero();
}

// Writes sums of the outputs from n on: with a scale, a bias, or to what is there, as the call asks.
LANE void finish(const LinearCall &c, long n, long row, F value) {
    const PackedLinear &l = *c.weight;
    const long lanes = at_most(l.n - n, 16);
    if (lanes <= 0) return;
    float *out = c.out + row * c.out_stride + n;
    if (l.row_scale) value = mul(value, load(l.row_scale + n));
    if (l.bias) value = add(value, load(l.bias + n));
    if (c.accumulate) value = add(value, lanes == 16 ? load(out) : load_part(out, lanes));
    if (lanes == 16)
        store(out, value);
    else
        store_part(out, value, lanes);
}

template <class Kind, int R, int V> LANE void block(const LinearCall &c, long panel, long vector, long row) {
    const PackedLinear &l = *c.weight;
    F acc[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            acc[r][v] = zero();
            if (R > 2) __builtin_prefetch(c.out + (row + r) * c.out_stride + panel * kPanel + (vector + v) * 16, 1);
        }
    const uint8_t *data = c.panel ? c.panel : l.data + panel * l.panel_bytes;
    const long steps = Kind::steps(l) / l.segments;
    F waiting[kSegmentLevels][R][V]; // sums of whole subtrees that wait for their right neighbours
    for (long segment = 0;; segment++) {
        Kind::template run<R, V>(c, data, vector, row, Steps{segment * steps, (segment + 1) * steps}, acc);
        int level = 0;
        // The ones at the end of the segment's number are the levels whose left subtree is complete, as in a binary
        // counter.
        for (; segment >> level & 1; level++) add_block<R, V>(waiting[level], acc);
        if (segment + 1 == l.segments) break;
        move_block<R, V>(acc, waiting[level]);
    }
    for (int v = 0; v < V; v++)
        for (int r = 0; r < R; r++) finish(c, panel * kPanel + (vector + v) * 16, row + r, acc[r][v]);
}

template <class Kind, int R> static __attribute__((noinline)) long blocks(const LinearCall &c, long panel, long row, long end) {
    for (; row + R <= end; row += R) {
        if (R <= Kind::kWide) {
            block<Kind, R, 2>(c, panel, 0, row);
        } else {
            block<Kind, R, 1>(c, panel, 0, row);
            block<Kind, R, 1>(c, panel, 1, row);
        }
    }
    return row;
}

template <class Kind> static void panel_rows(const LinearCall &c, long panel, long begin, long end) {
    long row = begin;
    if (Kind::kRows >= 12) row = blocks<Kind, Kind::kRows >= 12 ? 12 : 1>(c, panel, row, end);
    if (Kind::kRows >= 8) row = blocks<Kind, Kind::kRows >= 8 ? 8 : 1>(c, panel, row, end);
    if (Kind::kRows >= 6) row = blocks<Kind, Kind::kRows >= 6 ? 6 : 1>(c, panel, row, end);
    if (kMaxRows >= 4) row = blocks<Kind, kMaxRows >= 4 ? 4 : 1>(c, panel, row, end);
    row = blocks<Kind, 2>(c, panel, row, end);
    blocks<Kind, 1>(c, panel, row, end);
}

#if defined(CORE_TILES)
#include "linear_tiles.inc.h"
#include "linear_tile_groups.inc.h"
#elif defined(CORE_BF16_DOT)
static bool bf16_rows(const LinearCall &c, long panel, long begin, long end) {
    panel_rows<BF16DotKind>(c, panel, begin, end);
    return true;
}
#endif

template <class Decode> LANE void float_groups(const LinearCall &c, long panel, long begin, long end) {
#ifdef CORE_BF16_DOT
    if (c.weight->activation == kRoundBF16) {
        if (c.weight->groups == 1) return panel_rows<GroupBF16DotKind<typename Decode::Pairs, true>>(c, panel, begin, end);
        return panel_rows<GroupBF16DotKind<typename Decode::Pairs, false>>(c, panel, begin, end);
    }
#endif
    panel_rows<GroupFloatKind<Decode>>(c, panel, begin, end);
}

template <int Bits> LANE void int_groups(const LinearCall &c, long panel, long begin, long end) {
    const PackedLinear &l = *c.weight;
    constexpr Integers kStored = Bits == 4 ? kNibbles : kBytes;
    if (l.activation != kQuantInt8) return panel_rows<GroupFloatKind<IntDecode<Bits>>>(c, panel, begin, end);
    const bool row = l.input_groups == 1 && !l.has_minimum && !l.has_zeros;
#ifdef CORE_TILES
    begin = row && Bits == 8 ? byte_rows(c, panel, begin, end) : row ? begin : tile_groups<kStored>(c, panel, begin, end);
#endif
    if (row) return panel_rows<RowDotKind<kStored>>(c, panel, begin, end);
    if (l.has_zeros) return panel_rows<IntDotKind<kStored, true, true>>(c, panel, begin, end);
    if (l.input_parts > 1) return panel_rows<IntDotKind<kStored, true, false>>(c, panel, begin, end);
    panel_rows<IntDotKind<kStored, false, false>>(c, panel, begin, end);
}

LANE void table_groups(const LinearCall &c, long panel, long begin, long end) {
#ifdef CORE_TILES
    begin = tile_groups<kTableNibbles>(c, panel, begin, end);
#endif
    panel_rows<IntDotKind<kTableNibbles, false, false>>(c, panel, begin, end);
}

// Multiplies by an expanded panel, and meanwhile brings the packed panel that is expanded next into the cache, a slice for
// each block of rows. Measured: waiting for that panel took a fifth of the time of 64 rows.
template <void (*Rows)(const LinearCall &, long, long, long)>
static void rows_and_next(const LinearCall &c, const PackedLinear &packed, long panel, long begin, long end) {
    const uint8_t *next = c.next ? c.next : packed.data + (panel + 1) * packed.panel_bytes;
    const long bytes = c.next || panel + 1 < packed.panels ? (long)packed.panel_bytes : 0;
    const long slice = bytes * kRowBlock / (end - begin) / 64 * 64 + 64;
    const uint8_t *stop = next + bytes;
    for (long row = begin; row < end; row += kRowBlock) {
        for (const uint8_t *last = next + slice; next < last && next < stop; next += 64) __builtin_prefetch(next, 0, 2);
        Rows(c, panel, row, at_most(row + kRowBlock, end));
    }
}

// Few rows are multiplied by integers assembled in registers; more rows by a panel that is expanded to bytes once.
template <int Bits, bool Table> static bool planes(const LinearCall &c, long panel, long begin, long end) {
    const PackedLinear &l = *c.weight;
    const bool integers = l.activation == kQuantInt8;
#ifdef CORE_TILES
    if (integers) begin = tile_planes<Bits, Table>(c, panel, begin, end);
#endif
    if constexpr (kDirectPlanes) {
        if (integers && end - begin <= (Table ? kDirectRows : kMostDirect<Bits>)) {
            if (l.has_zeros)
                panel_rows<PlanesDotKind<Bits, Table, !Table>>(c, panel, begin, end); // codebook tables have no zero points
            else
                panel_rows<PlanesDotKind<Bits, Table, false>>(c, panel, begin, end);
            return true;
        }
    }
    const PackedLinear spread = spread_form(l);
    Scratch scratch(spread.panel_bytes);
    if (!scratch.memory) return false;
    spread_panel<Bits, Table>(l, spread, l.data + panel * l.panel_bytes, (uint8_t *)scratch.memory);
    LinearCall call = c;
    call.weight = &spread, call.panel = (const uint8_t *)scratch.memory;
    if (!integers)
        rows_and_next<panel_rows<GroupFloatKind<IntDecode<8>>>>(call, l, panel, begin, end);
    else if (l.has_zeros)
        rows_and_next<panel_rows<IntDotKind<kSmallBytes, false, true>>>(call, l, panel, begin, end);
    else
        rows_and_next<panel_rows<IntDotKind<Table ? kBytes : kSmallBytes, false, false>>>(call, l, panel, begin, end);
    return true;
}

LANE bool bf16(const LinearCall &c, long panel, long begin, long end) {
#ifdef CORE_BF16_DOT
    if (c.weight->activation == kRoundBF16) return bf16_rows(c, panel, begin, end);
#endif
    panel_rows<BF16Kind>(c, panel, begin, end);
    return true;
}

LANE void plain_or_groups(const LinearCall &c, long panel, long begin, long end) {
    const PackedLinear &l = *c.weight;
    switch (l.format) {
    case kF32: return panel_rows<FloatKind<float>>(c, panel, begin, end);
    case kF16: return panel_rows<FloatKind<uint16_t>>(c, panel, begin, end);
    case kInt4: return int_groups<4>(c, panel, begin, end);
    case kInt8: return int_groups<8>(c, panel, begin, end);
    case kCode4:
        if (l.activation == kQuantInt8) return table_groups(c, panel, begin, end);
        return float_groups<CodeDecode>(c, panel, begin, end);
    case kE4M3: return float_groups<NarrowDecode<E4M3>>(c, panel, begin, end);
    case kE5M2: return float_groups<NarrowDecode<E5M2>>(c, panel, begin, end);
    }
}

static bool linear(const LinearCall *c, long panel, long begin, long end) {
    switch (c->weight->format) {
    case kBF16: return bf16(*c, panel, begin, end);
    case kPlanes2: return planes<2, false>(*c, panel, begin, end);
    case kPlanes3: return planes<3, false>(*c, panel, begin, end);
    case kPlanes4: return planes<4, false>(*c, panel, begin, end);
    case kPlanes5: return planes<5, false>(*c, panel, begin, end);
    case kPlanes6: return planes<6, false>(*c, panel, begin, end);
    case kPlanesCode4: return planes<4, true>(*c, panel, begin, end);
    case kPlanesCode3: return planes<3, true>(*c, panel, begin, end);
    }
    plain_or_groups(*c, panel, begin, end);
    return true;
}

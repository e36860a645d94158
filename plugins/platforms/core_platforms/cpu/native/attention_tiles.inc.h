// Attention in tiles (tiles_amx.h) over caches whose products are of bfloat16. Included where a set has them.
//
// The softmax and the merging of spans are those of the vectors. A score is a sum of 32 dimensions at a time, an output one
// of 32 keys at a time, at absolute positions, in one row of a tile: so a row's bits depend neither on the rows of its task
// nor on how many they are. Keys that a row does not see have the weight 0. Up to four rows are computed by vectors that add
// in the same order (attention_few.inc.h).
//
// The cache's keys lie as tiles read them. Values are copied for each span, once for all rows of the task: a block may
// hold fewer than the 32 keys of a tile, and what is not written yet has to be 0, since 0 * NaN is NaN. Numbers of 8 and 4
// bits are widened on the way, and keys are padded with 0 where 32 does not divide their width.

constexpr long kQueryTile = 16, kBlockRows = 2 * kQueryTile; // rows of a tile; rows that are computed together
constexpr long kPairTileBytes = 1024;
constexpr long kScoreStride = kSpan + 16;         // floats
constexpr long kWeightStride = 2 * (kSpan + 32);  // bytes: whole lines, an odd number of them
static_assert(kMaxHead % 32 == 0, "padded keys and queries have no room");

struct TileScratch { // working memory of one task
    Row row[kMostTaskRows];
    float maximum[kMostTaskRows], total[kMostTaskRows];
    alignas(64) float sums[kMostTaskRows * kWidest];
    alignas(64) uint8_t q[kMostTaskRows * (2 * kMaxHead + 64)];
    // The following hold one block of rows and one span.
    alignas(64) float scores[kBlockRows * kScoreStride];
    alignas(64) uint8_t weights[kBlockRows * kWeightStride];
    alignas(64) float out[kBlockRows * kWidest];
    alignas(64) float peaks[kBlockRows], totals[kBlockRows];
    alignas(64) uint8_t k[kSpan * kMaxHead * 2]; // padded or widened: [group of 16 keys][dim / 2][16][2]
    alignas(64) uint8_t v[kSpan * kMaxHead * 2]; // [32 keys][16 columns] tiles of [16][16][2]
    SpanScratch span;
};
static_assert(sizeof(TileScratch) <= kAttentionBytes, "a task's memory is too small");

// The lines of the next span, which are fetched during all of the work on this one: values, then keys. Lines of four parts
// are fetched in turn, since the processor itself goes on with each; of one part at a time they take half as long again.
constexpr long kPartsAtOnce = 4, kCopyPercent = 30, kScorePercent = 40; // the rest while values are multiplied
struct NextLines {
    const uint8_t *parts[2 * kGroups + kPartsAtOnce];
    long count, part, line; // parts; the first of those that are fetched in turn, and the line of each that comes next
    long v_parts, v_lines, k_lines;
    long per_copy, per_score, per_weight; // lines after a row of a copy, and after a tile of keys and of values
};

struct TiledSpan { // what tiles read of one span
    const uint8_t *k[kGroups], *v[kGroups]; // null where no row of the task sees a key
    long from[kGroups], to[kGroups];        // keys of each group that any row sees
    NextLines next;
};

LANE void fetch_next(NextLines &next, long lines) {
    for (; lines > 0 && next.part < next.count; lines -= kPartsAtOnce) {
        for (long i = 0; i < kPartsAtOnce; i++) fetch(next.parts[next.part + i] + next.line * 64);
        if (++next.line < (next.part < next.v_parts ? next.v_lines : next.k_lines)) continue;
        next.part += kPartsAtOnce, next.line = 0;
    }
}

LANE long key_steps(const AttentionCall &c) { return (c.dim + 31) / 32; }
LANE long value_tiles(const AttentionCall &c) { return (c.dim_v + 15) / 16; }
LANE long query_stride(const AttentionCall &c) { return (key_steps(c) | 1) * 64; } // an odd number of lines
// The first column of a tile of values; the last tile may recompute a few.
LANE long tile_column(const AttentionCall &c, long tile) { return tile * 16 < c.dim_v - 16 ? tile * 16 : c.dim_v - 16; }

// Whether values are widened while they are copied.
LANE bool widens_to_tiles(const AttentionCall &c) {
    return element_widens(c.element) && !c.latent && (c.element != kCacheK8V4 || c.dim_v % 64 == 0);
}

// Bytes of two values in the form of the cache.
template <int Element> LANE long value_row_bytes(long dim_v) {
    return Element == kCacheBF16 ? dim_v * 4 : Element == kCacheK8V4 ? dim_v : dim_v * 2;
}

// Sixteen columns of two values, widened.
template <int Element> LANE I value_pairs(const Levels &levels, const uint8_t *row, long column, long dim_v) {
    if constexpr (Element == kCacheBF16) {
        return iload(row + column * 4);
    } else if constexpr (Element == kCacheK8V4) {
        const I codes = iload(row + column % (dim_v / 4) * 4);
        switch (column / (dim_v / 4)) {
        case 0: return level_pairs<0>(levels, codes);
        case 1: return level_pairs<4>(levels, codes);
        case 2: return level_pairs<8>(levels, codes);
        default: return level_pairs<12>(levels, codes);
        }
    } else {
        return widen<Element>(row + column * 2);
    }
}

// Copies the values of 32 keys to `out` [tiles][16][16][2]. Keys that no row sees become 0.
template <int Element> LANE void copy_values(const AttentionCall &c, TiledSpan &span, long keys, uint8_t *out) {
    const Levels levels;
    const long row_bytes = value_row_bytes<Element>(c.dim_v), count = value_tiles(c);
    for (long g = 2 * keys; g < 2 * keys + 2; g++)
        for (long i = 0; i < 8; i++, out += 64) {
            const long from = span.from[g], to = span.to[g], key = 2 * i;
            const bool low = key >= from && key < to, high = key + 1 >= from && key + 1 < to;
            fetch_next(span.next, span.next.per_copy);
            const I mask = iset1((int32_t)((low ? 0xffff : 0) | (high ? 0xffff0000 : 0)));
            for (long j = 0; j < count; j++) {
                I pairs = izero();
                const uint8_t *row = span.v[g] + i * row_bytes;
                if (low || high) pairs = iand(value_pairs<Element>(levels, row, tile_column(c, j), c.dim_v), mask);
                istore(out + j * kPairTileBytes, pairs);
            }
        }
}

static void copy_any_values(const AttentionCall &c, TiledSpan &span, long keys, uint8_t *out) {
    if (!widens_to_tiles(c)) return copy_values<kCacheBF16>(c, span, keys, out);
    if (c.element == kCacheI8) return copy_values<kCacheI8>(c, span, keys, out);
    if (c.element == kCacheE4M3) return copy_values<kCacheE4M3>(c, span, keys, out);
    if (c.element == kCacheE5M2) return copy_values<kCacheE5M2>(c, span, keys, out);
    copy_values<kCacheK8V4>(c, span, keys, out);
}

// Sixteen keys as tiles read them: where they are, or widened and padded (the padding of `to` is 0 already).
LANE const uint8_t *tiled_keys(const AttentionCall &c, const uint8_t *k, uint8_t *to) {
    const bool widens = widens_to_tiles(c);
    if (!widens && c.dim % 32 == 0) return k;
    if (widens)
        widen_any(c.element, k, to, c.dim);
    else
        memcpy(to, k, c.dim * 32);
    return to;
}

// Lists the lines of the span after `span`, and distributes them over the work by the time that each kind of work takes.
static void list_next(const AttentionCall &c, const Span &span, NextLines &next) {
    next.k_lines = key_bytes(c.element, 16 * c.dim) / 64, next.v_lines = value_bytes(c.element, 16 * c.dim_v) / 64;
    next.count = next.part = next.line = next.v_parts = 0;
    long groups = 0;
    for (int keys = c.latent; keys < 2; keys++) {
        for (long g = 0; g < kGroups; g++)
            if (span.k[g] && span.ahead[g]) next.parts[next.count++] = (keys ? span.k[g] : span.v[g]) + span.ahead[g];
        for (; next.count % kPartsAtOnce; next.count++) next.parts[next.count] = next.parts[next.count - 1];
        if (!keys) next.v_parts = next.count;
    }
    for (long g = 0; g < kGroups; g++) groups += span.k[g] != nullptr;
    groups = groups ? groups : 1;
    const long lines = next.v_parts * next.v_lines + (next.count - next.v_parts) * next.k_lines;
    next.per_copy = lines * kCopyPercent / 100 / (8 * groups) + 1;
    next.per_score = lines * kScorePercent / 100 / (groups * key_steps(c)) + 1;
    next.per_weight = lines / (groups * value_tiles(c) / 2 + 1) + 1; // all that are left
}

// Prepares the keys in [low, high) of a span for tiles.
static void tile_span(const AttentionCall &c, const AttentionTask &t, TileScratch &s, Span &span, long low, long high,
                      TiledSpan &to) {
    locate(c, t, s.span, span, low, high, widens_to_tiles(c));
    list_next(c, span, to.next);
    const long count = value_tiles(c);
    for (long g = 0; g < kGroups; g++) {
        const long key = span.first + g * 16;
        to.k[g] = nullptr, to.v[g] = span.v[g];
        to.from[g] = clamp(low - key, 0, 16), to.to[g] = span.k[g] ? clamp(high - key, 0, 16) : 0;
        if (span.k[g]) to.k[g] = tiled_keys(c, span.k[g], s.k + g * key_steps(c) * kPairTileBytes);
    }
    for (long keys = 0; keys < kGroups / 2; keys++)
        if (span.k[2 * keys] || span.k[2 * keys + 1]) copy_any_values(c, to, keys, s.v + keys * count * kPairTileBytes);
}

// The keys' padding up to a whole number of tiles.
static void clear_padding(const AttentionCall &c, TileScratch &s) {
    const long group = key_steps(c) * kPairTileBytes, used = c.dim * 32;
    for (long g = 0; g < kGroups && used < group; g++) memset(s.k + g * group + used, 0, group - used);
}

// The scores of up to sixteen rows by four groups of keys at a time.
static void score_tile(const AttentionCall &c, TileScratch &s, TiledSpan &span, const uint8_t *q, long begin, long end) {
    const long steps = key_steps(c), stride = query_stride(c);
    for (long g = begin; g < end; g += 4) {
        const uint8_t *k[4];
        const long groups = at_most(end - g, 4);
        for (long i = 0; i < groups; i++) k[i] = span.k[g + i];
        tile_clear<0>(), tile_clear<1>(), tile_clear<2>(), tile_clear<3>();
        for (long i = 0; i < steps; i++) {
            tile_load<4>(q + i * 64, stride);
            tile_load<6>(k[0] + i * kPairTileBytes, 64), tile_multiply_bf16<0, 4, 6>();
            if (groups > 1) tile_load<7>(k[1] + i * kPairTileBytes, 64), tile_multiply_bf16<1, 4, 7>();
            if (groups > 2) tile_load<6>(k[2] + i * kPairTileBytes, 64), tile_multiply_bf16<2, 4, 6>();
            if (groups > 3) tile_load<7>(k[3] + i * kPairTileBytes, 64), tile_multiply_bf16<3, 4, 7>();
            fetch_next(span.next, groups * span.next.per_score);
        }
        float *to = s.scores + g * 16;
        tile_store<0>(to, 4 * kScoreStride);
        if (groups > 1) tile_store<1>(to + 16, 4 * kScoreStride);
        if (groups > 2) tile_store<2>(to + 32, 4 * kScoreStride);
        if (groups > 3) tile_store<3>(to + 48, 4 * kScoreStride);
    }
}

// The same of 32 rows by two groups of keys. A group past the end repeats its neighbour.
static void score_tiles(const AttentionCall &c, TileScratch &s, TiledSpan &span, const uint8_t *q, long begin, long end) {
    const long steps = key_steps(c), stride = query_stride(c);
    for (long g = begin; g < end; g += 2) {
        const uint8_t *k = span.k[g], *other = span.k[at_most(g + 1, end - 1)];
        tile_clear<0>(), tile_clear<1>(), tile_clear<2>(), tile_clear<3>();
        for (long i = 0; i < steps; i++) {
            tile_load<4>(q + i * 64, stride), tile_load<6>(k + i * kPairTileBytes, 64), tile_multiply_bf16<0, 4, 6>();
            tile_load<7>(other + i * kPairTileBytes, 64), tile_multiply_bf16<1, 4, 7>();
            tile_load<5>(q + kQueryTile * stride + i * 64, stride);
            tile_multiply_bf16<2, 5, 6>(), tile_multiply_bf16<3, 5, 7>();
            fetch_next(span.next, 2 * span.next.per_score);
        }
        float *to = s.scores + g * 16, *below = to + kQueryTile * kScoreStride;
        tile_store<0>(to, 4 * kScoreStride), tile_store<2>(below, 4 * kScoreStride);
        tile_store<1>(to + 16, 4 * kScoreStride), tile_store<3>(below + 16, 4 * kScoreStride);
    }
}

// The outputs of up to sixteen rows, four tiles of columns at a time, of the keys in [begin, end) * 32.
static void weigh_tile(const AttentionCall &c, TileScratch &s, NextLines &next, long begin, long end) {
    const long count = value_tiles(c);
    for (long tile = 0; tile < count; tile += 4) {
        const long tiles = at_most(count - tile, 4);
        tile_clear<0>(), tile_clear<1>(), tile_clear<2>(), tile_clear<3>();
        for (long i = begin; i < end; i++) {
            const uint8_t *v = s.v + (i * count + tile) * kPairTileBytes;
            tile_load<4>(s.weights + i * 64, kWeightStride);
            tile_load<6>(v, 64), tile_multiply_bf16<0, 4, 6>();
            if (tiles > 1) tile_load<7>(v + kPairTileBytes, 64), tile_multiply_bf16<1, 4, 7>();
            if (tiles > 2) tile_load<6>(v + 2 * kPairTileBytes, 64), tile_multiply_bf16<2, 4, 6>();
            if (tiles > 3) tile_load<7>(v + 3 * kPairTileBytes, 64), tile_multiply_bf16<3, 4, 7>();
            fetch_next(next, tiles * next.per_weight);
        }
        tile_store<0>(s.out + tile_column(c, tile), 4 * kWidest);
        if (tiles > 1) tile_store<1>(s.out + tile_column(c, tile + 1), 4 * kWidest);
        if (tiles > 2) tile_store<2>(s.out + tile_column(c, tile + 2), 4 * kWidest);
        if (tiles > 3) tile_store<3>(s.out + tile_column(c, tile + 3), 4 * kWidest);
    }
}

// The same of 32 rows, two tiles of columns at a time. A tile past the end repeats its neighbour.
static void weigh_tiles(const AttentionCall &c, TileScratch &s, NextLines &next, long begin, long end) {
    const long count = value_tiles(c);
    for (long tile = 0; tile < count; tile += 2) {
        const long other = at_most(tile + 1, count - 1);
        tile_clear<0>(), tile_clear<1>(), tile_clear<2>(), tile_clear<3>();
        for (long i = begin; i < end; i++) {
            const uint8_t *v = s.v + i * count * kPairTileBytes, *x = s.weights + i * 64;
            tile_load<4>(x, kWeightStride), tile_load<6>(v + tile * kPairTileBytes, 64), tile_multiply_bf16<0, 4, 6>();
            tile_load<7>(v + other * kPairTileBytes, 64), tile_multiply_bf16<1, 4, 7>();
            tile_load<5>(x + kQueryTile * kWeightStride, kWeightStride);
            tile_multiply_bf16<2, 5, 6>(), tile_multiply_bf16<3, 5, 7>();
            fetch_next(next, 2 * next.per_weight);
        }
        float *to = s.out + tile_column(c, tile), *beside = s.out + tile_column(c, other);
        tile_store<0>(to, 4 * kWidest), tile_store<2>(to + kQueryTile * kWidest, 4 * kWidest);
        tile_store<1>(beside, 4 * kWidest), tile_store<3>(beside + kQueryTile * kWidest, 4 * kWidest);
    }
}

// The keys of a span that each of some rows sees, [low, high), and any of them, [first, last). False: there are none.
LANE bool seen_keys(TileScratch &s, const Span &span, long row, long rows, long *low, long *high, long &first, long &last) {
    first = kSpan, last = 0;
    for (long r = 0; r < rows; r++) {
        row_range(s.row[row + r], low[r], high[r]);
        low[r] = clamp(low[r] - span.first, 0, kSpan), high[r] = clamp(high[r] - span.first, 0, kSpan);
        s.totals[r] = 0;
        if (low[r] >= high[r]) continue;
        first = low[r] < first ? low[r] : first, last = high[r] > last ? high[r] : last;
    }
    return first < last;
}

// Softmax and output of some rows, at most kBlockRows, over one span, into peaks, totals and out.
static void attend_tiled(const AttentionCall &c, TileScratch &s, const Span &span, TiledSpan &tiled, long row, long rows) {
    long low[kBlockRows], high[kBlockRows], first, last;
    if (!seen_keys(s, span, row, rows, low, high, first, last)) return;
    const long begin = first / 16, end = (last + 15) / 16;
    const uint8_t *q = s.q + row * query_stride(c);
    rows > kQueryTile ? score_tiles(c, s, tiled, q, begin, end) : score_tile(c, s, tiled, q, begin, end);
    for (long r = 0; r < rows; r++)
        softmax_row<true>(c, s.scores + r * kScoreStride, s.weights + r * kWeightStride, span, s.row[row + r], begin, end, low[r],
                          high[r], s.peaks[r], s.totals[r]);
    rows > kQueryTile ? weigh_tiles(c, s, tiled.next, begin / 2, (end + 1) / 2)
                       : weigh_tile(c, s, tiled.next, begin / 2, (end + 1) / 2);
}

static void load_tiled_queries(const AttentionCall &c, const AttentionTask &t, TileScratch &s) {
    const long stride = query_stride(c), whole = (t.rows + kQueryTile - 1) / kQueryTile * kQueryTile;
    for (long r = 0; r < whole; r++) {
        memset(s.q + r * stride, 0, key_steps(c) * 64);
        if (r < t.rows) load_query<true>(c, s.row[r], s.q + r * stride);
    }
}

#include "attention_few.inc.h"

static void attend_all_tiled(const AttentionCall &c, const AttentionTask &t, TileScratch &s, long low, long high) {
    load_tiled_queries(c, t, s);
    clear_padding(c, s);
    const long rows = at_most(t.rows, kQueryTile);
    tiles_begin(rows, rows, 64);
    for (long i = t.span; i < t.span + t.spans; i++) {
        if (join_shared(c, t, s, i)) continue;
        Span span;
        TiledSpan tiled;
        span.first = i * kSpan;
        tile_span(c, t, s, span, low, high, tiled);
        for (long row = 0; row < t.rows; row += kBlockRows) {
            const long rows = at_most(kBlockRows, t.rows - row);
            attend_tiled(c, s, span, tiled, row, rows);
            keep_rows(c, t, s, span, row, rows);
        }
    }
    tiles_end();
}

static void attention_tiled(const AttentionCall &c, const AttentionTask &t, TileScratch &s) {
    long low, high;
    begin_rows(c, t, s, low, high);
    t.rows <= kFewRows ? attend_all_few(c, t, s, low, high) : attend_all_tiled(c, t, s, low, high);
    finish_rows(c, t, s);
}

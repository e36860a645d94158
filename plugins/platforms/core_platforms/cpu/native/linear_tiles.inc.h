// Products in tiles (tiles_amx.h) of bf16 and of bytes that are one group a row. Included by linear.inc.h, where a set has tiles.
//
// A panel is multiplied a part at a time, by all rows of a call: a part of the weights stays in the first-level cache, sums wait
// in memory. Sums of integers are exact, so tiles give the bits of every other instruction set. bf16 is different: a tile adds
// even and odd products apart, so every row is multiplied in tiles, also one that is alone, and its bits depend on k alone.

constexpr long kTileRows = 16, kTileBytes = 64;
constexpr long kMostPairs = kMostRowChunk / kTileRows;
constexpr long kPartBytes = 16 * 1024; // of weights: a third of the first-level cache, beside rows and sums; other sizes were not tried
constexpr long kSinglePrefetch = 6144; // bytes ahead, where rows are few and memory is the limit
constexpr long kLeastTileRows = 4;     // fewer rows of integers are left to vectors

// The largest multiple of `unit` up to `most` that divides `size`.
LANE long tile_step(long size, long unit, long most) {
    long step = at_most(size, most) / unit * unit;
    while (size % step) step -= unit;
    return step;
}

// The four tiles of sums: [block of rows][vector of outputs].
struct alignas(64) TileSums {
    float lanes[2][2][16][16]; // of bytes: the bits of integers
};

struct TileRows { // the first row, and the rows of both blocks
    long row, first, second;
};

// Bytes that are read later, brought into the cache a piece at a time.
struct Ahead {
    const uint8_t *next, *end;
    long piece;
    __attribute__((always_inline)) void bring() {
        for (const uint8_t *last = next + piece; next < last && next < end; next += 64) __builtin_prefetch(next, 0, 2);
    }
};

// Inputs [begin, end) of a row, counted in bytes, and the weights that they multiply.
struct TilePart {
    const uint8_t *w;
    long begin, end;
    bool first, last; // of a segment
};

LANE const uint8_t *panel_data(const LinearCall &c, long panel) {
    return c.panel ? c.panel : c.weight->data + panel * c.weight->panel_bytes;
}
// The data that is read after this panel, or null.
LANE const uint8_t *panel_after(const LinearCall &c, long panel) {
    return c.next ? c.next : panel + 1 < c.weight->panels ? c.weight->data + (panel + 1) * c.weight->panel_bytes : nullptr;
}

// Brings, while a part is multiplied, what the next one reads: of this panel, or of the one after it.
static Ahead ahead_of(const LinearCall &c, long panel, long end, long size, long bytes, long pieces) {
    const long held = (long)c.weight->panel_bytes, from = held * end / bytes, count = held * size / bytes;
    const uint8_t *next = end < bytes ? panel_data(c, panel) + from : panel_after(c, panel);
    return {next, next ? next + count : next, ceil_div(count, pieces * 64) * 64};
}

// Multiplies rows [begin, end) by a panel. Kind: the panel and its sums;
//   kPairRows                     rows that are multiplied together: one block or two
//   segments, bytes, step, most   of k; bytes of a row's inputs in a segment, in a tile, and in a part at most
//   weights(begin, end)           the weights of a part
//   sums(segment)                 [pairs] where a segment's sums are kept
//   multiply<Both>(part, rows, sums, ahead), end<Both>(rows, pair, segment)
template <class Kind> static void tile_panel(const LinearCall &c, long panel, long begin, long end, Kind kind) {
    const long pairs = ceil_div(end - begin, Kind::kPairRows), bytes = kind.segments * kind.bytes;
    long shape = 0;
    for (long segment = 0; segment < kind.segments; segment++) {
        TileSums *sums = kind.sums(segment);
        const long stop = (segment + 1) * kind.bytes;
        for (TilePart part = {nullptr, stop - kind.bytes, 0, true, false}; part.begin < stop; part.begin = part.end, part.first = false) {
            part.end = at_most(part.begin + kind.most, stop), part.last = part.end == stop;
            part.w = kind.weights(part.begin, part.end);
            Ahead ahead = ahead_of(c, panel, part.end, at_most(kind.most, kind.bytes), bytes, pairs * kind.pieces(part));
            for (long pair = 0; pair < pairs; pair++) {
                const long row = begin + pair * Kind::kPairRows, first = at_most(end - row, kTileRows);
                const TileRows rows = {row, first, at_most(end - row - first, Kind::kPairRows - kTileRows)};
                if (shape != (rows.first << 8 | rows.second)) {
                    if (shape) tiles_end();
                    tiles_begin(rows.first, rows.second ? rows.second : rows.first, kind.step);
                    shape = rows.first << 8 | rows.second;
                }
                if (rows.second)
                    kind.template multiply<true>(part, rows, sums[pair], ahead);
                else
                    kind.template multiply<false>(part, rows, sums[pair], ahead);
                if (!part.last) continue;
                rows.second ? kind.template end<true>(rows, pair, segment) : kind.template end<false>(rows, pair, segment);
            }
        }
    }
    tiles_end();
}

// Writes what `value` makes of the sums of each row and vector.
template <bool Both, class Value>
LANE void finish_sums(const LinearCall &c, long panel, const TileRows &rows, const TileSums &sums, Value value) {
    for (int v = 0; v < 2; v++)
        for (long r = 0; r < rows.first + (Both ? rows.second : 0); r++)
            finish(c, panel * kPanel + v * 16, rows.row + r, value(sums.lanes[r / kTileRows][v][r % kTileRows], rows.row + r, v));
}

// Sums of floats: those of segments are added as a binary tree, as `block` adds them.
struct TileFloats {
    const LinearCall &c;
    long panel, segments;
    TileSums *memory; // [kSegmentLevels + 1][kMostPairs]
    static constexpr size_t kMemory = sizeof(TileSums) * (kSegmentLevels + 1) * kMostPairs;

    LANE long level(long segment) { // of the subtree that the segment completes; the last level holds the sum of all
        long level = 0;
        while (segment >> level & 1) level++;
        return level;
    }
    TileSums *sums(long segment) const {
        return memory + (segment + 1 == segments ? kSegmentLevels : level(segment)) * kMostPairs;
    }
    template <bool Both> void end(const TileRows &rows, long pair, long segment) const {
        TileSums &own = sums(segment)[pair];
        for (long done = 0; done < level(segment); done++) {
            const TileSums &left = memory[done * kMostPairs + pair];
            for (int b = 0; b <= Both; b++)
                for (int v = 0; v < 2; v++)
                    for (long r = 0; r < (b ? rows.second : rows.first); r++)
                        store(own.lanes[b][v][r], add(load(left.lanes[b][v][r]), load(own.lanes[b][v][r])));
        }
        if (segment + 1 < segments) return;
        finish_sums<Both>(c, panel, rows, own, [](const float *sum, long, int) __attribute__((always_inline)) { return load(sum); });
    }
};

template <bool Both> LANE void tiles_clear() {
    tile_clear<0>(), tile_clear<1>();
    if (Both) tile_clear<2>(), tile_clear<3>();
}
template <bool Both> LANE void tiles_load(const TileSums &sums) {
    tile_load<0>(sums.lanes[0][0], kTileBytes), tile_load<1>(sums.lanes[0][1], kTileBytes);
    if (Both) tile_load<2>(sums.lanes[1][0], kTileBytes), tile_load<3>(sums.lanes[1][1], kTileBytes);
}
template <bool Both> LANE void tiles_store(TileSums &sums) {
    tile_store<0>(sums.lanes[0][0], kTileBytes), tile_store<1>(sums.lanes[0][1], kTileBytes);
    if (Both) tile_store<2>(sums.lanes[1][0], kTileBytes), tile_store<3>(sums.lanes[1][1], kTileBytes);
}

struct OfBF16 {
    template <int Sums, int Inputs, int Weights> LANE void multiply() { tile_multiply_bf16<Sums, Inputs, Weights>(); }
};
struct OfBytes {
    template <int Sums, int Inputs, int Weights> LANE void multiply() { tile_multiply<Sums, Inputs, Weights, false>(); }
};

// Multiplies a part, whose sums stay in the tiles.
template <class Elements, bool Both>
LANE void multiply_part(const LinearCall &c, const TilePart &part, long step, const TileRows &rows, TileSums &sums, Ahead &ahead) {
    const long stride = (long)c.staged_stride;
    const uint8_t *x = row_staged(c, rows.row) + part.begin, *w = part.w;
    part.first ? tiles_clear<Both>() : tiles_load<Both>(sums);
    for (long at = part.begin; at < part.end; at += step, x += step, w += step * kPanel) {
        for (long r = 0; r < (Both ? 2 * kTileRows : 0); r++) __builtin_prefetch(x + 2 * kTileBytes + r * stride);
        if (Both)
            ahead.bring();
        else
            for (long line = 0; line < step * kPanel; line += 64) __builtin_prefetch(w + kSinglePrefetch + line);
        tile_load<4>(x, stride), tile_load<6>(w, kPanel * 4), tile_load<7>(w + 64, kPanel * 4);
        Elements::template multiply<0, 4, 6>(), Elements::template multiply<1, 4, 7>();
        if (!Both) continue;
        tile_load<5>(x + kTileRows * stride, stride);
        Elements::template multiply<2, 5, 6>(), Elements::template multiply<3, 5, 7>();
    }
    tiles_store<Both>(sums);
}

struct BF16Panel : TileFloats {
    static constexpr long kPairRows = 2 * kTileRows;
    const uint8_t *data;
    long bytes, step, most;
    long pieces(const TilePart &part) const { return (part.end - part.begin) / step; }
    const uint8_t *weights(long begin, long) const { return data + begin * kPanel; }
    template <bool Both> void multiply(const TilePart &part, const TileRows &rows, TileSums &sums, Ahead &ahead) const {
        multiply_part<OfBF16, Both>(c, part, step, rows, sums, ahead);
    }
};

static bool bf16_rows(const LinearCall &c, long panel, long begin, long end) {
    const PackedLinear &l = *c.weight;
    const long pairs = (l.k + 1) / 2 / l.segments, step = 4 * tile_step(pairs, 1, kTileBytes / 4);
    Scratch scratch(TileFloats::kMemory);
    if (!scratch.memory) return false;
    const long most = kPartBytes / kPanel / step * step;
    tile_panel(c, panel, begin, end, BF16Panel{{c, panel, l.segments, (TileSums *)scratch.memory}, panel_data(c, panel), 4 * pairs, step, most});
    return true;
}

// Bytes that are one group a row: a scale for each output, and one for each row.
struct BytesPanel {
    static constexpr long kPairRows = 2 * kTileRows;
    const LinearCall &c;
    long panel;
    const uint8_t *data;
    TileSums *memory; // [kMostPairs]
    F scale[2];
    long bytes, step, most, segments;
    long pieces(const TilePart &part) const { return (part.end - part.begin) / step; }
    const uint8_t *weights(long begin, long) const { return data + begin * kPanel; }
    TileSums *sums(long) const { return memory; }
    template <bool Both> void multiply(const TilePart &part, const TileRows &rows, TileSums &sums, Ahead &ahead) const {
        multiply_part<OfBytes, Both>(c, part, step, rows, sums, ahead);
    }
    template <bool Both> void end(const TileRows &rows, long pair, long) const {
        finish_sums<Both>(c, panel, rows, memory[pair], [&](const float *sum, long row, int v) __attribute__((always_inline)) {
            const I dot = iadd(iset1(c.meta[row].correction), iload(sum));
            return mul(mul(to_float(dot), set1(c.meta[row].scale)), scale[v]);
        });
    }
};

// Returns the first row that is left.
static long byte_rows(const LinearCall &c, long panel, long begin, long end) {
    const PackedLinear &l = *c.weight;
    if (end - begin < kLeastTileRows || l.group % 4) return begin;
    Scratch scratch(sizeof(TileSums) * kMostPairs);
    if (!scratch.memory) return begin; // vectors need none
    const uint8_t *data = panel_data(c, panel), *tail = data + l.value_bytes;
    const F low = scales(tail, l.scale_type, 0), high = scales(tail, l.scale_type, 1);
    const long step = tile_step(l.group, 4, kTileBytes), most = kPartBytes / kPanel / step * step;
    tile_panel(c, panel, begin, end, BytesPanel{c, panel, data, (TileSums *)scratch.memory, {low, high}, l.group, step, most, 1});
    return end;
}

// Stages the inputs of a packed product as its activation scheme requires: rounded to bf16, quantized to bytes, or
// padded. Inputs that a checkpoint declares as narrow numbers are rounded to these first.
//
// A staged row has room for whole vectors beyond k and beyond the last group; the product reads zeros there. Where rounded
// inputs are not what the product reads, they lie behind that.

LANE F load_padded(const float *x, long k, long end) { // x[k..k+16), zeros from `end` on
    if (k + 16 <= end) return load(x + k);
    return k < end ? load_part(x + k, end - k) : zero();
}
// Gathers the inputs that the weights k..k+16 multiply, zeros from `end` on.
template <bool Ordered> LANE F load_inputs(const PackedLinear &l, const float *x, long k, long end) {
    if (!Ordered) return load_padded(x, k, end);
    float lanes[16] = {0};
    for (long i = 0; i < 16 && k + i < end; i++) lanes[i] = x[l.order[k + i]];
    return load(lanes);
}
#include "rounding.inc.h"

LANE long grouped_width(const PackedLinear &l) { return l.groups * l.group > l.k ? l.groups * l.group : l.k; }

// Nearest bf16, ties to even, in the upper half of each lane. The NaN that arithmetic produces stays NaN.
LANE I bf16_bits(F x) {
    I bits = as_int(x);
    I odd = iand(shift_right<16>(bits), iset1(1));
    return iand(iadd(iadd(bits, iset1(0x7fff)), odd), iset1((int32_t)0xffff0000));
}


template <bool Ordered> LANE void stage_bf16(const LinearCall &c, long row, const float *x) {
    const PackedLinear &l = *c.weight;
    uint8_t *out = c.staged + row * c.staged_stride;
    for (long k = 0, end = grouped_width(l); k < end; k += 16) {
        F value = load_inputs<Ordered>(l, x, k, l.k);
#ifdef CORE_BF16_DOT
        if (l.groups)
            store_bf16_apart((uint16_t *)out + k, value);
        else
            store_bf16((uint16_t *)out + k, value);
#else
        store((float *)out + k, as_float(bf16_bits(value)));
#endif
    }
}

template <bool Ordered> LANE void stage_padded(const LinearCall &c, long row, const float *x) {
    const PackedLinear &l = *c.weight;
    float *out = (float *)(c.staged + row * c.staged_stride);
    for (long k = 0, end = grouped_width(l); k < end; k += 16) store(out + k, load_inputs<Ordered>(l, x, k, l.k));
}

// Quantizes to signed bytes in -127..127 with one scale, and fills in the sums that the product needs.
template <bool Ordered> LANE GroupMeta stage_group(const PackedLinear &l, const float *x, long begin, long end, int8_t *out) {
    const long last = at_most(end, l.k); // the next group's inputs are none of this one's
    F peak = zero();
    for (long k = begin; k < end; k += 16) peak = max(peak, abs(load_inputs<Ordered>(l, x, k, last)));
    float scale = largest(peak) / 127.0f;
    F inverse = set1(scale > 0 ? 1.0f / scale : 0);
    I total = izero();
    for (long k = begin; k < end; k += 16) {
        I value = round_to_int(mul(load_inputs<Ordered>(l, x, k, last), inverse));
        total = iadd(total, value);
        store_i8(out + k, value);
    }
    int32_t all = isum(total);
    return {scale * l.unit, -l.zero * all, scale * (float)all, (float)all};
}

// Computes a scale for each group of inputs, which are parts of the weight groups.
template <bool Ordered> LANE void stage_int8(const LinearCall &c, long row, const float *x) {
    const PackedLinear &l = *c.weight;
    int8_t *out = (int8_t *)c.staged + row * c.staged_stride;
    GroupMeta *meta = c.meta + row * l.input_groups;
    const long whole = l.groups * l.group;
    for (long start = 0; start < whole; start += l.group) {
        const long stop = start + l.group;
        for (long begin = start; begin < stop; begin += l.input_group)
            *meta++ = stage_group<Ordered>(l, x, begin, at_most(begin + l.input_group, stop), out);
    }
}

template <bool Ordered> LANE void stage_row(const LinearCall &c, long row, const float *x) {
    switch (c.weight->activation) {
    case kQuantInt8: return stage_int8<Ordered>(c, row, x);
    case kRoundBF16: return stage_bf16<Ordered>(c, row, x);
    }
    stage_padded<Ordered>(c, row, x);
}

// A tile reads the same bytes of sixteen rows, which would share a set of the cache if rows were whole pages apart.
LANE size_t apart(size_t bytes) {
#ifdef CORE_TILES
    return bytes / 64 % 2 ? bytes : bytes + 64;
#else
    return bytes;
#endif
}

// Bytes of what the product reads of one row; 0 where it reads the row in place.
static size_t read_bytes(const PackedLinear *l) {
    const size_t padded = (size_t)(grouped_width(*l) + 63) / 64 * 64;
    if (l->activation == kQuantInt8) return apart(padded);
    if (l->activation == kRoundBF16) {
#ifdef CORE_BF16_DOT
        return apart(padded * 2);
#else
        return padded * 4;
#endif
    }
    return l->order || l->rounding.rule || grouped_width(*l) > l->k ? padded * 4 : 0;
}

// Whether rounded inputs are what the product reads, so that they need no room of their own.
LANE bool reads_rounded(const PackedLinear &l) { return l.activation == kNone && !l.order; }

static void stage_rounded(const LinearCall &c, long row) {
    const PackedLinear &l = *c.weight;
    uint8_t *read = c.staged + row * c.staged_stride;
    const bool direct = reads_rounded(l);
    float *rounded = (float *)(direct ? read : read + read_bytes(&l));
    round_row(l, row_f32(c, row), rounded);
    if (direct) {
        memset(rounded + l.k, 0, read_bytes(&l) - l.k * sizeof(float));
        return;
    }
    l.order ? stage_row<true>(c, row, rounded) : stage_row<false>(c, row, rounded);
}

static void stage(const LinearCall *c, long begin, long end) {
    for (long row = begin; row < end; row++) {
        if (c->weight->rounding.rule)
            stage_rounded(*c, row);
        else
            c->weight->order ? stage_row<true>(*c, row, row_f32(*c, row)) : stage_row<false>(*c, row, row_f32(*c, row));
    }
}

// Bytes of one staged row; 0 when rows are read in place.
static size_t staged_bytes(const PackedLinear *l) {
    const size_t read = read_bytes(l), apart = (size_t)(l->k + 15) / 16 * 64;
    return l->rounding.rule && !reads_rounded(*l) ? read + apart : read;
}

#ifdef CORE_TILES
constexpr long kTableRowBlock = 2 * kTileRows;
constexpr size_t kChunkBytes = 1280 * 1024; // of staged rows, which stay in the second-level cache

// Tiles multiply so fast that a panel should be read, and expanded, for as many rows as possible.
static long row_chunk(const PackedLinear *l) {
    const size_t bytes = staged_bytes(l);
    if (!bytes) return kRowChunk;
    const long rows = (long)(kChunkBytes / bytes) / kTableRowBlock * kTableRowBlock;
    return rows < kRowChunk ? kRowChunk : at_most(rows, kMostRowChunk);
}
#else
constexpr long kTableRowBlock = kRowBlock;
static long row_chunk(const PackedLinear *) { return kRowChunk; }
#endif

// Packing of rows as they lie in a file: plain numbers, and blocks of GGUF. A row is read once and a panel written once.
//
// A test compares this way with that through canonical forms to the bit.
#include "native.h"
#include "pack_lanes.inc.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

constexpr long kSpanBytes = 256; // of each row before the next row's turn: the records written meanwhile stay in L1

// Each block type: the lanes it is written to, bytes and inputs of a block, and `put`, which returns whether its scales
// are finite.
struct Q4_0 {
    using Lane = Groups<4, 2>;
    static constexpr long kBytes = 18, kInputs = 32;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        put_nibbles<16, 16>(b, 2, out);
        return out.scale(b, 0);
    }
};

struct Q4_1 {
    using Lane = Groups<4, 2, true>;
    static constexpr long kBytes = 20, kInputs = 32;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        put_nibbles<16, 16>(b, 4, out);
        const bool finite = out.scale(b, 0);
        return out.minimum(b, 2) && finite;
    }
};

struct Q5_0 {
    using Lane = Planes<5>;
    static constexpr long kBytes = 22, kInputs = 32;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        put_nibbles<16, 16>(b, 6, out);
        out.high(0, 0, bit_word(b.word(2)));
        return out.scale(b, 0);
    }
};

struct Q5_1 {
    using Lane = Planes<5, 32, true>;
    static constexpr long kBytes = 24, kInputs = 32;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        put_nibbles<16, 16>(b, 8, out);
        out.high(0, 0, bit_word(b.word(4)));
        const bool finite = out.scale(b, 0);
        return out.minimum(b, 2, 0) && finite;
    }
};

struct Q8_0 {
    using Lane = Groups<8, 2>;
    static constexpr long kBytes = 34, kInputs = 32;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        for (long word = 0; word < 8; word += 4) {
            typename Rows::Word words[4];
            b.words(2 + 4 * word, words);
            for (long i = 0; i < 4; i++) out.low(0, word + i, words[i] ^ 0x80808080u);
        }
        return out.scale(b, 0);
    }
};

struct Q2_K {
    using Lane = Planes<2, 16, true, kSubNibbles>;
    static constexpr long kBytes = 84, kInputs = 256;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        put_pairs(b, 16, [&](long unit, long word, auto value) { out.low(unit, word, value); });
        for (long group = 0; group < 16; group += 4) out.subs(group, b.word(group));
        const bool finite = out.scale(b, 80);
        return out.minimum(b, 82, 0x8000) && finite;
    }
};

struct Q3_K {
    using Lane = Planes<3, 16, false, kSubBytes>;
    static constexpr long kBytes = 110, kInputs = 256;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        put_pairs(b, 32, [&](long unit, long word, auto value) { out.low(unit, word, value); });
        put_bits(b, 0, out);
        for (long group = 0; group < 16; group++)
            for (long i = 0; i < Rows::kLanes; i++) {
                const uint8_t low = b.row[i][96 + group % 8], high = b.row[i][104 + group % 4];
                out.sub(group)[i] = six_bits(low >> (group < 8 ? 0 : 4) & 15, high >> group / 4 * 2 & 3);
            }
        return out.scale(b, 108);
    }
};

struct Q4_K {
    using Lane = Planes<4, 32, true, kSubBytes>;
    static constexpr long kBytes = 144, kInputs = 256;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        put_nibbles<32, 128>(b, 16, out);
        return put_k_scales(b, out);
    }
};

struct Q5_K {
    using Lane = Planes<5, 32, true, kSubBytes>;
    static constexpr long kBytes = 176, kInputs = 256;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        put_nibbles<32, 128>(b, 48, out);
        put_bits(b, 16, out);
        return put_k_scales(b, out);
    }
};

struct Q6_K {
    using Lane = Planes<6, 16, false, kSubBytes>;
    static constexpr long kBytes = 210, kInputs = 256;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        put_nibbles<64, 128>(b, 0, out);
        put_pairs(b, 128, [&](long unit, long word, auto value) { out.high(unit, word, value); });
        for (long group = 0; group < 16; group += 4) out.subs(group, b.word(192 + group));
        return out.scale(b, 208);
    }
};

struct TQ2_0 {
    using Lane = Planes<2>;
    static constexpr long kBytes = 66, kInputs = 256;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        put_pairs(b, 0, [&](long unit, long word, auto value) { out.low(unit, word, value); });
        return out.scale(b, 64);
    }
};

struct IQ4_NL {
    using Lane = Planes<4>;
    static constexpr long kBytes = 18, kInputs = 32;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        put_nibbles<16, 16>(b, 2, out);
        return out.scale(b, 0);
    }
};

struct IQ4_XS {
    using Lane = Planes<4, 32, false, kSubBytes>;
    static constexpr long kBytes = 136, kInputs = 256;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        put_nibbles<16, 128>(b, 8, out);
        for (long group = 0; group < 8; group++)
            for (long i = 0; i < Rows::kLanes; i++) {
                const uint8_t low = b.row[i][4 + group / 2], high = b.row[i][2 + group / 4];
                out.sub(group)[i] = six_bits(low >> group % 2 * 4 & 15, high >> group % 4 * 2 & 3);
            }
        return out.scale(b, 0);
    }
};

struct MXFP4 {
    using Lane = Groups<4, 1>;
    static constexpr long kBytes = 17, kInputs = 32;
    template <class Rows> static bool put(const Rows &b, Lane out) {
        put_nibbles<16, 16>(b, 1, out);
        bool finite = true;
        for (long i = 0; i < Rows::kLanes; i++) {
            out.record[Lane::kValues + out.lane + i] = b.row[i][0];
            finite &= b.row[i][0] != 255;
        }
        return finite;
    }
};

// Packs blocks [start, stop) of as many lanes as Rows has.
template <class Block, class Rows>
bool pack_span(const uint8_t *const *rows, long lane, long start, long stop, uint8_t *stage) {
    constexpr long kRecord = Block::Lane::bytes(Block::kInputs);
    bool finite = true;
    for (long i = start; i < stop; i++) {
        Rows b;
        for (long j = 0; j < Rows::kLanes; j++) b.row[j] = rows[lane + j] + i * Block::kBytes;
        finite &= Block::put(b, {stage + (i - start) * kRecord, lane});
    }
    return finite;
}

// Copies a finished part of a panel to its place without reading the place first, as stores through the cache would.
void write_through(uint8_t *to, const uint8_t *from, long bytes) {
#if defined(__SSE2__)
    if (uintptr_t(to) % 16 == 0 && bytes % 16 == 0) {
        for (long at = 0; at < bytes; at += 16)
            _mm_stream_si128((__m128i *)(to + at), _mm_load_si128((const __m128i *)(from + at)));
        return;
    }
#endif
    memcpy(to, from, bytes);
}

// Orders what was written through before whatever other threads are told next.
void finish_writes() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// Blocks are packed to a stage in L1 and copied from there: a panel's records are written in pieces of 16 bytes, a cache line
// in four of them, and each line that was not in the cache was waited for (measured: 1.8 GB/s a thread without the stage).
template <class Block> bool pack_blocks(const uint8_t *const *rows, const PackedLinear &l, long lanes, uint8_t *data) {
    constexpr long kRecord = Block::Lane::bytes(Block::kInputs), kSpan = (kSpanBytes + Block::kBytes - 1) / Block::kBytes;
    alignas(64) uint8_t stage[kSpan * kRecord];
    if (lanes < kPanel) memset(stage, 0, sizeof(stage)); // lanes beyond n are multiplied too
    const long blocks = l.k / Block::kInputs;
    bool finite = long(l.panel_bytes) == blocks * kRecord && blocks * Block::kInputs == l.k;
    for (long start = 0; start < blocks && finite; start += kSpan) {
        const long stop = at_most(blocks, start + kSpan);
        // Behind the last span, the first one of the next panel, where its rows lie in most files.
        const long next = (stop < blocks ? stop : blocks * kPanel) * Block::kBytes;
        for (long lane = 0, width; lane < lanes; lane += width) {
            width = lane + 4 <= lanes ? 4 : 1;
            // Each row is a stream of its own: more of them than the hardware prefetcher follows.
            for (long row = lane; row < lane + width; row++)
                for (long at = 0; at < kSpan * Block::kBytes; at += 64) __builtin_prefetch(rows[row] + next + at);
            const bool fits = width == 4 ? pack_span<Block, FourRows>(rows, lane, start, stop, stage)
                                         : pack_span<Block, OneRow>(rows, lane, start, stop, stage);
            finite &= fits;
        }
        write_through(data + start * kRecord, stage, (stop - start) * kRecord);
    }
    finish_writes();
    return finite;
}

// Rows [lane, lane + Rows::kLanes) from byte `start` to `stop`, units of four bytes side by side.
template <class Rows> void word_span(const uint8_t *const *rows, long lane, long start, long stop, uint8_t *stage) {
    const long whole = start + (stop - start) / 16 * 16, units = stop / 4 * 4;
    Rows b;
    for (long i = 0; i < Rows::kLanes; i++) b.row[i] = rows[lane + i];
    for (long at = start; at < whole; at += 16) {
        typename Rows::Word words[4];
        b.words(at, words);
        for (long i = 0; i < 4; i++) memcpy(stage + ((at - start + 4 * i) * kPanel + lane * 4), words + i, sizeof(words[i]));
    }
    for (long i = 0; i < Rows::kLanes; i++) {
        uint8_t *to = stage + (lane + i) * 4 - start * kPanel;
        for (long at = whole; at < units; at += 4) store32(to + at * kPanel, load32(b.row[i] + at));
        if (units < stop) memcpy(to + units * kPanel, b.row[i] + units, stop - units);
    }
}

// Units are pairs of 2-byte numbers or single 4-byte ones.
void pack_words(const uint8_t *const *rows, long bytes, long lanes, uint8_t *panel) {
    alignas(64) uint8_t stage[kSpanBytes * kPanel];
    if (lanes < kPanel || bytes % 4) memset(stage, 0, sizeof(stage));
    for (long start = 0; start < bytes; start += kSpanBytes) {
        const long stop = at_most(bytes, start + kSpanBytes), next = stop < bytes ? stop : bytes * kPanel;
        for (long lane = 0, width; lane < lanes; lane += width) {
            width = lane + 4 <= lanes ? 4 : 1;
            for (long row = lane; row < lane + width; row++)
                for (long at = 0; at < kSpanBytes; at += 64) __builtin_prefetch(rows[row] + next + at);
            if (width == 4)
                word_span<FourRows>(rows, lane, start, stop, stage);
            else
                word_span<OneRow>(rows, lane, start, stop, stage);
        }
        write_through(panel + start * kPanel, stage, (stop - start + 3) / 4 * 4 * kPanel);
    }
    finish_writes();
}

void pack_halves(const uint8_t *const *rows, long k, long lanes, uint8_t *panel) {
    for (long start = 0; start < k; start += kSpanBytes / 2)
        for (long lane = 0; lane < lanes; lane++)
            for (long i = start; i < at_most(k, start + kSpanBytes / 2); i++)
                memcpy(panel + (i * kPanel + lane) * 2, rows[lane] + i * 2, 2);
}

} // namespace

bool pack_rows(int layout, const uint8_t *const *rows, const PackedLinear &l, long lanes, uint8_t *data) {
    if (layout <= kRowsBF16 && layout != l.format) return false;
    switch (layout) {
    case kRowsF32: pack_words(rows, l.k * 4, lanes, data); return true;
    case kRowsF16: pack_halves(rows, l.k, lanes, data); return true;
    case kRowsBF16: pack_words(rows, l.k * 2, lanes, data); return true;
    case kRowsQ4_0: return pack_blocks<Q4_0>(rows, l, lanes, data);
    case kRowsQ4_1: return pack_blocks<Q4_1>(rows, l, lanes, data);
    case kRowsQ5_0: return pack_blocks<Q5_0>(rows, l, lanes, data);
    case kRowsQ5_1: return pack_blocks<Q5_1>(rows, l, lanes, data);
    case kRowsQ8_0: return pack_blocks<Q8_0>(rows, l, lanes, data);
    case kRowsQ2_K: return pack_blocks<Q2_K>(rows, l, lanes, data);
    case kRowsQ3_K: return pack_blocks<Q3_K>(rows, l, lanes, data);
    case kRowsQ4_K: return pack_blocks<Q4_K>(rows, l, lanes, data);
    case kRowsQ5_K: return pack_blocks<Q5_K>(rows, l, lanes, data);
    case kRowsQ6_K: return pack_blocks<Q6_K>(rows, l, lanes, data);
    case kRowsTQ2_0: return pack_blocks<TQ2_0>(rows, l, lanes, data);
    case kRowsIQ4_NL: return pack_blocks<IQ4_NL>(rows, l, lanes, data);
    case kRowsIQ4_XS: return pack_blocks<IQ4_XS>(rows, l, lanes, data);
    case kRowsMXFP4: return pack_blocks<MXFP4>(rows, l, lanes, data);
    }
    return false;
}

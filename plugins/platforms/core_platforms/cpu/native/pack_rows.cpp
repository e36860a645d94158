// Packing of rows as they lie in a file: plain numbers, and blocks of GGUF. A row is read once and a panel written once.
//
// core_quantization/gguf/unpack.py and codes.py say where the fields of a block lie; a test compares the two ways to
// the bit.
#include "native.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

constexpr long kSpanBytes = 256; // of each row before the next row's turn: the records written meanwhile stay in L1

uint32_t load32(const uint8_t *p) {
    uint32_t word;
    memcpy(&word, p, 4);
    return word;
}

void store32(uint8_t *p, uint32_t word) { memcpy(p, &word, 4); }

// Words of four lanes side by side. Their stores are a quarter as many, and stores are what packing waits for.
typedef uint32_t Four __attribute__((vector_size(16)));
typedef uint8_t Bytes __attribute__((vector_size(16)));

// Bytes 0 of all four words, then bytes 1, 2 and 3.
Four transposed(Four words) {
    Bytes b = (Bytes)words;
    for (int i = 0; i < 2; i++)
        b = __builtin_shufflevector(b, b, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    return (Four)b;
}

// The block at one place of one row, or of four rows.
struct OneRow {
    typedef uint32_t Word;
    static constexpr long kLanes = 1;
    const uint8_t *row[1];
    Word word(long at) const { return load32(row[0] + at); }
    void words(long at, Word *out) const { memcpy(out, row[0] + at, 16); }
};
struct FourRows {
    typedef Four Word;
    static constexpr long kLanes = 4;
    const uint8_t *row[4];
    Word word(long at) const { return Four{load32(row[0] + at), load32(row[1] + at), load32(row[2] + at), load32(row[3] + at)}; }
    // Four words from `at` on of each row: a transpose takes half as many instructions as gathering word by word.
    void words(long at, Word *out) const {
        Four r[4];
        for (long i = 0; i < 4; i++) memcpy(r + i, row[i] + at, 16);
        const Four low01 = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), high01 = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
        const Four low23 = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5), high23 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
        out[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5), out[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
        out[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5), out[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
    }
};

// Copies a float16 and returns whether it is finite. flip: 0x8000 changes its sign.
bool copy_half(uint8_t *to, const uint8_t *from, uint16_t flip = 0) {
    uint16_t half;
    memcpy(&half, from, 2);
    const bool finite = (half & 0x7c00) != 0x7c00;
    half ^= flip;
    memcpy(to, &half, 2);
    return finite;
}

// The halves at one place of each row.
template <class Rows> bool copy_halves(uint8_t *to, const Rows &b, long at, uint16_t flip = 0) {
    bool finite = true;
    for (long i = 0; i < Rows::kLanes; i++) finite &= copy_half(to + 2 * i, b.row[i] + at, flip);
    return finite;
}

// One lane, or four, of a super-group's record, laid out as `set_plane_sizes` does.
template <int Bits, long Group = kUnit, bool Minimum = false, SubScales Sub = kNoSubScales> struct Planes {
    static constexpr long kLow = Bits < 4 ? 2 : 4, kGroups = kUnit / Group;
    static constexpr long kSub = Sub == kNoSubScales ? 0 : Sub == kSubBytes && Minimum ? 2 * kPanel : kPanel;
    static constexpr long kHead = (Minimum ? 2 : 1) * kPanel * 2, kUnitHead = kGroups * kSub;
    static constexpr long kUnitBytes = kUnitHead + kPanel * kUnit / 8 * Bits;
    static constexpr long bytes(long inputs) { return kHead + inputs / kUnit * kUnitBytes; }

    uint8_t *record;
    long lane;

    template <class Rows> bool scale(const Rows &b, long at) { return copy_halves(record + lane * 2, b, at); }
    template <class Rows> bool minimum(const Rows &b, long at, uint16_t flip) {
        return copy_halves(record + (kPanel + lane) * 2, b, at, flip);
    }
    // The sub-scale of a group; its sub-minimum lies kPanel behind it.
    uint8_t *sub(long group) { return record + kHead + group / kGroups * kUnitBytes + group % kGroups * kSub + lane; }
    // Sub-scales (or, with an offset of kPanel, sub-minima) of four groups: byte i of a word belongs to group first + i.
    void subs(long first, uint32_t word, long offset = 0) {
        for (long i = 0; i < 4; i++) sub(first + i)[offset] = uint8_t(word >> 8 * i);
    }
    void subs(long first, Four words, long offset = 0) {
        const Four by_group = transposed(words);
        for (long i = 0; i < 4; i++) store32(sub(first + i) + offset, by_group[i]);
    }
    template <class Word> void low(long unit, long word, Word value) {
        memcpy(record + kHead + unit * kUnitBytes + kUnitHead + (word * kPanel + lane) * 4, &value, sizeof(value));
    }
    template <class Word> void high(long unit, long word, Word value) {
        uint8_t *plane = record + kHead + unit * kUnitBytes + kUnitHead + kLow * kUnit * kPanel / 8;
        memcpy(plane + (word * kPanel + lane) * 4, &value, sizeof(value));
    }
};

// One lane, or four, of the record of a group of 4- or 8-bit integers or codes.
template <int Bits, long ScaleBytes, bool Minimum = false> struct Groups {
    static constexpr long kValues = kPanel * kUnit / 8 * Bits;
    static constexpr long bytes(long) { return kValues + (Minimum ? 2 : 1) * kPanel * ScaleBytes; }

    uint8_t *record;
    long lane;

    template <class Rows> bool scale(const Rows &b, long at) { return copy_halves(record + kValues + lane * 2, b, at); }
    template <class Rows> bool minimum(const Rows &b, long at) {
        return copy_halves(record + kValues + (kPanel + lane) * 2, b, at);
    }
    template <class Word> void low(long, long word, Word value) {
        memcpy(record + (word * kPanel + lane) * 4, &value, sizeof(value));
    }
};

// In each Width bytes from `at` on, all low nibbles come first, then all high ones. In a word of eight inputs, bytes hold
// input j low and input j + 4 high.
template <long Width, long Count, class Rows, class Lane> void put_nibbles(const Rows &b, long at, Lane &out) {
    const uint32_t nibbles = 0x0f0f0f0f;
    for (long i = 0; i < Count; i += 16) {
        typename Rows::Word words[4];
        b.words(at + i, words);
        for (long half = 0; half < 2; half++) {
            const typename Rows::Word one = words[2 * half], two = words[2 * half + 1];
            const long input = i + 8 * half, first = input / Width * 2 * Width + input % Width, second = first + Width;
            out.low(first / kUnit, first % kUnit / 8, (one & nibbles) | (two & nibbles) << 4);
            out.low(second / kUnit, second % kUnit / 8, (one >> 4 & nibbles) | (two >> 4 & nibbles) << 4);
        }
    }
}

// Calls put(unit, word, value) for 64 bytes of 2-bit fields: of each 32 bytes, bits 2 s and 2 s + 1 are unit s.
template <class Rows, class Put> void put_pairs(const Rows &b, long at, const Put &put) {
    for (long i = 0; i < 64; i += 16) {
        typename Rows::Word words[4];
        b.words(at + i, words);
        for (long s = 0; s < 4; s++) {
            typename Rows::Word word = words[0] >> uint32_t(2 * s) & 0x03030303u;
            for (long q = 1; q < 4; q++) word |= (words[q] >> uint32_t(2 * s) & 0x03030303u) << uint32_t(2 * q);
            put(i / 32 * 4 + s, i % 32 / 16, word);
        }
    }
}

// 32 bytes of single bits: bit s of each byte belongs to unit s.
template <class Rows, class Lane> void put_bits(const Rows &b, long at, Lane &out) {
    typename Rows::Word words[8];
    for (long q = 0; q < 8; q++) words[q] = b.word(at + 4 * q);
    for (long s = 0; s < 8; s++) {
        typename Rows::Word word = words[0] >> uint32_t(s) & 0x01010101u;
        for (long q = 1; q < 8; q++) word |= (words[q] >> uint32_t(s) & 0x01010101u) << uint32_t(q);
        out.high(s, 0, word);
    }
}

// The word of a unit whose bits lie in order.
template <class Word> Word bit_word(Word bits) {
    Word word = (bits & 15u) * 0x00204081u & 0x01010101u;
    for (uint32_t q = 1; q < 8; q++) word |= ((bits >> 4 * q & 15u) * 0x00204081u & 0x01010101u) << q;
    return word;
}

// Sixteen bytes of Q4_K and Q5_K: both factors, and eight scales and minima of six bits.
template <class Rows, class Lane> bool put_k_scales(const Rows &b, Lane &out) {
    const typename Rows::Word scales = b.word(4), minima = b.word(8), rest = b.word(12);
    const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x30303030;
    out.subs(0, scales & six);
    out.subs(4, (rest & four) | (scales >> 2 & two));
    out.subs(0, minima & six, kPanel);
    out.subs(4, (rest >> 4 & four) | (minima >> 2 & two), kPanel);
    const bool finite = out.scale(b, 0);
    return out.minimum(b, 2, 0x8000) && finite;
}

// A signed byte of six bits, stored with 32 added.
uint8_t six_bits(int low, int high) { return uint8_t((low | high << 4) - 32); }

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

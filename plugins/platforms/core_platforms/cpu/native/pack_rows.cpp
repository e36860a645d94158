// Packing of rows as they lie in a file: plain numbers, and blocks of GGUF. A row is read once and a panel written once.
//
// core_quantization/gguf/unpack.py and codes.py say where the fields of a block lie; a test compares the two ways to
// the bit.
#include "native.h"

#include <string.h>

namespace {

constexpr long kSpanBytes = 512; // of each row before the next row's turn: the records written meanwhile stay in L1

uint32_t load32(const uint8_t *p) {
    uint32_t word;
    memcpy(&word, p, 4);
    return word;
}

uint64_t load64(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

void store32(uint8_t *p, uint32_t word) { memcpy(p, &word, 4); }

// Copies a float16 and returns whether it is finite. flip: 0x8000 changes its sign.
bool copy_half(uint8_t *to, const uint8_t *from, uint16_t flip = 0) {
    uint16_t half;
    memcpy(&half, from, 2);
    const bool finite = (half & 0x7c00) != 0x7c00;
    half ^= flip;
    memcpy(to, &half, 2);
    return finite;
}

// One lane of a super-group's record, laid out as `set_plane_sizes` does.
template <int Bits, long Group = kUnit, bool Minimum = false, SubScales Sub = kNoSubScales> struct Planes {
    static constexpr long kLow = Bits < 4 ? 2 : 4, kGroups = kUnit / Group;
    static constexpr long kSub = Sub == kNoSubScales ? 0 : Sub == kSubBytes && Minimum ? 2 * kPanel : kPanel;
    static constexpr long kHead = (Minimum ? 2 : 1) * kPanel * 2, kUnitHead = kGroups * kSub;
    static constexpr long kUnitBytes = kUnitHead + kPanel * kUnit / 8 * Bits;
    static constexpr long bytes(long inputs) { return kHead + inputs / kUnit * kUnitBytes; }

    uint8_t *record;
    long lane;

    bool scale(const uint8_t *half) { return copy_half(record + lane * 2, half); }
    bool minimum(const uint8_t *half, uint16_t flip) { return copy_half(record + (kPanel + lane) * 2, half, flip); }
    // The sub-scale of a group; its sub-minimum lies kPanel behind it.
    uint8_t *sub(long group) { return record + kHead + group / kGroups * kUnitBytes + group % kGroups * kSub + lane; }
    void low(long unit, long word, uint32_t value) {
        store32(record + kHead + unit * kUnitBytes + kUnitHead + (word * kPanel + lane) * 4, value);
    }
    void high(long unit, long word, uint32_t value) {
        store32(record + kHead + unit * kUnitBytes + kUnitHead + kLow * kUnit * kPanel / 8 + (word * kPanel + lane) * 4, value);
    }
};

// One lane of the record of a group of 4- or 8-bit integers or codes.
template <int Bits, long ScaleBytes, bool Minimum = false> struct Groups {
    static constexpr long kValues = kPanel * kUnit / 8 * Bits;
    static constexpr long bytes(long) { return kValues + (Minimum ? 2 : 1) * kPanel * ScaleBytes; }

    uint8_t *record;
    long lane;

    bool scale(const uint8_t *half) { return copy_half(record + kValues + lane * 2, half); }
    bool minimum(const uint8_t *half) { return copy_half(record + kValues + (kPanel + lane) * 2, half); }
    void low(long, long word, uint32_t value) { store32(record + (word * kPanel + lane) * 4, value); }
};

// The word of eight inputs, whose bytes hold input j low and input j + 4 high, from the nibbles of eight bytes.
uint32_t nibble_word(uint64_t bytes) {
    const uint64_t fields = bytes & 0x0f0f0f0f0f0f0f0f;
    return uint32_t(fields | fields >> 28);
}

// In each Width bytes, all low nibbles come first, then all high ones.
template <long Width, long Bytes, class Lane> void put_nibbles(const uint8_t *bytes, Lane &out) {
    for (long at = 0; at < Bytes; at += 8) {
        const uint64_t eight = load64(bytes + at);
        const long first = at / Width * 2 * Width + at % Width, second = first + Width;
        out.low(first / kUnit, first % kUnit / 8, nibble_word(eight));
        out.low(second / kUnit, second % kUnit / 8, nibble_word(eight >> 4));
    }
}

// Calls put(unit, word, value) for 64 bytes of 2-bit fields: of each 32 bytes, bits 2 s and 2 s + 1 are unit s.
template <class Put> void put_pairs(const uint8_t *bytes, const Put &put) {
    for (long at = 0; at < 64; at += 16)
        for (long s = 0; s < 4; s++) {
            uint32_t word = 0;
            for (long q = 0; q < 4; q++) word |= (load32(bytes + at + 4 * q) >> 2 * s & 0x03030303) << 2 * q;
            put(at / 32 * 4 + s, at % 32 / 16, word);
        }
}

// 32 bytes of single bits: bit s of each byte belongs to unit s.
template <class Lane> void put_bits(const uint8_t *bytes, Lane &out) {
    for (long s = 0; s < 8; s++) {
        uint32_t word = 0;
        for (long q = 0; q < 8; q++) word |= (load32(bytes + 4 * q) >> s & 0x01010101) << q;
        out.high(s, 0, word);
    }
}

// The word of a unit whose bits lie in order.
uint32_t bit_word(uint32_t bits) {
    uint32_t word = 0;
    for (long q = 0; q < 8; q++) word |= ((bits >> 4 * q & 15) * 0x00204081 & 0x01010101) << q;
    return word;
}

// Sixteen bytes of Q4_K and Q5_K: both factors, and eight scales and minima of six bits.
template <class Lane> bool put_k_scales(const uint8_t *b, Lane &out) {
    const uint32_t scales = load32(b + 4), minima = load32(b + 8), rest = load32(b + 12);
    const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x30303030;
    const uint64_t last_scales = (rest & four) | (scales >> 2 & two), last_minima = (rest >> 4 & four) | (minima >> 2 & two);
    const uint64_t all_scales = (scales & six) | last_scales << 32, all_minima = (minima & six) | last_minima << 32;
    for (long group = 0; group < 8; group++) {
        out.sub(group)[0] = uint8_t(all_scales >> 8 * group);
        out.sub(group)[kPanel] = uint8_t(all_minima >> 8 * group);
    }
    const bool finite = out.scale(b);
    return out.minimum(b + 2, 0x8000) && finite;
}

// Each block type: the lane it is written to, bytes and inputs of a block, and `put`, which returns whether its scales
// are finite.
struct Q4_0 {
    using Lane = Groups<4, 2>;
    static constexpr long kBytes = 18, kInputs = 32;
    static bool put(const uint8_t *b, Lane out) {
        put_nibbles<16, 16>(b + 2, out);
        return out.scale(b);
    }
};

struct Q4_1 {
    using Lane = Groups<4, 2, true>;
    static constexpr long kBytes = 20, kInputs = 32;
    static bool put(const uint8_t *b, Lane out) {
        put_nibbles<16, 16>(b + 4, out);
        const bool finite = out.scale(b);
        return out.minimum(b + 2) && finite;
    }
};

struct Q5_0 {
    using Lane = Planes<5>;
    static constexpr long kBytes = 22, kInputs = 32;
    static bool put(const uint8_t *b, Lane out) {
        put_nibbles<16, 16>(b + 6, out);
        out.high(0, 0, bit_word(load32(b + 2)));
        return out.scale(b);
    }
};

struct Q5_1 {
    using Lane = Planes<5, 32, true>;
    static constexpr long kBytes = 24, kInputs = 32;
    static bool put(const uint8_t *b, Lane out) {
        put_nibbles<16, 16>(b + 8, out);
        out.high(0, 0, bit_word(load32(b + 4)));
        const bool finite = out.scale(b);
        return out.minimum(b + 2, 0) && finite;
    }
};

struct Q8_0 {
    using Lane = Groups<8, 2>;
    static constexpr long kBytes = 34, kInputs = 32;
    static bool put(const uint8_t *b, Lane out) {
        for (long word = 0; word < 8; word++) out.low(0, word, load32(b + 2 + 4 * word) ^ 0x80808080);
        return out.scale(b);
    }
};

struct Q2_K {
    using Lane = Planes<2, 16, true, kSubNibbles>;
    static constexpr long kBytes = 84, kInputs = 256;
    static bool put(const uint8_t *b, Lane out) {
        put_pairs(b + 16, [&](long unit, long word, uint32_t value) { out.low(unit, word, value); });
        for (long group = 0; group < 16; group++) out.sub(group)[0] = b[group];
        const bool finite = out.scale(b + 80);
        return out.minimum(b + 82, 0x8000) && finite;
    }
};

struct Q3_K {
    using Lane = Planes<3, 16, false, kSubBytes>;
    static constexpr long kBytes = 110, kInputs = 256;
    static bool put(const uint8_t *b, Lane out) {
        put_pairs(b + 32, [&](long unit, long word, uint32_t value) { out.low(unit, word, value); });
        put_bits(b, out);
        for (long group = 0; group < 16; group++) {
            const int low = b[96 + group % 8] >> (group < 8 ? 0 : 4) & 15, high = b[104 + group % 4] >> group / 4 * 2 & 3;
            out.sub(group)[0] = uint8_t((low | high << 4) - 32);
        }
        return out.scale(b + 108);
    }
};

struct Q4_K {
    using Lane = Planes<4, 32, true, kSubBytes>;
    static constexpr long kBytes = 144, kInputs = 256;
    static bool put(const uint8_t *b, Lane out) {
        put_nibbles<32, 128>(b + 16, out);
        return put_k_scales(b, out);
    }
};

struct Q5_K {
    using Lane = Planes<5, 32, true, kSubBytes>;
    static constexpr long kBytes = 176, kInputs = 256;
    static bool put(const uint8_t *b, Lane out) {
        put_nibbles<32, 128>(b + 48, out);
        put_bits(b + 16, out);
        return put_k_scales(b, out);
    }
};

struct Q6_K {
    using Lane = Planes<6, 16, false, kSubBytes>;
    static constexpr long kBytes = 210, kInputs = 256;
    static bool put(const uint8_t *b, Lane out) {
        put_nibbles<64, 128>(b, out);
        put_pairs(b + 128, [&](long unit, long word, uint32_t value) { out.high(unit, word, value); });
        for (long group = 0; group < 16; group++) out.sub(group)[0] = b[192 + group];
        return out.scale(b + 208);
    }
};

struct TQ2_0 {
    using Lane = Planes<2>;
    static constexpr long kBytes = 66, kInputs = 256;
    static bool put(const uint8_t *b, Lane out) {
        put_pairs(b, [&](long unit, long word, uint32_t value) { out.low(unit, word, value); });
        return out.scale(b + 64);
    }
};

struct IQ4_NL {
    using Lane = Planes<4>;
    static constexpr long kBytes = 18, kInputs = 32;
    static bool put(const uint8_t *b, Lane out) {
        put_nibbles<16, 16>(b + 2, out);
        return out.scale(b);
    }
};

struct IQ4_XS {
    using Lane = Planes<4, 32, false, kSubBytes>;
    static constexpr long kBytes = 136, kInputs = 256;
    static bool put(const uint8_t *b, Lane out) {
        put_nibbles<16, 128>(b + 8, out);
        for (long group = 0; group < 8; group++) {
            const int low = b[4 + group / 2] >> group % 2 * 4 & 15, high = b[2 + group / 4] >> group % 4 * 2 & 3;
            out.sub(group)[0] = uint8_t((low | high << 4) - 32);
        }
        return out.scale(b);
    }
};

struct MXFP4 {
    using Lane = Groups<4, 1>;
    static constexpr long kBytes = 17, kInputs = 32;
    static bool put(const uint8_t *b, Lane out) {
        put_nibbles<16, 16>(b + 1, out);
        out.record[Lane::kValues + out.lane] = b[0];
        return b[0] != 255;
    }
};

template <class Block> bool pack_blocks(const uint8_t *const *rows, const PackedLinear &l, long lanes, uint8_t *data) {
    constexpr long kRecord = Block::Lane::bytes(Block::kInputs), kSpan = (kSpanBytes + Block::kBytes - 1) / Block::kBytes;
    const long blocks = l.k / Block::kInputs;
    bool finite = long(l.panel_bytes) == blocks * kRecord && blocks * Block::kInputs == l.k;
    for (long start = 0; start < blocks && finite; start += kSpan) {
        const long stop = at_most(blocks, start + kSpan);
        for (long lane = 0; lane < lanes; lane++) {
            const uint8_t *row = rows[lane];
            // Each row is a stream of its own: more of them than the hardware prefetcher follows.
            for (long at = 0; at < kSpan * Block::kBytes; at += 64) __builtin_prefetch(row + stop * Block::kBytes + at);
            for (long i = start; i < stop; i++)
                if (!Block::put(row + i * Block::kBytes, {data + i * kRecord, lane})) finite = false;
        }
    }
    return finite;
}

// Units are pairs of 2-byte numbers or single 4-byte ones.
void pack_words(const uint8_t *const *rows, long bytes, long lanes, uint8_t *panel) {
    for (long start = 0; start < bytes; start += kSpanBytes) {
        const long stop = at_most(bytes, start + kSpanBytes), whole = stop / 4 * 4;
        for (long lane = 0; lane < lanes; lane++) {
            const uint8_t *row = rows[lane];
            for (long at = stop; at < stop + kSpanBytes; at += 64) __builtin_prefetch(row + at);
            for (long at = start; at < whole; at += 4) store32(panel + at * kPanel + lane * 4, load32(row + at));
            if (whole < stop) memcpy(panel + whole * kPanel + lane * 4, row + whole, stop - whole);
        }
    }
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

// Lanes of packed records, and the fields of GGUF's blocks that are put into them, one row or four rows at a time.
//
// core_quantization/gguf/unpack.py and codes.py say where the fields of a block lie. Included by pack_rows.cpp alone.
#pragma once
#include "native.h"

#include <string.h>

namespace {

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

} // namespace

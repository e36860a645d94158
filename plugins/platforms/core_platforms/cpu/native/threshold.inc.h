// Min-p, top-k and top-p as one limit on z = (logit - largest) / T, without sorting: the same candidates as
// plugins/executors/core_runtime/sampling/filters.py, to the bit.
//
// The limit is the largest z with enough candidates (top-k) or weight (top-p) at or above it. It is determined digit
// by digit from its bits, whose order is the reverse of z's, with a histogram per digit. Weights are integers, so
// that the order of summation does not matter.

constexpr float kLowest = -3.4028234663852886e38f;
constexpr int kDigitBits[] = {11, 10, 10};

struct Candidates {
    const float *logits;
    long vocab;
    float largest, temperature;
};

// Candidates under a mask: bit b of word w allows token 32 * w + b.
struct MaskedCandidates : Candidates {
    const uint32_t *words;
};

// Loads sixteen logits; -infinity past the end.
LANE F logits_at(const Candidates &c, long first) {
    long n = c.vocab - first;
    if (n >= 16) return load(c.logits + first);
    F none = set1(-__builtin_inff());
    return n > 0 ? select_range(load_part(c.logits + first, n), none, 0, (int32_t)n) : none;
}

// Which of sixteen candidates are allowed; `first` is a multiple of sixteen.
LANE uint32_t allowed(const MaskedCandidates &c, long first) {
    return first < c.vocab ? c.words[first / 32] >> (first % 32) & 0xffff : 0;
}

// Sixteen logits x, with masked ones at -infinity.
LANE F competing(const Candidates &, long, F x) { return x; }

// Most masks allow all of sixteen neighbours or none of them.
LANE F competing(const MaskedCandidates &c, long first, F x) {
    const uint32_t may = allowed(c, first);
    if (may == 0xffff) return x;
    if (!may) return set1(-__builtin_inff());
    float lanes[16];
    store(lanes, x);
    for (uint32_t not_these = ~may & 0xffff; not_these; not_these &= not_these - 1)
        lanes[__builtin_ctz(not_these)] = -__builtin_inff();
    return load(lanes);
}

template <class C> LANE F shifted(const C &c, long first) {
    F x = competing(c, first, logits_at(c, first));
    return div(sub(x, set1(c.largest)), set1(c.temperature));
}


LANE float float_of(int32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// e^z in multiples of 2^-30, rounded down, with one float32 rounding per operation.
LANE I weights(F z) {
    F x = max(set1(-64), mul(z, set1(1.44269504f)));
    I n = round_to_int(x);
    F r = sub(x, to_float(n)), p = add(mul(r, set1(1.32647244e-3f)), set1(9.67151324e-3f));
    p = add(mul(p, r), set1(5.55073376e-2f));
    p = add(mul(p, r), set1(2.40222421e-1f));
    p = add(mul(p, r), set1(6.93146978e-1f));
    p = add(mul(p, r), set1(1));
    return truncate(mul(p, as_float(shift_left<23>(iadd(n, iset1(127 + 30))))));
}

// Total weight of all candidates from `least` on.
template <class C> static int64_t total_weight(const C &c, float least) {
    I low = izero(), high = izero(); // 15 bits each: 65,536 of them fit
    int64_t total = 0;
    for (long first = 0; first < c.vocab; first += 16) {
        F z = shifted(c, first);
        uint32_t outside = lanes_above(set1(least), z);
        I w = weights(z);
        if (outside) {
            int32_t lanes[16];
            istore(lanes, w);
            for (; outside; outside &= outside - 1) lanes[__builtin_ctz(outside)] = 0;
            w = iload(lanes);
        }
        low = iadd(low, iand(w, iset1(0x7fff))), high = iadd(high, shift_right<15>(w));
        if ((first & 0xffff0) != 0xffff0 && first + 16 < c.vocab) continue;
        int32_t lanes[32];
        istore(lanes, low), istore(lanes + 16, high);
        for (int i = 0; i < 16; i++) total += lanes[i] + ((int64_t)lanes[16 + i] << 15);
        low = izero(), high = izero();
    }
    return total;
}

// Builds a histogram of the candidates, or of their weights, with z in [bottom, top], by one digit of their bits.
template <class C>
static void fill_histogram(const C &c, bool weigh, float bottom, float top, int shift, uint32_t mask, int64_t *bins) {
    for (uint32_t i = 0; i <= mask; i++) bins[i] = 0;
    for (long first = 0; first < c.vocab; first += 16) {
        F z = shifted(c, first);
        uint32_t inside = ~(lanes_above(set1(bottom), z) | lanes_above(z, set1(top))) & 0xffff;
        if (!inside) continue;
        uint32_t bits[16];
        int32_t weight[16];
        istore(bits, as_int(z));
        if (weigh) istore(weight, weights(z));
        for (; inside; inside &= inside - 1) {
            const int i = __builtin_ctz(inside);
            bins[(bits[i] & 0x7fffffff) >> shift & mask] += weigh ? weight[i] : 1;
        }
    }
}

// The largest z >= least such that the candidates from z on reach `target`; `least` when all together do not. The
// caller knows that none below `bottom` (>= least) is needed.
template <class C> static float reach(const C &c, bool weigh, double target, float least, float bottom) {
    int64_t bins[1 << 11], before = 0;
    uint32_t prefix = 0;
    int shift = 31;
    for (int digit = 0; digit < 3; digit++) {
        const uint32_t top = prefix, mask = (1u << kDigitBits[digit]) - 1; // bits of the largest z of this prefix
        const uint32_t end = digit ? prefix | ((1u << shift) - 1) : 0x7fffffff;
        const float lowest = -float_of((int32_t)(end < 0x7f7fffff ? end : 0x7f7fffff));
        shift -= kDigitBits[digit];
        fill_histogram(c, weigh, lowest > bottom ? lowest : bottom, -float_of((int32_t)top), shift, mask, bins);
        uint32_t bin = 0;
        while (bin <= mask && before + bins[bin] < target) before += bins[bin++];
        if (bin > mask) return least;
        prefix |= bin << shift;
    }
    return -float_of((int32_t)prefix);
}

// z of the last candidate that passes min-p (`least`), then top-k (0: all), then top-p (1: all).
template <class C> static float filter_limit(const C &c, long top_k, double top_p, float least) {
    if (top_k > 0 && top_k < c.vocab) least = reach(c, false, (double)top_k, least, least);
    if (!(top_p < 1)) return least;
    const int64_t total = total_weight(c, least);
    const double target = top_p * (double)total;
    // Candidates below this weigh less together than may be cut.
    const double spare = ((double)total - target) / (double)c.vocab * 0x1p-30;
    const float tail = spare > 1e-9 ? (float)(__builtin_log(spare) - 1e-3) : -20.8f; // e^-20.8 has no weight
    return reach(c, true, target, least, tail > least ? tail : least);
}

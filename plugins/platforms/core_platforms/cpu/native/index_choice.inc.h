// The best keys of a row, without sorting: the score of the worst chosen key is found first, then every key is compared with it.
//
// That score lies between two of a sample's, except by bad luck: only the keys between them, about a tenth, are counted digit by
// digit. No score is NaN (`index_scores`).

constexpr long kSampled = 512, kSampleMargin = 32; // about three deviations of a rank among the sampled keys

// A number whose order is that of the scores, equal for both zeros.
LANE uint32_t index_rank(float score) {
    const float x = score + 0.0f;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

LANE float index_ranked(uint32_t rank) {
    return one_of(as_float(iset1((int32_t)(rank ^ (rank >> 31 ? 0x80000000u : 0xffffffffu)))));
}

struct IndexLimit {
    uint32_t rank; // of the worst chosen key
    long equal;    // how many of the keys with this rank are chosen
};

// The rank of the top_k-th best of some numbers, digit by digit: sorting a part of them guesses a branch for every comparison,
// half of which are guessed wrongly. spare: room for `count` numbers, which may be the numbers' own.
static IndexLimit index_limit(const uint32_t *numbers, long count, long top_k, uint32_t *spare) {
    constexpr int shifts[] = {21, 10, 0};
    constexpr uint32_t mask = 2047;
    uint32_t limit = 0, above = 0; // above: the bits of earlier digits, which the numbers that are left share
    for (int shift : shifts) {
        uint32_t counts[mask + 1] = {};
        for (long i = 0; i < count; i++) counts[(numbers[i] - above) >> shift]++;
        uint32_t digit = mask;
        for (; counts[digit] < top_k; digit--) top_k -= counts[digit];
        limit = above + (digit << shift);
        if (shift == 0) break;
        long left = 0;
        for (long i = 0; i < count; i++) {
            const uint32_t number = numbers[i];
            spare[left] = number;
            left += (number - above) >> shift == digit;
        }
        numbers = spare, count = left, above = limit;
    }
    return {limit, top_k};
}

LANE uint32_t lanes_until(long end) { return end >= 16 ? 0xffff : (1u << end) - 1; }

// Writes to `spare` the ranks of the scores in [low, high]; returns how many, and in `above` how many are higher.
static long index_between(const float *scores, long keys, float low, float high, uint32_t *spare, long &above) {
    long count = 0;
    above = 0;
    for (long i = 0; i < keys; i += 16) {
        const F x = load(scores + i); // rows have room for whole vectors
        const uint32_t higher = lanes_above(x, set1(high)), lower = lanes_above(set1(low), x), own = lanes_until(keys - i);
        above += __builtin_popcount(higher & own);
        for (uint32_t left = own & ~(higher | lower); left; left &= left - 1)
            spare[count++] = index_rank(scores[i + __builtin_ctz(left)]);
    }
    return count;
}

// The limit by a sample's neighbourhood; false where it lies outside.
static bool index_near_limit(const float *scores, long keys, long top_k, uint32_t *spare, IndexLimit &limit) {
    uint32_t sample[kSampled], room[kSampled];
    for (long i = 0; i < kSampled; i++) sample[i] = index_rank(scores[i * (keys / kSampled)]);
    const long rank = top_k * kSampled / keys, first = rank - kSampleMargin, last = rank + kSampleMargin;
    float high = __builtin_inff(), low = -__builtin_inff();
    if (first > 0) high = index_ranked(index_limit(sample, kSampled, first, room).rank);
    if (last <= kSampled) low = index_ranked(index_limit(sample, kSampled, last, room).rank);
    long above;
    const long count = index_between(scores, keys, low, high, spare, above);
    if (above >= top_k || above + count < top_k) return false;
    limit = index_limit(spare, count, top_k - above, spare);
    return true;
}

// The lowest `count` bits.
LANE uint32_t lowest_bits(uint32_t bits, long count) {
    uint32_t taken = 0;
    for (; bits && count > 0; bits &= bits - 1, count--) taken |= bits & -bits;
    return taken;
}

// Writes the places, from `first` on, of the bits of `lanes`; there is room for sixteen.
LANE void write_places(int32_t *to, long first, uint32_t lanes) {
#ifdef CORE_PICK
    istore(to, compress(iadd(iota(), iset1((int32_t)first)), lanes));
#else
    for (; lanes; lanes &= lanes - 1) *to++ = int32_t(first) + __builtin_ctz(lanes);
#endif
}

// The top_k best of more keys in the order of their positions; of equal scores the earlier keys win. spare: [keys].
static void index_choose(const float *scores, long keys, long top_k, uint32_t *spare, int32_t *out) {
    IndexLimit limit;
    if (keys < 4 * kSampled || !index_near_limit(scores, keys, top_k, spare, limit)) {
        for (long i = 0; i < keys; i++) spare[i] = index_rank(scores[i]);
        limit = index_limit(spare, keys, top_k, spare);
    }
    const F worst = set1(index_ranked(limit.rank));
    int32_t last[32]; // the places that would be written beyond the end
    for (long i = 0, found = 0; found < top_k; i += 16) {
        const F x = load(scores + i);
        const uint32_t above = lanes_above(x, worst), below = lanes_above(worst, x), own = lanes_until(keys - i);
        const uint32_t equal = lowest_bits(own & ~(above | below), limit.equal), lanes = (own & above) | equal;
        limit.equal -= __builtin_popcount(equal);
        const long count = __builtin_popcount(lanes), fits = found + 16 <= top_k;
        write_places(fits ? out + found : last, i, lanes);
        if (!fits) memcpy(out + found, last, count * sizeof(int32_t));
        found += count;
    }
}

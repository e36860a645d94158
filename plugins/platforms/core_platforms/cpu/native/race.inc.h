// The keyed race of plain sampling: picks the token with the largest z - ln E, z = (logit - largest) / T, the lowest
// id on ties.
//
// The noise is that of the core's sampler, to the bit: Philox4x32-10 on (id / 4, output index, choice, purpose) under
// the seed (Salmon, Moraes, Dror, Shaw 2011), a uniform x, E = -log1p(-x). Since E >= x, `z - ln x` bounds a score
// from above, and a straight line between powers of two bounds -ln x within 0.06. Lanes therefore only look for
// candidates whose bound reaches the best score so far, and each of those few is scored exactly, with one float32
// rounding per operation. Filters are one limit on z (threshold.inc.h): no noise is drawn where every candidate is
// below it.

constexpr int kPhiloxRounds = 10;
constexpr long kChunk = 64; // candidates: 16 groups of four words

struct Noise {
    uint32_t counter[3]; // counter words except the group's
    uint32_t key[kPhiloxRounds][2];
};

LANE Noise make_noise(const int64_t *key) { // seed (low, high), output index, choice, purpose
    Noise noise = {{(uint32_t)key[2], (uint32_t)key[3], (uint32_t)key[4]}, {}};
    uint32_t low = (uint32_t)key[0], high = (uint32_t)key[1];
    for (int i = 0; i < kPhiloxRounds; i++, low += 0x9e3779b9u, high += 0xbb67ae85u)
        noise.key[i][0] = low, noise.key[i][1] = high;
    return noise;
}

// words[j], lane i: the random word of candidate 64 * chunk + 16 * j + i.
LANE void draw(const Noise &noise, long chunk, I (&words)[4]) {
    I a = iadd(iset1((int32_t)(chunk * 16)), transposed_iota());
    I b = iset1((int32_t)noise.counter[0]), c = iset1((int32_t)noise.counter[1]), d = iset1((int32_t)noise.counter[2]);
    for (int i = 0; i < kPhiloxRounds; i++) {
        I high_a, high_c;
        I low_a = multiply_wide(a, 0xd2511f53u, high_a), low_c = multiply_wide(c, 0xcd9e8d57u, high_c);
        a = ixor(ixor(high_c, b), iset1((int32_t)noise.key[i][0]));
        c = ixor(ixor(high_a, d), iset1((int32_t)noise.key[i][1]));
        b = low_c, d = low_a;
    }
    words[0] = a, words[1] = b, words[2] = c, words[3] = d;
    transpose(words);
}

// ln of a positive normal number.
static float exact_log(float x) {
    constexpr float tail[] = {0x1.555554p-2f,  -0x1.00022ap-2f, 0x1.99a01ap-3f,  -0x1.5471a6p-3f,
                              0x1.22d7f6p-3f, -0x1.0d8974p-3f, 0x1.056dc4p-3f, -0x1.38cdc2p-4f};
    int32_t bits;
    memcpy(&bits, &x, 4);
    int32_t exponent = (bits - 0x3f3504f3) >> 23;
    float f = float_of(bits - (int32_t)((uint32_t)exponent << 23)) - 1.0f, scale = (float)exponent, p = tail[7];
    for (int i = 6; i >= 0; i--) p = p * f + tail[i];
    float near_one = f * f * (f * p - 0.5f) + f;
    return scale * (22713.0f / 32768.0f) + (scale * 1.4286068203094172e-06f + near_one);
}

static float exact_gumbel(uint32_t word) {
    float x = (float)(((double)word + 0.5) * 0x1p-32), u = (float)(((double)~word + 0.5) * 0x1p-32);
    float lost = u >= 0.5f ? (1.0f - u) - x : 0.0f;
    return -exact_log(-(exact_log(u) + (lost + lost * x)));
}

template <class C> struct Contest : C {
    bool filtered;
    float limit; // candidates with a smaller z are filtered out
    Noise noise;
    long winner;
    float score;
};

LANE bool all_masked(const Candidates &, long) { return false; }
LANE bool all_masked(const MaskedCandidates &c, long chunk) {
    uint32_t may = 0;
    for (long first = chunk * kChunk; first < (chunk + 1) * kChunk; first += 16) may |= allowed(c, first);
    return !may;
}

LANE bool may_come(const Candidates &, long) { return true; }
LANE bool may_come(const MaskedCandidates &c, long id) { return c.words[id / 32] >> (id % 32) & 1; }

template <class C> static void contest_chunk(Contest<C> &c, long chunk) {
    if (all_masked(c, chunk)) return;
    const F scale = set1(1.0f / c.temperature), top = set1(c.largest);
    constexpr float ln2 = 0.69314718f, slack = 1e-3f;
    uint32_t inside[4] = {~0u, ~0u, ~0u, ~0u};
    for (int j = 0; j < 4 && c.filtered; j++)
        inside[j] = ~lanes_above(set1(c.limit), shifted(c, chunk * kChunk + j * 16)) & 0xffff;
    if (!(inside[0] | inside[1] | inside[2] | inside[3])) return;
    I words[4];
    draw(c.noise, chunk, words);
    for (int j = 0; j < 4; j++) {
        const long first = chunk * kChunk + j * 16;
        F bits = to_float(as_int(to_float(shift_right<1>(words[j])))); // the word's logarithm, in steps of 2^-23
        F z = mul(sub(competing(c, first, logits_at(c, first)), top), scale);
        F bound = add(z, fma(bits, set1(-ln2 * 0x1p-23f), set1(158.0f * ln2 + slack)));
        uint32_t near = lanes_above(bound, set1(c.score)) & inside[j];
        if (!near) continue;
        uint32_t word[16];
        istore(word, words[j]);
        for (; near; near &= near - 1) {
            const long id = first + __builtin_ctz(near);
            const float z_exact = (c.logits[id] - c.largest) / c.temperature;
            const float score = z_exact + exact_gumbel(word[id - first]);
            if (score > c.score || (score == c.score && id < c.winner)) c.score = score, c.winner = id;
        }
    }
}

// Finds the largest logit and the chunk of its first occurrence. False if a logit is NaN or +infinity, masked or not,
// or if all candidates are -infinity; a single -infinity only removes its candidate.
template <class C> static bool find_largest(C &c, long &best) {
    F highest = set1(-__builtin_inff()), finite = zero();
    c.largest = -__builtin_inff();
    for (long chunk = 0; chunk * kChunk < c.vocab; chunk++) {
        F top = set1(-__builtin_inff());
        for (long first = chunk * kChunk; first < (chunk + 1) * kChunk && first < c.vocab; first += 16) {
            F x = logits_at(c, first);
            top = max(top, competing(c, first, x));
            finite = fma(max(set1(-3e38f), x), zero(), finite); // NaN stays NaN
        }
        if (!lanes_above(top, highest)) continue;
        c.largest = largest(top);
        highest = set1(c.largest);
        best = chunk;
    }
    return sum(finite) == 0 && c.largest > -__builtin_inff();
}

// The best chunk comes first, so that later chunks have a high score to beat.
template <class C> static long race_row(Contest<C> &c, const RaceCall &call, long row) {
    c.logits = call.logits + call.which[row] * call.stride, c.vocab = call.vocab, c.temperature = call.temperatures[row];
    long best = 0;
    if (!find_largest(c, best)) return -1;
    if (c.temperature == 0) {
        for (long id = best * kChunk;; id++)
            if (c.logits[id] == c.largest && may_come(c, id)) return id;
    }
    const long top_k = call.top_k ? call.top_k[row] : 0;
    const double top_p = call.top_p ? call.top_p[row] : 1;
    const float least = call.least ? call.least[row] : kLowest;
    c.filtered = top_k > 0 || top_p < 1 || least > kLowest;
    c.limit = c.filtered ? filter_limit(c, top_k, top_p, least) : kLowest;
    c.noise = make_noise(call.keys + row * 5), c.winner = -1, c.score = -__builtin_inff();
    contest_chunk(c, best);
    for (long chunk = 0; chunk * kChunk < c.vocab; chunk++)
        if (chunk != best) contest_chunk(c, chunk);
    return c.winner;
}

static void race(const RaceCall *c, long begin, long end) {
    for (long i = begin; i < end; i++) {
        const long mask = c->mask_rows ? c->mask_rows[i] : -1;
        if (mask < 0) {
            Contest<Candidates> contest = {};
            c->out[i] = race_row(contest, *c, i);
        } else {
            Contest<MaskedCandidates> contest = {};
            contest.words = c->masks + mask * c->mask_words;
            c->out[i] = race_row(contest, *c, i);
        }
    }
}

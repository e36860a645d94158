// Log-probabilities of a row of logits: of the chosen token and of the most likely ones, in one pass each.
//
// The sum of powers runs in float32 over 1,024 logits, lane by lane, and in float64 over those partial sums: a fixed
// order, whatever the other rows are. Among equals the lower id comes first.

constexpr long kSumBlock = 1024;

static double log_total(const Candidates &c) {
    double total = 0;
    for (long start = 0; start < c.vocab; start += kSumBlock) {
        F part = zero();
        for (long first = start; first < start + kSumBlock && first < c.vocab; first += 16) {
            F power = power_of_two(mul(sub(logits_at(c, first), set1(c.largest)), set1(1.44269504f)));
            long n = c.vocab - first;
            part = add(part, n < 16 ? select_range(power, zero(), 0, (int32_t)n) : power);
        }
        total += sum(part);
    }
    return (double)c.largest + __builtin_log(total);
}

// The `count` largest, in falling order; `count` is at most the vocabulary size.
static void most_likely(const Candidates &c, long count, int64_t *ids) {
    long found = 0;
    float least = -__builtin_inff(); // smallest of the candidates so far, once there are `count` of them
    for (long first = 0; first < c.vocab && count; first += 16) {
        const long n = c.vocab - first < 16 ? c.vocab - first : 16;
        uint32_t hits = lanes_above(logits_at(c, first), set1(least));
        if (found < count) hits = (1u << n) - 1;
        for (; hits; hits &= hits - 1) {
            const long id = first + __builtin_ctz(hits);
            const float x = c.logits[id];
            if (found == count && !(x > c.logits[ids[count - 1]])) continue;
            long at = found < count ? found++ : count - 1;
            for (; at > 0 && c.logits[ids[at - 1]] < x; at--) ids[at] = ids[at - 1];
            ids[at] = id;
        }
        if (found == count) least = c.logits[ids[count - 1]];
    }
}

static void logprobs(const LogprobsCall *call, long begin, long end) {
    for (long row = begin; row < end; row++) {
        Candidates c = {call->logits + call->which[row] * call->stride, call->vocab, 0, 1};
        int64_t *ids = call->ids + row * call->width;
        double *values = call->values + row * call->width;
        ids[0] = call->chosen[row];
        F top = set1(-__builtin_inff());
        for (long first = 0; first < c.vocab; first += 16) top = max(top, logits_at(c, first));
        c.largest = largest(top);
        most_likely(c, call->counts[row], ids + 1);
        const double total = log_total(c);
        const F chosen = set1(c.logits[ids[0]]);
        long rank = 1;
        for (long first = 0; first < c.vocab; first += 16)
            rank += __builtin_popcount(lanes_above(logits_at(c, first), chosen));
        call->ranks[row] = rank;
        for (long i = 0; i <= call->counts[row]; i++) values[i] = (double)c.logits[ids[i]] - total;
    }
}

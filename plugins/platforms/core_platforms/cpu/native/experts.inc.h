// The router's choice and the weighted sum of the chosen experts; each row is independent of the others.
//
// Without a bias or paired groups the choice compares logits: they order experts as their scores do, and are the same
// on every instruction set. Otherwise it compares scores plus bias. The lowest id wins a tie, and ids are valid
// whatever the logits are (NaN compares below everything).

LANE void route_scores(const RouteCall &c, const float *logits, float *scores) {
    const F never = set1(-__builtin_inff());
    F top = never;
    for (long i = 0; i < c.padded; i += 16) store(scores + i, never);
    memcpy(scores, logits, c.experts * sizeof(float));
    for (long i = 0; i < c.padded; i += 16) top = max(top, load(scores + i));
    const F peak = set1(largest(top));
    F total = zero();
    for (long i = 0; i < c.padded; i += 16) {
        F x = load(scores + i);
        if (c.scores == kSigmoid)
            x = div(set1(1), add(set1(1), exponential(sub(zero(), x))));
        else
            x = exponential(sub(x, peak)); // the padding's 1e-38 is far below the last bit of the sum
        total = add(total, x);
        store(scores + i, x);
    }
    if (c.scores == kSigmoid) return;
    const F all = set1(sum(total));
    for (long i = 0; i < c.padded; i += 16) store(scores + i, div(load(scores + i), all));
}

// The index of the largest of values[begin, end) that is not -inf; the first of equals; -1 when none is left.
static long best_of(const float *values, long begin, long end) {
    long best = -1;
    for (long i = begin; i < end; i++)
        if (values[i] > -__builtin_inff() && (best < 0 || values[i] > values[best])) best = i;
    return best;
}

// Removes all groups but the best ones from the choice; a kept group is marked by the rank -inf.
static void keep_groups(const RouteCall &c, float *choice, float *rank) {
    const long size = c.experts / c.groups;
    for (long g = 0; g < c.groups; g++) {
        const float *values = choice + g * size;
        const long first = best_of(values, 0, size);
        rank[g] = values[first];
        if (!c.pair_groups || size == 1) continue;
        const long before = best_of(values, 0, first), after = best_of(values, first + 1, size);
        const long second = before < 0 || (after >= 0 && values[after] > values[before]) ? after : before;
        rank[g] += values[second];
        if (!(rank[g] > -__FLT_MAX__)) rank[g] = -__FLT_MAX__;
    }
    for (long i = 0; i < c.top_groups; i++) rank[best_of(rank, 0, c.groups)] = -__builtin_inff();
    for (long g = 0; g < c.groups; g++)
        for (long i = 0; i < size && rank[g] > -__builtin_inff(); i++) choice[g * size + i] = -__builtin_inff();
}

// The softmax share of the expert `best` among the remaining experts with logits near its own: within twice the
// jitter, relative to the logits' magnitude.
static float mixed_weight(const RouteCall &c, const float *logits, const float *choice, long best) {
    const float top = logits[best];
    float total = 0;
    for (long e = 0; e < c.experts; e++) {
        if (!(choice[e] > -__builtin_inff())) continue;
        const float size = __builtin_fabsf(logits[e]), scale = size > top ? size : top;
        if (!((top - logits[e]) / scale > 2 * c.jitter)) total += sum(exponential(set1(logits[e] - top))) / 16;
    }
    return 1 / total;
}

static void route_row(const RouteCall &c, long row) {
    float *scores = c.work + row * 3 * c.padded, *choice = scores + c.padded;
    const float *logits = c.logits + row * c.stride;
    if (c.scores == kSparseMixer)
        memcpy(scores, logits, c.experts * sizeof(float));
    else
        route_scores(c, logits, scores);
    for (long e = 0; e < c.experts; e++) {
        const float value = c.bias || c.pair_groups ? scores[e] + (c.bias ? c.bias[e] : 0) : logits[e];
        choice[e] = value > -__FLT_MAX__ ? value : -__FLT_MAX__; // -inf marks experts that may no longer be chosen
    }
    if (c.groups > 1) keep_groups(c, choice, choice + c.padded);
    float *weights = c.weights + row * c.top_k, total = 0;
    for (long j = 0; j < c.top_k; j++) {
        const long e = best_of(choice, 0, c.experts);
        c.ids[row * c.top_k + j] = e;
        weights[j] = c.scores == kSparseMixer ? mixed_weight(c, logits, choice, e) : scores[e];
        total += weights[j];
        choice[e] = -__builtin_inff();
    }
    for (long j = 0; j < c.top_k; j++) weights[j] = (c.renormalize ? weights[j] / (total + c.epsilon) : weights[j]) * c.factor;
}

static void route(const RouteCall *c, long begin, long end) {
    for (long row = begin; row < end; row++) route_row(*c, row);
}

static void combine(const CombineCall *c, long begin, long end) {
    for (long row = begin; row < end; row++) {
        const int32_t *where = c->where + row * c->top_k;
        float *out = c->out + row * c->out_stride;
        for (long i = 0; i < c->width; i += 16) {
            const long n = c->width - i;
            F sums[kCombineRanges];
            for (long r = 0; r < c->ranges; r++) sums[r] = zero();
            for (long j = 0; j < c->top_k && where[j] != kAbsent; j++) {
                const int32_t pair = c->order ? c->order[where[j]] : where[j];
                F &sum = sums[c->ids[pair] / c->range];
                const float weight = c->weights ? c->weights[pair] : 1;
                sum = fma(set1(weight), load_upto(c->y + where[j] * c->width + i, n), sum);
            }
            for (long step = 1; step < c->ranges; step *= 2)
                for (long r = 0; r < c->ranges; r += 2 * step) sums[r] = add(sums[r], sums[r + step]);
            F total = sums[0];
            if (c->accumulate) total = add(load_upto(out + i, n), total);
            store_upto(out + i, total, n);
        }
    }
}

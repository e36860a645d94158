// Activations of one number, and gates; plugins/executors/core_runtime/layers/activations.py defines them. NaN stays
// NaN.

LANE F sigmoid_of(F x) { return div(set1(1), add(exponential(sub(zero(), x)), set1(1))); }
LANE F silu(F x) { return div(x, add(exponential(sub(zero(), x)), set1(1))); }
LANE F gelu_tanh(F x) { // x * sigmoid(2z) is x / 2 * (1 + tanh z)
    F z = mul(mul(x, set1(1.59576912f)), fma(mul(x, x), set1(0.044715f), set1(1)));
    return div(x, add(exponential(sub(zero(), z)), set1(1)));
}
LANE F relu(F x) { return max(zero(), x); } // max returns the second operand for NaN

// erfc(z) of z >= 0 to about 1e-7 of itself (Press et al., Numerical Recipes, 6.2).
LANE F complementary_error(F z) {
    F t = div(set1(1), fma(z, set1(0.5f), set1(1)));
    F p = fma(t, set1(0.17087277f), set1(-0.82215223f));
    const float rest[] = {1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f, 1.00002368f};
    for (float coefficient : rest) p = fma(p, t, set1(coefficient));
    p = fma(p, t, set1(-1.26551223f));
    return mul(t, exponential(sub(p, mul(z, z))));
}

LANE F gelu(F x) { // x * erfc(-x / sqrt 2) / 2
    F half = mul(x, set1(0.5f));
    F tail = mul(abs(half), complementary_error(mul(abs(x), set1(0.70710678f))));
    return sub(max(zero(), x), tail);
}

// e^x - 1 for x <= 0, without loss of precision near zero.
LANE F exponential_less_one(F x) {
    x = max(set1(-87.33f), x);
    I n = round_to_int(mul(x, set1(1.44269504f)));
    F whole = to_float(n);
    F r = fma(whole, set1(-0.693145752f), x);
    r = fma(whole, set1(-1.42860677e-6f), r);
    F p = fma(r, set1(1.9875691e-4f), set1(1.3981999e-3f));
    p = fma(p, r, set1(8.3334519e-3f));
    p = fma(p, r, set1(4.1665796e-2f));
    p = fma(p, r, set1(1.6666666e-1f));
    p = fma(p, r, set1(5.0000001e-1f));
    F less_one = fma(p, mul(r, r), r), power = as_float(shift_left<23>(iadd(n, iset1(127))));
    return fma(less_one, power, sub(power, set1(1)));
}

LANE F xielu(F x, const float *numbers) { // computes both halves; the half of the other sign is multiplied away
    F above = max(zero(), x), below = sub(exponential_less_one(min(set1(numbers[3]), x)), x);
    I bits = as_int(x), sign = shift_right<31>(ior(bits, iadd(bits, iset1(-1)))); // 1 where x <= 0
    I negative = iadd(ixor(sign, iset1(-1)), iset1(1));
    below = as_float(iand(as_int(below), negative));
    F curved = fma(mul(above, above), set1(numbers[0]), mul(below, set1(numbers[1])));
    return fma(x, set1(numbers[2]), curved);
}

template <int Kind> LANE F active(F x, const float *numbers) {
    if (Kind == kSilu) return silu(x);
    if (Kind == kGeluTanh) return gelu_tanh(x);
    if (Kind == kGelu) return gelu(x);
    if (Kind == kRelu) return relu(x);
    if (Kind == kRelu2) return mul(relu(x), relu(x));
    if (Kind == kQuickGelu) return div(x, add(exponential(mul(x, set1(-1.702f))), set1(1)));
    return xielu(x, numbers);
}

template <int Kind> LANE F opened(F gate, F up, const float *numbers) {
    if (Kind != kClampedSwiglu && Kind != kClampedSilu) return mul(active<Kind>(gate, numbers), up);
    F limit = set1(numbers[Kind == kClampedSilu ? 0 : 1]), within = max(sub(zero(), limit), min(limit, up));
    if (Kind == kClampedSilu) return mul(min(limit, silu(gate)), within);
    F capped = min(limit, gate);
    F open = div(capped, add(exponential(mul(capped, set1(-numbers[0]))), set1(1)));
    return mul(open, add(within, set1(1)));
}

template <int Kind> static void gated_rows(const RowsCall *c, long begin, long end) {
    for (long row = begin; row < end; row++) {
        const float *gate = c->x + row * c->x_stride, *up = gate + c->width;
        float *out = c->out + row * c->out_stride;
        for (long i = 0; i < c->width; i += 16) {
            long n = c->width - i;
            store_upto(out + i, opened<Kind>(load_upto(gate + i, n), load_upto(up + i, n), c->activation.numbers), n);
        }
    }
}

template <int Kind> static void active_rows(const RowsCall *c, long begin, long end) {
    for (long row = begin; row < end; row++) {
        const float *x = c->x + row * c->x_stride;
        float *out = c->out + row * c->out_stride;
        for (long i = 0; i < c->width; i += 16) {
            long n = c->width - i;
            store_upto(out + i, active<Kind>(load_upto(x + i, n), c->activation.numbers), n);
        }
    }
}

static void gated(const RowsCall *c, long begin, long end) {
    switch (c->activation.kind) {
    case kSilu: return gated_rows<kSilu>(c, begin, end);
    case kGeluTanh: return gated_rows<kGeluTanh>(c, begin, end);
    case kGelu: return gated_rows<kGelu>(c, begin, end);
    case kRelu: return gated_rows<kRelu>(c, begin, end);
    case kRelu2: return gated_rows<kRelu2>(c, begin, end);
    case kQuickGelu: return gated_rows<kQuickGelu>(c, begin, end);
    case kXielu: return gated_rows<kXielu>(c, begin, end);
    case kClampedSilu: return gated_rows<kClampedSilu>(c, begin, end);
    default: return gated_rows<kClampedSwiglu>(c, begin, end);
    }
}

static void activate(const RowsCall *c, long begin, long end) {
    switch (c->activation.kind) {
    case kSilu: return active_rows<kSilu>(c, begin, end);
    case kGeluTanh: return active_rows<kGeluTanh>(c, begin, end);
    case kGelu: return active_rows<kGelu>(c, begin, end);
    case kRelu: return active_rows<kRelu>(c, begin, end);
    case kRelu2: return active_rows<kRelu2>(c, begin, end);
    case kQuickGelu: return active_rows<kQuickGelu>(c, begin, end);
    default: return active_rows<kXielu>(c, begin, end);
    }
}

// Multiplies each of `factor` neighbouring values of out by the sigmoid of one value of x.
static void open_rows(const RowsCall *c, long begin, long end) {
    const long together = (long)c->factor;
    for (long row = begin; row < end; row++) {
        const float *x = c->x + row * c->x_stride;
        float *out = c->out + row * c->out_stride;
        if (together == 1) {
            for (long i = 0; i < c->width; i += 16) {
                long n = c->width - i;
                store_upto(out + i, mul(load_upto(out + i, n), sigmoid_of(load_upto(x + i, n))), n);
            }
            continue;
        }
        for (long first = 0; first < c->width; first += together) {
            const F opened = sigmoid_of(set1(x[first / together]));
            for (long i = 0; i < together; i += 16) {
                long n = together - i;
                store_upto(out + first + i, mul(load_upto(out + first + i, n), opened), n);
            }
        }
    }
}

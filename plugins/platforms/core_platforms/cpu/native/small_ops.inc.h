// Norms, rotary, gated activation, addition and scaling on rows of float32; each row is independent.

LANE F load_upto(const float *p, long n) { return n >= 16 ? load(p) : load_part(p, n); }
LANE void store_upto(float *p, F x, long n) {
    if (n >= 16)
        store(p, x);
    else
        store_part(p, x, n);
}

// e^x to about 2 units in the last place; 0 far below, the largest finite power far above.
LANE F exponential(F x) {
    x = min(max(x, set1(-87.33f)), set1(88.37f)); // keeps the result a normal number
    I n = round_to_int(mul(x, set1(1.44269504f)));
    F whole = to_float(n);
    // Ln 2 in two parts: the first has few enough bits that its multiples are exact.
    F r = fma(whole, set1(-0.693145752f), x);
    r = fma(whole, set1(-1.42860677e-6f), r);
    F p = fma(r, set1(1.9875691e-4f), set1(1.3981999e-3f));
    p = fma(p, r, set1(8.3334519e-3f));
    p = fma(p, r, set1(4.1665796e-2f));
    p = fma(p, r, set1(1.6666666e-1f));
    p = fma(p, r, set1(5.0000001e-1f));
    p = add(fma(p, mul(r, r), r), set1(1));
    return mul(p, as_float(shift_left<23>(iadd(n, iset1(127)))));
}

// The sum of (x - mean)² over a row, in four separate accumulators.
LANE float square_sum(const float *x, F mean, long width) {
    F squares[4] = {zero(), zero(), zero(), zero()};
    long i = 0;
    for (; i + 64 <= width; i += 64)
        for (int v = 0; v < 4; v++) {
            F value = sub(load(x + i + 16 * v), mean);
            squares[v] = fma(value, value, squares[v]);
        }
    for (; i + 16 <= width; i += 16) {
        F value = sub(load(x + i), mean);
        squares[0] = fma(value, value, squares[0]);
    }
    if (i < width) {
        F value = select_range(sub(load_part(x + i, width - i), mean), zero(), 0, (int32_t)(width - i));
        squares[0] = fma(value, value, squares[0]);
    }
    return sum(add(add(squares[0], squares[1]), add(squares[2], squares[3])));
}

LANE float row_sum(const float *x, long width) {
    F sums[4] = {zero(), zero(), zero(), zero()};
    long i = 0;
    for (; i + 64 <= width; i += 64)
        for (int v = 0; v < 4; v++) sums[v] = add(sums[v], load(x + i + 16 * v));
    for (; i < width; i += 16) sums[0] = add(sums[0], load_upto(x + i, width - i));
    return sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

LANE void norm_row(const float *x, const float *weight, float eps, float *out, long width) {
    const float mean_square = square_sum(x, zero(), width) / (float)width;
    F inverse = set1(1.0f / __builtin_sqrtf(mean_square + eps));
    for (long i = 0; i < width; i += 16) {
        long n = width - i;
        store_upto(out + i, mul(mul(load_upto(x + i, n), inverse), load_upto(weight + i, n)), n);
    }
}

LANE void layer_norm_row(const float *x, const float *weight, const float *bias, float eps, float *out, long width) {
    const F mean = set1(row_sum(x, width) / (float)width);
    const float variance = square_sum(x, mean, width) / (float)width;
    F inverse = set1(1.0f / __builtin_sqrtf(variance + eps));
    for (long i = 0; i < width; i += 16) {
        long n = width - i;
        F value = mul(mul(sub(load_upto(x + i, n), mean), inverse), load_upto(weight + i, n));
        store_upto(out + i, bias ? add(value, load_upto(bias + i, n)) : value, n);
    }
}

static void norm(const NormCall *c, long begin, long end) {
    for (long row = begin; row < end; row++)
        for (long head = 0; head < c->heads; head++) {
            const float *x = c->x + row * c->row_stride + head * c->head_stride, *weight = c->weight + head * c->weight_stride;
            float *out = c->out + row * c->out_row_stride + head * c->out_head_stride;
            const float *bias = c->bias ? c->bias + head * c->weight_stride : nullptr;
            if (c->centred)
                layer_norm_row(x, weight, bias, c->eps, out, c->width);
            else
                norm_row(x, weight, c->eps, out, c->width);
        }
}

// Rotates the pairs (i, i + half) by the angle of the row's position.
static void rotary(const RotaryCall *c, long begin, long end) {
    for (long row = begin; row < end; row++) {
        const float *cosine = c->cos + c->positions[row] * c->half, *sine = c->sin + c->positions[row] * c->half;
        for (long head = 0; head < c->heads; head++) {
            float *first = c->x + row * c->row_stride + head * c->head_stride, *second = first + c->half;
            for (long i = 0; i < c->half; i += 16) {
                long n = c->half - i;
                F a = load_upto(first + i, n), b = load_upto(second + i, n);
                F cs = load_upto(cosine + i, n), sn = load_upto(sine + i, n);
                store_upto(first + i, sub(mul(a, cs), mul(b, sn)), n);
                store_upto(second + i, add(mul(b, cs), mul(a, sn)), n);
            }
        }
    }
}

static void add_rows(const RowsCall *c, long begin, long end) {
    for (long row = begin; row < end; row++) {
        const float *x = c->x + row * c->x_stride;
        float *out = c->out + row * c->out_stride;
        for (long i = 0; i < c->width; i += 16) {
            long n = c->width - i;
            store_upto(out + i, add(load_upto(out + i, n), load_upto(x + i, n)), n);
        }
    }
}

static void scale_rows(const RowsCall *c, long begin, long end) {
    for (long row = begin; row < end; row++) {
        float *out = c->out + row * c->out_stride;
        for (long i = 0; i < c->width; i += 16) {
            long n = c->width - i;
            store_upto(out + i, mul(load_upto(out + i, n), set1(c->factor)), n);
        }
    }
}

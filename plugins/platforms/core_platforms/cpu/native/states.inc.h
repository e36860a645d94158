// Layers with a recurrent state: the convolution, the state update, gates and norms. A row's bits depend only on its
// earlier tokens: every function processes tokens in sequence, and neighbouring numbers independently.

// The logarithm of 1 + e^x: log(1 + u) is 2 atanh(u / (2 + u)).
LANE F softplus(F x) {
    F u = exponential(sub(zero(), abs(x))), s = div(u, add(u, set1(2))), square = mul(s, s);
    F p = fma(square, set1(1.0f / 15), set1(1.0f / 13));
    p = fma(p, square, set1(1.0f / 11));
    p = fma(p, square, set1(1.0f / 9));
    p = fma(p, square, set1(1.0f / 7));
    p = fma(p, square, set1(0.2f));
    p = fma(p, square, set1(1.0f / 3));
    p = fma(p, square, set1(1));
    return fma(mul(s, set1(2)), p, max(zero(), x));
}

static float one_of(F x) {
    float lanes[16];
    store(lanes, x);
    return lanes[0];
}

static bool begins(const StateCall &c, long sequence) {
    return c.seq_lens[sequence] == c.cu_seqlens[sequence + 1] - c.cu_seqlens[sequence];
}

// Offsets of x, B, C (or q, k, v) among a token's inputs.
LANE long mixed_start(const StateLayer &l) { return l.op == kMamba2 ? l.heads * l.rows : 0; }

// Convolves channels [channel, last) of one sequence. Products round before they are added, tap by tap.
template <int Element> static void convolve(const StateCall *c, long sequence, long channel, long last) {
    const StateLayer &l = *c->layer;
    const long past = l.kernel - 1, count = last - channel;
    const StatePiece state = state_of(*c, sequence), source = source_of(*c, sequence);
    float recent[kStateTaps][kStateChannels]; // ring buffer: token t is at t modulo `kernel`
    if (begins(*c, sequence))
        memset(recent, 0, sizeof recent);
    else
        for (long i = 0; i < past; i++) copy_window<Element, false>(source, i * l.channels + channel, count, recent[i]);
    long newest = past;
    for (long row = c->cu_seqlens[sequence]; row < c->cu_seqlens[sequence + 1]; row++) {
        const float *x = c->x + row * c->x_stride + mixed_start(l) + channel;
        for (long i = 0; i < count; i += 16) {
            const long n = count - i;
            F y, value = load_upto(x + i, n);
            if (l.op == kShortConv) value = mul(value, load_upto(x + 2 * l.channels + i, n));
            store_upto(recent[newest] + i, as_stored<Element>(value), n);
            y = mul(load_upto(l.taps + past * l.channels + channel + i, n), value);
            if (l.bias) y = add(y, load_upto(l.bias + channel + i, n));
            for (long tap = 0, at = newest; tap < past; tap++) {
                at = at == past ? 0 : at + 1;
                y = add(y, mul(load_upto(l.taps + tap * l.channels + channel + i, n), load_upto(recent[at] + i, n)));
            }
            if (l.op == kShortConv)
                store_upto(c->out + row * c->out_stride + channel + i, mul(load_upto(x + l.channels + i, n), y), n);
            else
                store_upto(c->mixed + row * l.channels + channel + i, silu(y), n);
        }
        newest = newest == past ? 0 : newest + 1;
    }
    for (long i = 0; i < past; i++) { // the entry after the newest one is the oldest
        const long at = (newest + 1 + i) % l.kernel;
        copy_window<Element, true>(state, i * l.channels + channel, count, recent[at]);
    }
}

static void state_convolve(const StateCall *c, long sequence, long channel, long last) {
    switch (c->layer->window_element) {
    case kCacheBF16: return convolve<kCacheBF16>(c, sequence, channel, last);
    case kCacheF16: return convolve<kCacheF16>(c, sequence, channel, last);
    default: return convolve<kCacheF32>(c, sequence, channel, last);
    }
}

// x / sqrt(mean of squares + eps) (* weight) (* scale), in place, over `width` numbers; with `length`, of the sum of
// squares.
static void unit_row(const float *x, float *out, long width, float eps, bool length, float scale, const float *weight) {
    const float squares = square_sum(x, zero(), width);
    const F inverse = set1(scale / __builtin_sqrtf((length ? squares : squares / (float)width) + eps));
    for (long i = 0; i < width; i += 16) {
        const long n = width - i;
        F value = mul(load_upto(x + i, n), inverse);
        store_upto(out + i, weight ? mul(value, load_upto(weight + i, n)) : value, n);
    }
}

static void state_select(const StateCall *c, float *selected, long begin, long end) {
    const StateLayer &l = *c->layer;
    const bool weighted = l.norm == kWeightedNorm;
    for (long row = begin; row < end; row++) {
        float *r = selected + row * c->first_stride, *b = r + l.rank, *s = b + l.length;
        unit_row(r, r, l.rank, l.norm_eps, false, 1, weighted ? l.norm_weight : nullptr);
        unit_row(b, b, l.length, l.norm_eps, false, 1, weighted ? l.b_weight : nullptr);
        unit_row(s, s, l.length, l.norm_eps, false, 1, weighted ? l.c_weight : nullptr);
    }
}

// Inputs that some tokens contribute to one task; see RowsJob.
struct StateTask {
    const StateCall *call;
    long first, head, row; // row of the batch, head, first row of the head's state
    RowsJob job;
    float *vectors, *decay, *beta, *in, *out;
};

static void scalar_decays(const StateTask &t, long at) { // one decay per head, and beta or dt
    const StateLayer &l = *t.call->layer;
    const float *x = t.call->x + (t.first + at) * t.call->x_stride;
    if (l.op == kMamba2) {
        float dt = x[mixed_start(l) + l.channels + t.head] * l.dt_scale + l.dt_bias[t.head];
        dt = one_of(min(set1(l.dt_max), max(set1(l.dt_min), softplus(set1(dt)))));
        t.decay[at] = one_of(exponential(set1(dt * l.rate[t.head])));
        t.beta[at] = dt;
        return;
    }
    const float *b = x + l.channels + l.heads * l.rows, *a = b + l.heads;
    const float dt = one_of(softplus(set1(a[t.head] + l.dt_bias[t.head])));
    t.decay[at] = one_of(exponential(set1(dt * l.rate[t.head])));
    t.beta[at] = l.beta_scale * one_of(sigmoid_of(set1(b[t.head])));
}

static void mamba_token(const StateTask &t, long at) {
    const StateLayer &l = *t.call->layer;
    const long width = row_width(l.length), row = t.first + at;
    const float *mixed = t.call->mixed + row * l.channels, *b, *c;
    float *vectors = t.vectors + at * 3 * width, *in = t.in + at * kStateRows;
    if (l.op == kMamba1) {
        b = t.call->first + row * t.call->first_stride + l.rank, c = b + l.length;
        float *dt = t.decay + at * kStateRows;
        const float *given = t.call->second + row * t.call->second_stride + t.row, *x = mixed + t.row;
        for (long i = 0; i < t.job.rows; i += 16) {
            const long n = t.job.rows - i;
            const F step = softplus(load_upto(given + i, n));
            store_upto(dt + i, step, n);
            store_upto(in + i, mul(step, load_upto(x + i, n)), n);
        }
    } else {
        scalar_decays(t, at);
        const long inner = l.heads * l.rows, group = t.head / (l.heads / l.groups);
        b = mixed + inner + group * l.length, c = b + l.groups * l.length;
        const float *x = mixed + t.head * l.rows;
        for (long i = 0; i < l.rows; i += 16) {
            const long n = l.rows - i;
            store_upto(in + i, mul(set1(t.beta[at]), load_upto(x + i, n)), n);
        }
    }
    memcpy(vectors, b, l.length * sizeof(float));
    memcpy(vectors + width, c, l.length * sizeof(float));
}

static void channel_decays(const StateTask &t, long at, float *decays) {
    const StateLayer &l = *t.call->layer;
    const float *x = t.call->x + (t.first + at) * t.call->x_stride + l.channels;
    const long width = l.rank ? l.rank : l.heads * l.length, start = t.head * l.length;
    const float *f = (l.rank ? t.call->first + (t.first + at) * t.call->first_stride : x) + start, *bias = l.dt_bias + start;
    const F rate = set1(l.rate[t.head]);
    for (long i = 0; i < l.length; i += 16) {
        const long n = l.length - i;
        F value = add(load_upto(f + i, n), load_upto(bias + i, n));
        if (l.decay_floor != 0)
            value = mul(set1(l.decay_floor), sigmoid_of(mul(sub(zero(), rate), value)));
        else
            value = mul(rate, softplus(value));
        store_upto(decays + i, exponential(value), n);
    }
    t.beta[at] = one_of(sigmoid_of(set1(x[width + t.head])));
}

static void delta_token(const StateTask &t, long at) {
    const StateLayer &l = *t.call->layer;
    const long width = row_width(l.length), keys = l.key_heads * l.length, key = t.head / (l.heads / l.key_heads);
    const float *mixed = t.call->mixed + (t.first + at) * l.channels;
    float *vectors = t.vectors + at * 3 * width;
    const float size = 1.0f / __builtin_sqrtf((float)l.length);
    unit_row(mixed + keys + key * l.length, vectors, l.length, l.qk_eps, true, 1, nullptr);
    unit_row(mixed + key * l.length, vectors + width, l.length, l.qk_eps, true, size, nullptr);
    memcpy(t.in + at * kStateRows, mixed + 2 * keys + t.head * l.rows, l.rows * sizeof(float));
    if (l.op == kKda)
        channel_decays(t, at, vectors + 2 * width);
    else
        scalar_decays(t, at);
}

// Applies a head's norm and gate as its rows leave the task.
static void delta_out(const StateTask &t, long at) {
    const StateLayer &l = *t.call->layer;
    const long row = t.first + at, start = t.head * l.rows;
    float *o = t.out + at * kStateRows, *out = t.call->out + row * t.call->out_stride + start;
    const float *x = t.call->x + row * t.call->x_stride + l.channels, *gate = x + start;
    if (l.op == kKda) gate = x + (l.rank ? l.rank : l.heads * l.length) + l.heads + start;
    if (l.op == kKda && l.gate_rank) gate = t.call->second + row * t.call->second_stride + start;
    unit_row(o, o, l.rows, l.norm_eps, false, 1, l.norm_weight);
    for (long i = 0; i < l.rows; i += 16) {
        const long n = l.rows - i;
        const F g = load_upto(gate + i, n), open = l.op == kKda ? sigmoid_of(g) : silu(g);
        store_upto(out + i, mul(load_upto(o + i, n), open), n);
    }
}

// y = h·C + D·x, before the gate.
static void mamba_out(const StateTask &t, long at) {
    const StateLayer &l = *t.call->layer;
    const long row = t.first + at, start = l.op == kMamba1 ? t.row : t.head * l.rows;
    const float *x = t.call->mixed + row * l.channels + start, *y = t.out + at * kStateRows;
    float *out = t.call->out + row * t.call->out_stride + start;
    for (long i = 0; i < t.job.rows; i += 16) {
        const long n = t.job.rows - i;
        const F skip = l.op == kMamba1 ? load_upto(l.skip + t.row + i, n) : set1(l.skip[t.head]);
        store_upto(out + i, add(load_upto(y + i, n), mul(load_upto(x + i, n), skip)), n);
    }
}

template <int Element> static void rows_of_op(int op, const RowsJob &job) {
    switch (op) {
    case kMamba1: return rows_of_length<kSelective, Element>(job);
    case kMamba2: return rows_of_length<kDecayed, Element>(job);
    case kGatedDelta: return rows_of_length<kDelta, Element>(job);
    default: return rows_of_length<kChannelDelta, Element>(job);
    }
}

static void update_rows(const StateLayer &l, const RowsJob &job) {
    switch (l.element) {
    case kCacheBF16: return rows_of_op<kCacheBF16>(l.op, job);
    case kCacheF16: return rows_of_op<kCacheF16>(l.op, job);
    default: return rows_of_op<kCacheF32>(l.op, job);
    }
}

// Passes tokens through the rows where they lie, block by block. source: where the first token reads them.
static void update_in_blocks(const StateTask &t, const StatePiece &source, const StatePiece &state, long at, long row) {
    const StateLayer &l = *t.call->layer;
    for (long done = 0; done < t.job.rows;) {
        RowsJob job = t.job;
        job.rows = rows_in_block(state, at + done * row, t.job.rows - done, row);
        job.from = place_of(source, at + done * row), job.state = place_of(state, at + done * row);
        job.in += done, job.out += done;
        if (l.op == kMamba1) job.rate += done * l.length, job.decay += done;
        update_rows(l, job);
        done += job.rows;
    }
}

// Sets rows of a sequence that begins to zero where they lie.
static void clear_blocks(const StatePiece &state, long at, long rows, long row) {
    for (long done = 0; done < rows;) {
        const long here = rows_in_block(state, at + done * row, rows - done, row);
        memset(place_of(state, at + done * row), 0, here * row);
        done += here;
    }
}

// Passes all tokens of a sequence through some rows of a head's state. memory: kStateFloats.
static void state_update(const StateCall *c, long sequence, long task, float *memory) {
    const StateLayer &l = *c->layer;
    const long units = ceil_div(l.rows, c->unit), head = task / units, row = task % units * c->unit;
    const long rows = at_most(c->unit, l.rows - row), width = row_width(l.length);
    const long item = state_item(l.element), row_bytes = l.length * item;
    const long at = recurrent_start(l) + (head * l.rows + row) * row_bytes;
    const StatePiece state = state_of(*c, sequence), source = begins(*c, sequence) ? state : source_of(*c, sequence);
    const bool whole = rows_lie_whole(state, at, rows, row_bytes, item);
    if (whole && begins(*c, sequence))
        clear_blocks(state, at, rows, row_bytes);
    else if (whole) // while the first token's vectors are made
        fetch_state(place_of(source, at), at_most(kBytesAhead, rows_in_block(source, at, rows, row_bytes) * row_bytes));
    else if (begins(*c, sequence))
        memset(memory, 0, rows * row_bytes);
    else
        copy_state<false>(source, at, rows * row_bytes, memory);
    StateTask t = {};
    t.call = c, t.head = head, t.row = row;
    t.vectors = memory + kStateRows * kStateRow, t.in = t.vectors + kStateTokens * 3 * kStateRow;
    t.out = t.in + kStateTokens * kStateRows, t.decay = t.out + kStateTokens * kStateRows;
    float beta[kStateTokens];
    t.beta = beta;
    const long tokens = c->cu_seqlens[sequence + 1] - c->cu_seqlens[sequence];
    if (l.length < width) memset(t.vectors, 0, at_most(kStateTokens, tokens) * 3 * width * sizeof(float)); // the padding
    const bool mamba = l.op == kMamba1 || l.op == kMamba2;
    for (long first = c->cu_seqlens[sequence], end = c->cu_seqlens[sequence + 1]; first < end; first += kStateTokens) {
        t.first = first;
        const float *rate = l.op == kMamba1 ? l.rate + row * l.length : nullptr;
        t.job = {memory, memory, rows, l.length, at_most(kStateTokens, end - first), t.vectors, t.decay, t.beta, t.in, rate, t.out};
        for (long i = 0; i < t.job.tokens; i++) mamba ? mamba_token(t, i) : delta_token(t, i);
        if (whole)
            update_in_blocks(t, first == c->cu_seqlens[sequence] ? source : state, state, at, row_bytes);
        else
            update_rows(l, t.job);
        for (long i = 0; i < t.job.tokens; i++) mamba ? mamba_out(t, i) : delta_out(t, i);
    }
    if (!whole) copy_state<true>(state, at, rows * row_bytes, memory);
}

static void gate_row(float *y, const float *z, long width, float scale) {
    for (long i = 0; i < width; i += 16) {
        const long n = width - i;
        store_upto(y + i, mul(load_upto(y + i, n), silu(mul(load_upto(z + i, n), set1(scale)))), n);
    }
}

static void state_finish(const StateCall *c, long begin, long end) {
    const StateLayer &l = *c->layer;
    const long inner = l.heads * l.rows, group = inner / l.norm_groups;
    for (long row = begin; row < end; row++) {
        float *y = c->out + row * c->out_stride;
        const float *z = c->x + row * c->x_stride + (l.op == kMamba1 ? inner : 0);
        if (l.norm != kBeforeGate) gate_row(y, z, inner, l.z_scale);
        if (l.norm == kAfterGate || l.norm == kBeforeGate)
            for (long g = 0; g < inner; g += group) unit_row(y + g, y + g, group, l.norm_eps, false, 1, l.norm_weight + g);
        if (l.norm == kBeforeGate) gate_row(y, z, inner, l.z_scale);
    }
}

// Operations on rows: activations, gates, norms, sampling with filters, log-probabilities, and the updates of adapters.
#include "common.h"

static void note_activations() {
    const long rows = 3, width = 83;
    Floats x = random(rows * 2 * width), out(rows * width);
    for (float &value : x) value *= 12;
    for (int kind = kSilu; kind <= kClampedSwiglu; kind++) {
        RowsCall c = {};
        c.x = x.data(), c.x_stride = 2 * width, c.out = out.data(), c.out_stride = width, c.rows = rows, c.width = width;
        c.activation = {kind, {1.702f, 0.8f, 0.5f, -1e-6f}};
        if (kind == kClampedSwiglu) c.activation.numbers[1] = 7;
        char what[64];
        run_gated(c);
        snprintf(what, sizeof what, "gated activation %d", kind);
        note(what, out);
        if (kind == kClampedSwiglu) continue;
        run_activate(c);
        snprintf(what, sizeof what, "activation %d", kind);
        note(what, out);
    }
    RowsCall c = {};
    c.x = x.data(), c.x_stride = 2 * width, c.out = out.data(), c.out_stride = width, c.rows = rows, c.width = width;
    run_add(c), note("add", out);
    c.factor = 0.37f, run_scale(c), note("scale", out);
    c.factor = 3, run_soft_cap(c), note("soft cap", out);
    c.factor = 1, run_open_gate(c), note("open gate", out);
}

static void note_norms() {
    const long rows = 5, heads = 3, width = 52;
    Floats x = random(rows * heads * width), gain = random(heads * width), shift = random(heads * width), out(x.size());
    for (int centred : {0, 1}) {
        NormCall n = {};
        n.x = x.data(), n.out = out.data(), n.row_stride = n.out_row_stride = heads * width;
        n.head_stride = n.out_head_stride = n.weight_stride = width, n.weight = gain.data(), n.bias = shift.data();
        n.eps = 1e-5f, n.rows = rows, n.heads = heads, n.width = width, n.centred = centred;
        run_norm(n);
        note(centred ? "layer norm" : "norm with a bias", out);
    }
}

static void note_sampling() {
    const long rows = 8, vocab = 4099, width = 5;
    Floats logits = random(rows * vocab), heat(rows), least(rows);
    for (float &value : logits) value *= 11;
    std::vector<int64_t> which(rows), keys(rows * 5), top_k(rows), out(rows), chosen(rows), counts(rows), ids(rows * width), ranks(rows);
    std::vector<double> top_p(rows), values(rows * width);
    std::vector<uint32_t> masks((vocab + 31) / 32 * rows);
    std::vector<int64_t> mask_rows(rows);
    for (uint32_t &mask : masks) mask = next() | next();
    for (long r = 0; r < rows; r++) {
        which[r] = rows - 1 - r, heat[r] = 0.25f * (float)r, top_k[r] = r % 3 * 20, top_p[r] = r % 2 ? 0.9 : 1, least[r] = r % 4 ? -1e30f : -3;
        chosen[r] = 77 * r, counts[r] = width - 1 - r % 3, mask_rows[r] = r % 2 ? r : -1;
        for (long i = 0; i < 5; i++) keys[r * 5 + i] = 31 * r + i;
    }
    RaceCall c = {};
    c.logits = logits.data(), c.stride = c.vocab = vocab, c.rows = rows, c.which = which.data(), c.keys = keys.data();
    c.temperatures = heat.data(), c.top_k = top_k.data(), c.top_p = top_p.data(), c.least = least.data();
    c.masks = masks.data(), c.mask_words = (vocab + 31) / 32, c.mask_rows = mask_rows.data(), c.out = out.data();
    run_race(c);
    note("race with filters", out.data(), rows * sizeof(int64_t));
    run_logprobs({logits.data(), vocab, vocab, rows, width, which.data(), chosen.data(), counts.data(), ids.data(), values.data(), ranks.data()});
    note("log-probabilities: tokens", ids.data(), ids.size() * sizeof(int64_t));
    note("log-probabilities: ranks", ranks.data(), ranks.size() * sizeof(int64_t));
    note("log-probabilities: values", values.data(), values.size() * sizeof(double));
}

static void note_routing() {
    const long rows = 9, experts = 24, top_k = 4;
    Floats logits = random(rows * experts), bias = random(experts), weights(rows * top_k);
    for (float &value : logits) value *= 4;
    for (int scores : {kSoftmax, kSigmoid, kSparseMixer}) {
        std::vector<int64_t> ids(rows * top_k);
        RouteCall r = {};
        r.logits = logits.data(), r.stride = r.experts = experts, r.rows = rows, r.top_k = scores == kSparseMixer ? 2 : top_k;
        r.scores = scores, r.renormalize = scores == kSigmoid, r.epsilon = 1e-20f, r.jitter = 0.01f, r.factor = 2.5f;
        r.groups = scores == kSigmoid ? 4 : 1, r.top_groups = r.groups > 1 ? 2 : 1, r.pair_groups = r.groups > 1;
        if (scores == kSigmoid) r.bias = bias.data();
        r.ids = ids.data(), r.weights = weights.data();
        run_route(r);
        char what[64];
        snprintf(what, sizeof what, "routing by scores %d", scores);
        note(what, weights);
        note(what, ids.data(), ids.size() * sizeof(int64_t));
    }
}

static void note_adapters() {
    const long rows = 21, k = 96, outputs = 64, rank = 24, panels = 2;
    for (int format : {kF32, kF16, kBF16}) {
        const long width = format == kF32 ? 4 : 2;
        std::vector<uint8_t> a(panels * kRankLanes * k * width), b(2 * kPanel * rank * width);
        for (auto *matrix : {&a, &b})
            for (size_t i = 0; i < matrix->size(); i += width) {
                const float number = uniform();
                const uint16_t half = format == kBF16 ? upper(number) : (uint16_t)((next() >> 16 & 0x8fff) | 0x2800);
                format == kF32 ? (void)memcpy(&(*matrix)[i], &number, 4) : (void)memcpy(&(*matrix)[i], &half, 2);
            }
        Floats x = random(rows * k), out = random(rows * outputs), gain = random(outputs), shift = random(outputs);
        LowRankUpdate update = {a.data(), panels, 1, {{0, outputs, 0, rank, b.data(), gain.data(), shift.data(), 0.75}}};
        const LowRankUpdate *table[] = {&update, nullptr};
        std::vector<int32_t> which(rows);
        for (long r = 0; r < rows; r++) which[r] = (int32_t)(r % 3 - 1);
        run_low_rank({x.data(), k, rows, out.data(), outputs, which.data(), table, 2, outputs, k, 4, format});
        char what[64];
        snprintf(what, sizeof what, "adapters of format %d", format);
        note(what, out);
    }
}

void note_rows() {
    note_activations();
    note_norms();
    note_sampling();
    note_routing();
    note_adapters();
}

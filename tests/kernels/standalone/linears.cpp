// Products with weights of every format, way of scaling and activation: few rows, and enough for every inner block.
#include "common.h"

typedef std::vector<uint8_t> Bytes;

struct Form {
    int format, activation;
    long k, group, input_group, super;
    int scale_type;
    bool minimum, zeros, subs;
    long segments;
};

static void put_scale(Bytes &to, int type) {
    const uint32_t bits = next() >> 8;
    const float wide = 0.01f * (1.5f + (float)(bits & 255) / 256);
    uint8_t bytes[4];
    uint16_t half = (uint16_t)(type == kScaleBF16 ? upper(wide) : 0x2000 + (bits & 0x3ff));
    memcpy(bytes, &wide, 4);
    if (type == kScaleF16 || type == kScaleBF16) memcpy(bytes, &half, 2);
    if (type == kScaleE8M0) bytes[0] = (uint8_t)(118 + bits % 5);
    if (type == kScaleE4M3) bytes[0] = (uint8_t)(0x20 + (bits & 15));
    const int widths[] = {4, 2, 1, 1, 2};
    to.insert(to.end(), bytes, bytes + widths[type]);
}

static PackedLinear *pack(const Form &f, long n) {
    const bool planes = f.format >= kPlanes2, small = f.format < kInt4;
    const long bits[] = {32, 16, 16, 4, 8, 4, 8, 8, 2, 3, 4, 5, 6, 4, 3}, all = n * f.k, low = bits[f.format] < 4 ? 2 : 4;
    Bytes values = random_bytes(all * (planes ? low : bits[f.format]) / 8), high = random_bytes(all / 2), scale, minimum;
    for (uint8_t &value : values) {
        if (f.format == kE4M3 && (value & 127) == 127) value = 0; // not a number
        if (f.format == kE5M2) value &= 0xbf;                     // nor larger than 2
    }
    for (long i = 0; i < all && small; i++) {
        const float number = uniform();
        const uint16_t half = f.format == kBF16 ? upper(number) : (uint16_t)(0x3000 + (i * 37 & 0xfff));
        f.format == kF32 ? (void)memcpy(&values[4 * i], &number, 4) : (void)memcpy(&values[2 * i], &half, 2);
    }
    const long scales = small ? 0 : n * ((f.k + (planes ? f.super : f.group) - 1) / (planes ? f.super : f.group));
    for (long i = 0; i < scales; i++) put_scale(scale, f.scale_type), put_scale(minimum, f.scale_type);
    Bytes zeros = random_bytes(scales), sub = random_bytes(all / 16), sub_minimum = random_bytes(all / 16);
    for (uint8_t &zero : zeros) zero &= 7;
    Floats codes(16), bias = random(n), factors = random(n);
    for (int i = 0; i < 16; i++) codes[i] = (float)(i * (i - 9) % 13) / 2;
    PackSource s = {};
    s.format = f.format, s.activation = f.activation, s.n = n, s.k = f.k, s.group = f.group, s.super = f.super;
    s.zero = f.format == kInt4 ? 8 : f.format == kInt8 ? 128 : planes ? 1 << (bits[f.format] - 1) : 0;
    if (f.format == kCode4 || f.format >= kPlanesCode4) s.codes = codes.data(), s.zero = 16;
    s.scale_type = f.scale_type, s.segments = f.segments, s.input_group = f.input_group;
    s.values = values.data(), s.scale = scale.data(), s.bias = bias.data();
    if (f.minimum) s.minimum = minimum.data();
    if (f.zeros) s.zeros = zeros.data();
    if (planes) s.high = high.data();
    if (planes && f.subs) s.sub_scale = sub.data();
    if (planes && f.subs && f.format == kPlanes6) s.sub_minimum = f.minimum ? sub_minimum.data() : nullptr;
    if (!small && !planes) s.row_scale = factors.data();
    return pack_linear(&s);
}

static const Form forms[] = {
    {kF32, kNone, 128, 0, 0, 0, 0, false, false, false, 8},
    {kF16, kNone, 77, 0, 0, 0, 0, false, false, false, 1},
    {kBF16, kNone, 128, 0, 0, 0, 0, false, false, false, 2},
    {kBF16, kRoundBF16, 77, 0, 0, 0, 0, false, false, false, 1},
    {kInt4, kNone, 128, 64, 0, 0, kScaleBF16, false, false, false, 1},
    {kInt4, kQuantInt8, 256, 128, 32, 0, kScaleF16, false, false, false, 4},
    {kInt4, kQuantInt8, 256, 128, 32, 0, kScaleF16, false, true, false, 1},
    {kInt4, kQuantInt8, 128, 32, 0, 0, kScaleF16, true, false, false, 2},
    {kInt4, kQuantInt8, 120, 24, 0, 0, kScaleF32, false, false, false, 1},
    {kInt4, kQuantInt8, 128, 128, 0, 0, kScaleF32, false, false, false, 1},
    {kInt4, kQuantInt8, 144, 72, 32, 0, kScaleF32, false, true, false, 1},
    {kInt8, kQuantInt8, 96, 32, 0, 0, kScaleF16, false, false, false, 1},
    {kInt8, kQuantInt8, 200, 200, 0, 0, kScaleF32, false, false, false, 1},
    {kInt8, kQuantInt8, 256, 128, 32, 0, kScaleE8M0, false, false, false, 1},
    {kInt8, kNone, 64, 16, 0, 0, kScaleF32, true, false, false, 1},
    {kCode4, kNone, 64, 32, 0, 0, kScaleE8M0, false, false, false, 1},
    {kCode4, kRoundBF16, 64, 32, 0, 0, kScaleE8M0, false, false, false, 1},
    {kCode4, kQuantInt8, 64, 32, 0, 0, kScaleE8M0, false, false, false, 1},
    {kE4M3, kNone, 96, 32, 0, 0, kScaleF32, false, false, false, 1},
    {kE4M3, kRoundBF16, 96, 96, 0, 0, kScaleF32, false, false, false, 1},
    {kE5M2, kNone, 96, 16, 0, 0, kScaleE4M3, false, false, false, 1},
    {kE5M2, kRoundBF16, 96, 32, 0, 0, kScaleF32, false, false, false, 1},
    {kPlanes2, kQuantInt8, 256, 16, 0, 256, kScaleF16, true, false, true, 1},
    {kPlanes3, kQuantInt8, 256, 16, 0, 256, kScaleF16, false, false, true, 8},
    {kPlanes4, kQuantInt8, 512, 32, 0, 256, kScaleF16, true, false, true, 2},
    {kPlanes5, kQuantInt8, 256, 32, 0, 256, kScaleF16, true, false, true, 1},
    {kPlanes4, kQuantInt8, 256, 32, 0, 32, kScaleF16, false, true, false, 1},
    {kPlanes6, kQuantInt8, 256, 16, 0, 256, kScaleF16, false, false, true, 1},
    {kPlanes6, kQuantInt8, 256, 32, 0, 256, kScaleF16, true, false, true, 1},
    {kPlanesCode4, kQuantInt8, 256, 32, 0, 256, kScaleF16, false, false, true, 1},
    {kPlanesCode3, kQuantInt8, 256, 32, 0, 256, kScaleF16, false, false, true, 1},
    {kPlanes4, kNone, 256, 32, 0, 256, kScaleF16, true, false, true, 1},
    {kPlanesCode3, kNone, 256, 32, 0, 256, kScaleF16, false, false, true, 1},
};

void note_linears() {
    const long n = 128;
    for (const Form &f : forms) {
        PackedLinear *weight = pack(f, n);
        for (long rows : {1, 5, 16, 30, 97}) {
            for (int gated : {0, 1}) {
                Floats x = random(rows * f.k), out(rows * n, 9);
                LinearRun run = {};
                run.weight = weight, run.x = x.data(), run.x_stride = f.k, run.rows = rows;
                run.out = out.data(), run.out_stride = n, run.gated = gated, run.accumulate = !gated && rows == 5;
                run_linear(run);
                char what[160];
                snprintf(what, sizeof what, "%slinear of format %d, activation %d, form %ld, %ld rows",
                         gated ? "gated " : "", f.format, f.activation, (long)(&f - forms), rows);
                note(what, out);
            }
        }
        const int64_t ids[] = {0, 127, 31, 64};
        Floats rows(4 * f.k);
        run_gather({weight, ids, 4, rows.data(), f.k, 0, 0});
        char what[64];
        snprintf(what, sizeof what, "rows of format %d, form %ld", f.format, (long)(&f - forms));
        note(what, rows);
        free_linear(weight);
    }
}

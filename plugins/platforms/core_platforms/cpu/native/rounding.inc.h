// Rounds a row of inputs to the narrow numbers that a checkpoint declares, with the same bits as the reference
// (core_runtime/weights/input_rounding.py): the same operations in the same order, each correctly rounded.
//
// max and min return their second argument where one of the two is NaN. Values are therefore second where a NaN shall stay.

constexpr int kFloatMantissa = 23;
constexpr int kFloatBias = 127;

LANE F sign_of(F x) { return as_float(iand(as_int(x), iset1((int32_t)0x80000000))); }
LANE F with_sign(F x, F sign) { return as_float(ior(as_int(x), as_int(sign))); }

// Adding and subtracting 1.5 * 2^23 steps leaves the nearest multiple of a step, ties to even; a zero keeps its sign.
LANE F nearest_multiple(F x, F step) {
    const F large = mul(step, set1(0x1.8p23f));
    return with_sign(sub(add(x, large), large), sign_of(x));
}

struct NumberLanes {
    F low, high;
    F least;    // the smallest normal number
    F per_step; // step over the largest power of two that a number contains
};

LANE NumberLanes number_lanes(const InputRounding &r) {
    const float low = r.mantissa < 0 ? -r.largest - 1 : -r.largest;
    return {set1(low), set1(r.largest), set1(r.least), set1(r.per_step)};
}

template <bool Integers> LANE F nearest_number(F x, const NumberLanes &n) {
    const F cut = min(n.high, max(n.low, x));
    if (Integers) return nearest_multiple(cut, set1(1));
    const F power = as_float(iand(as_int(cut), iset1(0x7f800000)));
    return nearest_multiple(cut, mul(max(power, n.least), n.per_step));
}

LANE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
LANE float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

// The nearest 8-bit float of e4m3 of a magnitude that is at most the largest one.
static float nearest_e4m3(float x) {
    const float power = float_of(bits_of(x) & 0x7f800000), step = (power < 0x1p-6f ? 0x1p-6f : power) * 0x1p-3f;
    const float large = step * 0x1.8p23f;
    return x + large - large;
}

static float power_of_two(int32_t exponent) { // limited to 2^-127 .. 2^127
    if (exponent <= -kFloatBias) return 0x1p-127f;
    return float_of((uint32_t)((exponent > kFloatBias ? kFloatBias : exponent) + kFloatBias) << kFloatMantissa);
}

static int32_t exponent_of(float largest, const InputRounding &r) { // of a scale that is a power of two
    if (r.rule == kInputsEven || r.rule == kInputsCarry) { // half a step of a mantissa may carry into the exponent
        const uint32_t half = 1u << (kFloatMantissa - 1 - (r.rule == kInputsEven ? r.mantissa : 1));
        return ((int32_t)(bits_of(largest) + half) >> kFloatMantissa) - kFloatBias - r.exponent;
    }
    int above = 0;
    const float mantissa = __builtin_frexpf(r.rule == kInputsQuotient ? largest / r.largest : largest, &above);
    if (r.rule == kInputsFloor) return above - 1 - r.exponent;
    const int32_t ceiling = mantissa == 0.5f ? above - 1 : above;
    return r.rule == kInputsQuotient ? ceiling : ceiling - r.exponent;
}

static float scale_of(float largest, const InputRounding &r) {
    if (r.rule == kInputsDivide || r.rule == kInputsLargest) {
        const float scale = largest / (r.rule == kInputsDivide && r.mantissa < 0 ? r.largest + 0.5f : r.largest);
        return scale == 0 ? 1 : scale;
    }
    if (r.rule == kInputsFP8) {
        const float quotient = r.scale * (largest / r.largest);
        const float narrow = quotient > 448 ? 448 : quotient != quotient ? quotient : nearest_e4m3(quotient);
        return (narrow == 0 ? 0.125f : narrow) / r.scale;
    }
    return power_of_two(exponent_of(largest, r));
}

// The extremes of a group, not beyond 0. A NaN among its values is one of the result.
struct Extremes {
    float low, high;
};
LANE Extremes extremes(const float *x, long count) {
    F low = zero(), high = zero(), damage = zero();
    for (long k = 0; k < count; k += 16) {
        const F value = load_padded(x, k, count);
        low = min(low, value), high = max(high, value);
        damage = add(damage, mul(value, zero())); // NaN from a NaN or an infinity on
    }
    const float damaged = sum(damage);
    if (damaged == 0) return {-largest(sub(zero(), low)), largest(high)};
    Extremes found = {0, 0};
    for (long k = 0; k < count; k++) {
        if (x[k] != x[k]) return {__builtin_nanf(""), __builtin_nanf("")};
        found.low = x[k] < found.low ? x[k] : found.low;
        found.high = x[k] > found.high ? x[k] : found.high;
    }
    return found;
}

enum RoundingForm { kByQuotient, kByProduct, kWithZero };
struct RoundingSteps {
    float divisor, factor, zero; // zero: of kWithZero alone
};

// out = nearest(x / divisor) * factor, nearest(x * divisor) * factor, or (nearest(x / divisor + zero) - zero) * factor
template <bool Integers, int Form> LANE void round_group(const float *x, long count, const InputRounding &r,
                                                          RoundingSteps steps, float *out) {
    const NumberLanes numbers = number_lanes(r);
    const F divisor = set1(steps.divisor), factor = set1(steps.factor), shift = set1(steps.zero);
    for (long k = 0; k < count; k += 16) {
        const F value = load_padded(x, k, count);
        F scaled = Form == kByProduct ? mul(value, divisor) : div(value, divisor);
        if (Form == kWithZero) scaled = add(scaled, shift);
        F near = nearest_number<Integers>(scaled, numbers);
        if (Form == kWithZero) near = sub(near, shift);
        near = mul(near, factor);
        k + 16 <= count ? store(out + k, near) : store_part(out + k, near, count - k);
    }
}

template <int Form> LANE void round_any(const float *x, long count, const InputRounding &r, RoundingSteps steps, float *out) {
    r.mantissa < 0 ? round_group<true, Form>(x, count, r, steps, out) : round_group<false, Form>(x, count, r, steps, out);
}

static void round_inputs(const InputRounding &r, const float *x, long count, float *out) {
    if (r.rule == kInputsFixed) return round_any<kWithZero>(x, count, r, {r.scale, r.scale, (float)r.zero}, out);
    const Extremes found = extremes(x, count);
    if (r.rule == kInputsRange) {
        const float least = -r.largest - 1, scale = (found.high - found.low) / (2 * r.largest + 1);
        const float divisor = scale == 0 ? 1 : scale, exact = least - found.low / divisor;
        const float cut = exact < least ? least : exact > r.largest ? r.largest : exact;
        return round_any<kWithZero>(x, count, r, {divisor, divisor, (cut + 0x1.8p23f) - 0x1.8p23f}, out);
    }
    float largest = -found.low > found.high ? -found.low : found.high;
    if (r.rule == kInputsInverse && largest < r.floor) largest = r.floor;
    if (largest > r.bound) largest = r.bound;
    if (r.rule == kInputsInverse) {
        const float inverse = 1 / largest * r.largest; // the reference takes a reciprocal and then a product
        return round_any<kByProduct>(x, count, r, {inverse, 1 / inverse, 0}, out);
    }
    const float scale = scale_of(largest, r);
    round_any<kByQuotient>(x, count, r, {scale, scale, 0}, out);
}

static void round_row(const PackedLinear &l, const float *x, float *out) {
    const InputRounding &r = l.rounding;
    const long group = r.group ? r.group : l.k;
    for (long k = 0; k < l.k; k += group) round_inputs(r, x + k, at_most(group, l.k - k), out + k);
}

// Locates the keys and values of one span; cache.inc.h writes the layout described here.
//
// A block holds, for each kv head, K and then V. In float32 and float16, K is [block_size / 16][dim][16 keys] and V
// [block_size][dim_v]. In the other types two neighbouring elements that a product sums are stored together: K is
// [block_size / 16][dim / 2][16 keys][2] and V [block_size / 2][dim_v][2]. So the lanes of a score are keys and the
// lanes of an output are its columns. Where 16 does not divide the block size, K is [block_size][dim] and V
// [block_size][dim_v], and spans are first gathered into the layout above (slower). Per-token scales follow: float32
// [block_size] for K, then for V. Where values are 4-bit codes (kv_codes.inc.h), 16 bits hold four columns: V is
// [block_size / 2][dim_v / 4][2].
//
// Types that no product reads are widened one span at a time, once for all rows of a task.

constexpr long kGroups = kSpan / 16;

struct SpanScratch {
    uint8_t k[kSpan * kMaxHead * 4], v[kSpan * kMaxHead * 4]; // gathered or widened
    uint8_t raw_k[16 * kMaxHead * 2], raw_v[16 * kMaxHead * 2]; // gathered, before widening
    float k_scales[kSpan], v_scales[kSpan];
};

// Addresses of the span's groups of 16 keys; null for groups that no row of the task sees. Scales: null without.
// `ahead`: bytes from there to the same group of the next span, which is fetched while this one is computed: blocks lie
// anywhere in memory, so the processor cannot foresee them. 0: nothing is fetched.
struct Span {
    long first; // absolute position of the first key
    ptrdiff_t ahead[kGroups];
    const uint8_t *k[kGroups], *v[kGroups];
    const float *k_scales[kGroups], *v_scales[kGroups];
};

LANE long clamp(long x, long low, long high) { return x < low ? low : x > high ? high : x; }

LANE const uint8_t *head_base(const AttentionCall &c, const AttentionTask &t, long key) {
    const int32_t *table = c.block_table + t.sequence * c.table_stride;
    return c.cache + (size_t)table[key / c.block_size] * c.block_bytes + t.head_kv * c.head_bytes;
}

LANE const float *scales_of(const AttentionCall &c, const uint8_t *base) {
    return (const float *)(base + key_bytes(c.element, c.block_size * c.dim) + value_bytes(c.element, c.block_size * c.dim_v));
}

// Returns a head's part of the block that holds a key, and the key's place there.
LANE const uint8_t *find_key(const AttentionCall &c, const AttentionTask &t, long key, long &offset) {
    const long first = table_keys(c, t.sequence);
    const long slot = key < first ? -1 : c.tails[t.sequence * c.tail_depth + key - (c.seq_lens[t.sequence] - c.tail_depth)];
    offset = (slot < 0 ? key : slot) % c.block_size;
    if (slot < 0) return head_base(c, t, key);
    return c.cache + (size_t)(slot / c.block_size) * c.block_bytes + t.head_kv * c.head_bytes;
}

// Copies the visible keys of a group one by one, from blocks of any size and from the slots of a sequence's tail.
// Other keys keep their old content and are masked. Keys are copied in units of KeyBits, values in units of ValueBits:
// one number, or the codes that share a half of a value.
template <class KeyBits, class ValueBits>
static void gather(const AttentionCall &c, const AttentionTask &t, SpanScratch &s, const Span &span, long g, long low, long high,
                   uint8_t *to_k, uint8_t *to_v) {
    const long pair = element_pair(c.element), values_stored = c.latent ? 0 : value_bytes(c.element, c.dim_v) / sizeof(ValueBits);
    const bool grouped = c.block_size % 16 == 0;
    const long k_step = grouped ? 16 * pair : pair, v_step = grouped ? pair : 1;
    KeyBits *keys = (KeyBits *)to_k;
    ValueBits *values = (ValueBits *)to_v;
    for (long lane = low; lane < high; lane++) {
        long offset;
        const uint8_t *base = find_key(c, t, span.first + g * 16 + lane, offset);
        const KeyBits *k = (const KeyBits *)base;
        const ValueBits *v = (const ValueBits *)(base + key_bytes(c.element, c.block_size * c.dim));
        k += grouped ? offset / 16 * 16 * c.dim + offset % 16 * pair : offset * c.dim;
        v += grouped ? offset / pair * pair * values_stored + offset % pair : offset * values_stored;
        for (long i = 0; i < c.dim; i++) keys[(i / pair * 16 + lane) * pair + i % pair] = k[i / pair * k_step + i % pair];
        for (long i = 0; i < values_stored; i++) values[(lane / pair * values_stored + i) * pair + lane % pair] = v[i * v_step];
        if (!c.scaled) continue;
        s.k_scales[g * 16 + lane] = scales_of(c, base)[offset];
        s.v_scales[g * 16 + lane] = scales_of(c, base)[c.block_size + offset];
    }
}

static void gather_any(const AttentionCall &c, const AttentionTask &t, SpanScratch &s, Span &span, long g, long low, long high,
                       bool widens) {
    uint8_t *k = widens ? s.raw_k : s.k + key_bytes(c.element, g * 16 * c.dim);
    uint8_t *v = widens ? s.raw_v : s.v + value_bytes(c.element, g * 16 * c.dim_v);
    const long bytes = c.element == kCacheK8V4 ? 0 : key_bytes(c.element, 1);
    if (bytes == 4) gather<uint32_t, uint32_t>(c, t, s, span, g, low, high, k, v);
    if (bytes == 2) gather<uint16_t, uint16_t>(c, t, s, span, g, low, high, k, v);
    if (bytes == 1) gather<uint8_t, uint8_t>(c, t, s, span, g, low, high, k, v);
    if (bytes == 0) gather<uint8_t, uint16_t>(c, t, s, span, g, low, high, k, v);
    span.k[g] = k, span.v[g] = v;
    if (c.scaled) span.k_scales[g] = s.k_scales + g * 16, span.v_scales[g] = s.v_scales + g * 16;
}

static void widen_group(const AttentionCall &c, SpanScratch &s, Span &span, long g) {
    const long group = element_pair(c.element) == 2 ? 32 : 64; // bytes of one number of 16 keys
    uint8_t *k = s.k + g * group * c.dim, *v = s.v + g * group * c.dim_v;
    widen_any(c.element, span.k[g], k, c.dim);
    if (c.element == kCacheK8V4)
        widen_value_codes(span.v[g], v, c.dim_v);
    else if (!c.latent)
        widen_any(c.element, span.v[g], v, c.dim_v);
    span.k[g] = k, span.v[g] = v;
}

static void turn_group(const AttentionCall &c, SpanScratch &s, Span &span, long g) {
    const bool half = element_pair(c.element) == 2;
    uint8_t *v = s.v + g * 16 * c.dim_v * (half ? 2 : 4);
    half ? turn_keys<true>(span.k[g], v, c.dim_v) : turn_keys<false>(span.k[g], v, c.dim_v);
    span.v[g] = v;
}

// Locates the groups with keys in [low, high). Blocks outside may already belong to other sequences and are not read.
// narrow: numbers are widened later, as they are read.
static void locate(const AttentionCall &c, const AttentionTask &t, SpanScratch &s, Span &span, long low, long high, bool narrow) {
    const long last = (t.span + t.spans) * kSpan; // of the task's keys
    const bool widens = element_widens(c.element) && !narrow;
    const long in_place = c.block_size % 16 == 0 ? table_keys(c, t.sequence) : 0;
    for (long g = 0; g < kGroups; g++) {
        const long key = span.first + g * 16, from = clamp(low - key, 0, 16), to = clamp(high - key, 0, 16);
        span.k[g] = span.v[g] = nullptr, span.ahead[g] = 0;
        span.k_scales[g] = span.v_scales[g] = nullptr;
        if (from >= to) continue;
        if (c.block_size % 16 == 0 && (!c.tails || key + to <= in_place)) {
            const long offset = key % c.block_size;
            const uint8_t *base = head_base(c, t, key);
            const bool follows = key + kSpan + 16 <= at_most(at_most(in_place, last), high);
            if (follows && !widens) span.ahead[g] = head_base(c, t, key + kSpan) - base;
            span.k[g] = base + key_bytes(c.element, offset * c.dim);
            span.v[g] = base + key_bytes(c.element, c.block_size * c.dim) + value_bytes(c.element, offset * c.dim_v);
            if (c.scaled) {
                span.k_scales[g] = scales_of(c, base) + offset;
                span.v_scales[g] = scales_of(c, base) + c.block_size + offset;
            }
        } else {
            gather_any(c, t, s, span, g, from, to, widens);
        }
        if (widens) widen_group(c, s, span, g);
        if (c.latent) turn_group(c, s, span, g);
    }
}

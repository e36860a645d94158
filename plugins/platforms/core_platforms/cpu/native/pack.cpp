// Packed weights: their memory, the packing, and the unpacking of single rows (embeddings).
#include "file_pages.h"
#include "native.h"
#include "pool.h"

#include <atomic>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace {

constexpr size_t kHugePage = size_t(2) << 20;
constexpr size_t kRegion = size_t(64) << 20; // reserved address space; the system backs pages on first touch
constexpr size_t kAlignment = 4096;
constexpr size_t kPiece = size_t(32) << 20; // of a matrix in a mapped file, whose pages are then given back

// A 2 MB-aligned mapping shared by many weights; unmapped with its last weight.
struct Region {
    uint8_t *base;
    size_t size, used;
    long live;
    Region *next;
};

pthread_mutex_t region_mutex = PTHREAD_MUTEX_INITIALIZER;
Region *regions = nullptr; // newest first; only the newest still grows

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

uint8_t *map_aligned(size_t size) {
    // Over-allocates by one huge page and trims both ends: mmap only guarantees the alignment of a small page.
    void *map = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return nullptr;
    uint8_t *start = (uint8_t *)map, *base = (uint8_t *)round_up((size_t)map, kHugePage);
    if (base > start) munmap(start, base - start);
    munmap(base + size, start + kHugePage - base);
#ifdef MADV_HUGEPAGE
    madvise(base, size, MADV_HUGEPAGE);
#endif
    return base;
}

uint8_t *region_allocate(size_t bytes) {
    bytes = round_up(bytes, kAlignment);
    pthread_mutex_lock(&region_mutex);
    if (!regions || regions->used + bytes > regions->size) {
        Region *region = (Region *)malloc(sizeof(Region));
        size_t size = round_up(bytes > kRegion ? bytes : kRegion, kHugePage);
        uint8_t *base = region ? map_aligned(size) : nullptr;
        if (!base) {
            free(region);
            pthread_mutex_unlock(&region_mutex);
            return nullptr;
        }
        *region = {base, size, 0, 0, regions};
        regions = region;
    }
    uint8_t *memory = regions->base + regions->used;
    regions->used += bytes;
    regions->live++;
    pthread_mutex_unlock(&region_mutex);
    return memory;
}

void region_free(uint8_t *memory) {
    pthread_mutex_lock(&region_mutex);
    for (Region **link = &regions; *link; link = &(*link)->next) {
        Region *region = *link;
        if (memory < region->base || memory >= region->base + region->size) continue;
        if (--region->live == 0) {
            *link = region->next;
            munmap(region->base, region->size);
            free(region);
        }
        break;
    }
    pthread_mutex_unlock(&region_mutex);
}

float half_to_float(uint16_t half) {
    uint32_t magnitude = uint32_t(half & 0x7fff) << 13, sign = uint32_t(half & 0x8000) << 16;
    float value;
    memcpy(&value, &magnitude, 4);
    value *= 0x1p112f; // corrects the exponent bias; a multiplication also handles denormals
    memcpy(&magnitude, &value, 4);
    if ((half & 0x7c00) == 0x7c00) magnitude |= 0x7f800000;
    magnitude |= sign;
    memcpy(&value, &magnitude, 4);
    return value;
}

float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// Converts an 8-bit float whose magnitude is shifted left by `shift` into a float32; multiplying by `bias` corrects
// the exponent.
float narrow_to_float(uint8_t byte, int shift, float bias) {
    return from_bits(uint32_t(byte & 0x7f) << shift | uint32_t(byte & 0x80) << 24) * bias;
}
float e4m3_to_float(uint8_t byte) { return narrow_to_float(byte, 20, 0x1p120f); }
float e5m2_to_float(uint8_t byte) { return narrow_to_float(byte, 21, 0x1p112f); }

float read_scale(const uint8_t *p, int type, long index) {
    uint16_t half;
    float value;
    switch (type) {
    case kScaleF16: memcpy(&half, p + 2 * index, 2); return half_to_float(half);
    case kScaleBF16: memcpy(&half, p + 2 * index, 2); return from_bits(uint32_t(half) << 16);
    case kScaleE8M0: return from_bits(uint32_t(p[index]) << 23); // 0 counts as 0, not as 2^-127
    case kScaleE4M3: return e4m3_to_float(p[index]);
    }
    memcpy(&value, p + 4 * index, 4);
    return value;
}

struct PackJob {
    const PackSource *source;
    const PackedLinear *linear;
    long first;                // panel of tile 0
    std::atomic<bool> *failed; // set where rows cannot be packed
};

// Swaps the fields of `mask` with those `shift` bits above them.
uint32_t swapped(uint32_t word, uint32_t mask, int shift) {
    const uint32_t different = (word ^ word >> shift) & mask;
    return word ^ different ^ different << shift;
}

// Regroups four bytes of 1-, 2- or 4-bit fields in the order k, k+1, ... into a word whose byte j holds k+j, k+j+4,
// k+j+8, ...: the transpose of a matrix of fields with four columns.
template <int Bits> uint32_t regroup(const uint8_t *b) {
    uint32_t word;
    memcpy(&word, b, 4);
    if constexpr (Bits == 4) return swapped(swapped(word, 0x0000ff00, 8), 0x00f000f0, 4);
    if constexpr (Bits == 2) return swapped(swapped(word, 0x00cc00cc, 6), 0x0000f0f0, 12);
    uint32_t out = 0;
    for (int q = 0; q < 8; q++) out |= ((word >> 4 * q & 15) * 0x00204081 & 0x01010101) << q;
    return out;
}

long bits_of(int format) {
    switch (format) {
    case kPlanes2: return 2;
    case kPlanes3: case kPlanesCode3: return 3;
    case kPlanes5: return 5;
    case kPlanes6: return 6;
    case kInt4: case kCode4: case kPlanes4: case kPlanesCode4: return 4;
    }
    return 8;
}

bool has_planes(int format) { return format >= kPlanes2; }
long low_bits(long bits) { return bits < 4 ? 2 : 4; } // bits of the first plane

void pack_groups(const PackSource &s, const PackedLinear &l, long n, uint8_t *panel, long lane) {
    const long bits = bits_of(l.format), row_bytes = l.k * bits / 8;
    const uint8_t *row = (const uint8_t *)s.values + size_t(n) * row_bytes, *row_end = row + row_bytes;
    const size_t width = l.scale_bytes / kPanel;
    for (long g = 0; g < l.groups; g++) {
        uint8_t *record = panel + g * l.record_bytes, *tail = record + l.value_bytes + lane * width;
        for (size_t unit = 0; unit < l.value_bytes / (kPanel * 4) && row < row_end; unit++, row += 4) {
            uint32_t word = 0;
            if (bits == 4)
                word = regroup<4>(row);
            else
                memcpy(&word, row, row_end - row < 4 ? row_end - row : 4);
            memcpy(record + (unit * kPanel + lane) * 4, &word, 4);
        }
        size_t at = (size_t(n) * l.groups + g) * width;
        memcpy(tail, (const uint8_t *)s.scale + at, width);
        if (l.has_minimum) memcpy(tail + l.scale_bytes, (const uint8_t *)s.minimum + at, width);
        if (l.has_zeros) record[l.value_bytes + l.scale_bytes + lane] = s.zeros[size_t(n) * l.groups + g];
    }
}

// Packs one lane of a plane of `Bits` bits; returns where the next plane begins.
template <int Bits> uint8_t *pack_plane(const uint8_t *fields, uint8_t *plane, long lane) {
    constexpr long kWords = kUnit * Bits / 32;
    for (long i = 0; i < kWords; i++) {
        const uint32_t word = regroup<Bits>(fields + 4 * i);
        memcpy(plane + (i * kPanel + lane) * 4, &word, 4);
    }
    return plane + kWords * kPanel * 4;
}

void pack_unit(const PackSource &s, long bits, size_t unit, uint8_t *plane, long lane) {
    const uint8_t *low = (const uint8_t *)s.values + unit * low_bits(bits) * kUnit / 8;
    const uint8_t *high = (const uint8_t *)s.high + unit * (bits - low_bits(bits)) * kUnit / 8;
    plane = bits < 4 ? pack_plane<2>(low, plane, lane) : pack_plane<4>(low, plane, lane);
    if (bits == 3 || bits == 5) pack_plane<1>(high, plane, lane);
    if (bits == 6) pack_plane<2>(high, plane, lane);
}

void pack_sub_scales(const PackSource &s, const PackedLinear &l, size_t unit, uint8_t *sub) {
    const long groups = kUnit / l.group;
    for (long g = 0; g < groups && l.sub_scales; g++, sub += l.sub_bytes) {
        sub[0] = ((const uint8_t *)s.sub_scale)[unit * groups + g];
        if (s.sub_minimum) sub[kPanel] = ((const uint8_t *)s.sub_minimum)[unit * groups + g];
    }
}

void pack_planes(const PackSource &s, const PackedLinear &l, long n, uint8_t *panel, long lane) {
    const long supers = l.k / l.super, units = l.super / kUnit, bits = bits_of(l.format);
    for (long i = 0; i < supers; i++, panel += l.record_bytes) {
        const size_t at = size_t(n) * supers + i;
        memcpy(panel + lane * 2, (const uint8_t *)s.scale + at * 2, 2);
        if (l.has_minimum) memcpy(panel + (kPanel + lane) * 2, (const uint8_t *)s.minimum + at * 2, 2);
        if (l.has_zeros) panel[l.head_bytes - kPanel + lane] = s.zeros[at];
        for (long u = 0; u < units; u++) {
            uint8_t *unit = panel + l.head_bytes + u * l.unit_bytes;
            pack_sub_scales(s, l, at * units + u, unit + lane);
            pack_unit(s, bits, at * units + u, unit + l.unit_head, lane);
        }
    }
}

// Packs the rows of a panel as they lie in a file, or those of a plain matrix.
bool pack_lying(const PackSource &s, const PackedLinear &l, long first, long lanes, uint8_t *data) {
    if (s.rows) return pack_rows(s.layout, s.rows + first, l, lanes, data);
    const uint8_t *rows[kPanel];
    const size_t bytes = size_t(l.k) * (l.format == kF32 ? 4 : 2);
    for (long lane = 0; lane < lanes; lane++) rows[lane] = (const uint8_t *)s.values + (first + lane) * bytes;
    return pack_rows(l.format, rows, l, lanes, data);
}

void pack_panel(const void *context, long tile) {
    const PackJob &job = *(const PackJob *)context;
    const long panel = job.first + tile;
    const PackedLinear &l = *job.linear;
    uint8_t *data = l.data + panel * l.panel_bytes;
    const long first = panel * kPanel, lanes = at_most(kPanel, l.n - first);
    // Clears lanes beyond n and the padding of k: kernels multiply them too, and stale NaNs would spread.
    if (lanes < kPanel || l.k % (l.group ? l.group : 2)) memset(data, 0, l.panel_bytes);
    if (job.source->rows || l.format <= kBF16) {
        if (!pack_lying(*job.source, l, first, lanes, data)) job.failed->store(true);
        return;
    }
    for (long lane = 0; lane < lanes; lane++) {
        if (has_planes(l.format))
            pack_planes(*job.source, l, first + lane, data, lane);
        else
            pack_groups(*job.source, l, first + lane, data, lane);
    }
}

// Packs a weight. Of a large matrix in a mapped file, pages are given back piece by piece: as a whole they would be in memory
// beside the packed weight (measured: 431 MB more at the peak for the head of an 8B model, 8% of its file).
void pack_panels(const PackSource &s, const PackedLinear &l, std::atomic<bool> *failed) {
    PackJob job = {&s, &l, 0, failed};
    const size_t bytes = l.panel_bytes * l.panels; // about as many as in the file
    if (!s.rows || bytes < 2 * kPiece) {
        pool_run(pack_panel, &job, l.panels);
        return;
    }
    const long step = long(kPiece / l.panel_bytes) + 1;
    for (; job.first < l.panels; job.first += step) {
        const long panels = at_most(step, l.panels - job.first), row = job.first * kPanel, next = row + panels * kPanel;
        pool_run(pack_panel, &job, panels);
        const uint8_t *begin = s.rows[row], *end = s.rows[at_most(next, l.n - 1)];
        // Rows in another order than in the file: their pages wait for the end of the tensor.
        if (begin < end && size_t(end - begin) <= 2 * kPiece && in_private_file(begin, end)) give_back_pages(begin, end);
    }
}

void set_plane_sizes(PackedLinear &l) {
    l.groups = l.k / l.group;
    l.sub_bytes = l.sub_scales == kNoSubScales ? 0 : l.sub_scales == kSubBytes && l.has_minimum ? 2 * kPanel : kPanel;
    l.head_bytes = (l.has_minimum ? 2 : 1) * kPanel * sizeof(uint16_t) + (l.has_zeros ? kPanel : 0);
    l.unit_head = kUnit / l.group * l.sub_bytes;
    l.unit_bytes = l.unit_head + kPanel * kUnit / 8 * bits_of(l.format);
    l.record_bytes = l.head_bytes + l.super / kUnit * l.unit_bytes;
    l.panel_bytes = l.record_bytes * (l.k / l.super);
}

void set_sizes(PackedLinear &l) {
    l.panels = (l.n + kPanel - 1) / kPanel;
    if (has_planes(l.format)) {
        set_plane_sizes(l);
    } else if (l.format == kF32) {
        l.panel_bytes = size_t(l.k) * kPanel * 4;
    } else if (l.format == kF16) {
        l.panel_bytes = size_t(l.k) * kPanel * 2;
    } else if (l.format == kBF16) {
        l.panel_bytes = size_t((l.k + 1) / 2) * kPanel * 4;
    } else {
        const size_t widths[] = {4, 2, 1, 1, 2};
        l.groups = (l.k + l.group - 1) / l.group;
        l.scale_bytes = kPanel * widths[l.scale_type];
        l.value_bytes = size_t(l.group) * kPanel * bits_of(l.format) / 8;
        l.record_bytes = l.value_bytes + l.scale_bytes * (l.has_minimum ? 2 : 1) + (l.has_zeros ? kPanel : 0);
        l.panel_bytes = l.record_bytes * l.groups;
    }
}

// The largest power of two up to `wanted` that divides k into equal runs of whole steps.
long segments_of(const PackedLinear &l, long wanted) {
    const bool equal_parts = l.input_groups * l.input_group == l.k;
    const long grouped = equal_parts ? l.input_groups : l.groups, plain = l.k % 2 ? 1 : l.k / 2;
    const long steps = has_planes(l.format) ? l.k / kUnit : l.groups ? grouped : plain;
    long segments = 1;
    while (2 * segments <= wanted && segments < 1 << kSegmentLevels && steps % (2 * segments) == 0) segments *= 2;
    return segments;
}

void unpack_dense(const PackedLinear &l, const uint8_t *panel, long lane, float *out) {
    for (long k = 0; k < l.k; k++) {
        if (l.format == kBF16) {
            uint32_t bits = 0;
            memcpy((uint8_t *)&bits + 2, panel + (size_t(k / 2) * kPanel + lane) * 4 + (k & 1) * 2, 2);
            memcpy(out + k, &bits, 4);
        } else {
            out[k] = read_scale(panel, l.format == kF16 ? kScaleF16 : kScaleF32, k * kPanel + lane);
        }
    }
}

float element(const PackedLinear &l, const uint8_t *record, long k, long lane, int zero) {
    const bool narrow = bits_of(l.format) == 4;
    uint8_t byte = record[(k / (narrow ? 8 : 4) * kPanel + lane) * 4 + (k & 3)];
    if (narrow) byte = k & 4 ? byte >> 4 : byte & 15;
    switch (l.format) {
    case kCode4: return l.codes[byte];
    case kE4M3: return e4m3_to_float(byte);
    case kE5M2: return e5m2_to_float(byte);
    }
    return float(byte - zero);
}

void unpack_groups(const PackedLinear &l, const uint8_t *panel, long n, float *out) {
    const long lane = n % kPanel;
    for (long g = 0, at = 0; g < l.groups; g++) {
        const uint8_t *record = panel + g * l.record_bytes, *tail = record + l.value_bytes;
        float scale = read_scale(tail, l.scale_type, lane);
        float minimum = l.has_minimum ? read_scale(tail + l.scale_bytes, l.scale_type, lane) : 0;
        const int zero = l.has_zeros ? tail[l.scale_bytes + lane] : l.zero;
        for (long k = 0; k < l.group && at < l.k; k++, at++) {
            float value = element(l, record, k, lane, zero) * scale;
            if (l.has_minimum) value += minimum;
            out[l.order ? l.order[at] : at] = l.row_scale ? value * l.row_scale[n] : value;
        }
    }
}

// Input k of a plane of `bits` bits.
int plane_field(const uint8_t *plane, long bits, long k, long lane) {
    const long quad = k / 4, quads = 8 / bits; // quads: per word
    const uint8_t byte = plane[(quad / quads * kPanel + lane) * 4 + k % 4];
    return byte >> (quad % quads * bits) & ((1 << bits) - 1);
}

int plane_integer(const PackedLinear &l, const uint8_t *unit, long k, long lane) {
    const long bits = bits_of(l.format), low = low_bits(bits), high = bits - low;
    const int value = plane_field(unit, low, k, lane);
    return high ? value | plane_field(unit + kUnit * kPanel * low / 8, high, k, lane) << low : value;
}

void unpack_planes(const PackedLinear &l, const uint8_t *record, long lane, float *out) {
    long at = 0;
    for (const uint8_t *end = record + l.panel_bytes; record < end; record += l.record_bytes) {
        const int zero = l.has_zeros ? record[l.head_bytes - kPanel + lane] : l.zero;
        float scale = read_scale(record, kScaleF16, lane), minimum = 0;
        if (l.has_minimum) minimum = read_scale(record, kScaleF16, kPanel + lane);
        for (long k = 0; k < l.super; k++, at++) {
            const uint8_t *unit = record + l.head_bytes + k / kUnit * l.unit_bytes;
            const uint8_t *group = unit + k % kUnit / l.group * l.sub_bytes + lane;
            float group_scale = scale, group_minimum = minimum;
            if (l.sub_scales == kSubNibbles) group_scale *= float(*group & 15), group_minimum *= float(*group >> 4);
            if (l.sub_scales == kSubBytes) group_scale *= float((int8_t)*group);
            if (l.sub_scales == kSubBytes && l.has_minimum) group_minimum *= float((int8_t)group[kPanel]);
            const int integer = plane_integer(l, unit + l.unit_head, k % kUnit, lane);
            const float value = l.format >= kPlanesCode4 ? l.codes[integer] : float(integer - zero);
            out[l.order ? l.order[at] : at] = value * group_scale + group_minimum;
        }
    }
}

struct UnpackJob {
    const PackedLinear *linear;
    const int64_t *ids;
    float *out;
    long out_stride;
};

void unpack_one(const void *context, long index) {
    const UnpackJob &job = *(const UnpackJob *)context;
    const PackedLinear &l = *job.linear;
    long n = long(job.ids[index]);
    const uint8_t *panel = l.data + n / kPanel * l.panel_bytes;
    float *out = job.out + index * job.out_stride;
    if (has_planes(l.format))
        unpack_planes(l, panel, n % kPanel, out);
    else if (l.format >= kInt4)
        unpack_groups(l, panel, n, out);
    else
        unpack_dense(l, panel, n % kPanel, out);
}

} // namespace

// A copy of n floats, padded with zeros to whole panels.
static float *padded(const float *values, const PackedLinear &l) {
    float *copy = (float *)calloc(l.panels * kPanel, sizeof(float));
    if (copy) memcpy(copy, values, l.n * sizeof(float));
    return copy;
}

static int32_t *copied(const int32_t *values, long count) {
    int32_t *copy = (int32_t *)malloc(count * sizeof(int32_t));
    if (copy) memcpy(copy, values, count * sizeof(int32_t));
    return copy;
}

// The largest power of two, at most 1, of which all codes are multiples.
static float unit_of(const float *codes) {
    float unit = 1;
    for (int i = 0; i < 16; i++)
        while (codes[i] / unit != float(int(codes[i] / unit)) && unit > 0x1p-16f) unit /= 2;
    return unit;
}

// Fills a codebook's tables. Plane codebooks are whole multiples of a unit, which moves into the scales; the others
// are integers when doubled, if the format has an integer product at all.
static void set_codes(PackedLinear &l, const float *codes) {
    l.code_unit = has_planes(l.format) ? unit_of(codes) : 1;
    const float times = has_planes(l.format) ? 1 / l.code_unit : 2;
    for (int i = 0; i < 16; i++) {
        uint32_t bits;
        memcpy(&bits, codes + i, 4);
        l.codes[i] = codes[i];
        l.products[i] = l.activation == kRoundBF16 ? from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000) : codes[i];
        l.bytes[i] = (uint8_t)(int)(times * codes[i] + float(l.zero));
    }
    if (!has_planes(l.format)) l.unit = 1 / times;
}

// Derives the fields that follow from a source's sizes.
static void describe(PackedLinear &l, const PackSource &s) {
    l.format = s.format, l.activation = s.activation, l.n = s.n, l.k = s.k, l.group = s.group;
    l.super = s.super, l.zero = s.zero, l.has_minimum = s.minimum != nullptr, l.scale_type = s.scale_type, l.unit = 1;
    l.has_zeros = s.zeros != nullptr;
    if (s.sub_scale) l.sub_scales = s.minimum && !s.sub_minimum ? kSubNibbles : kSubBytes;
    set_sizes(l);
    if (l.activation != kQuantInt8) return;
    l.input_group = s.input_group ? at_most(s.input_group, l.group) : l.group;
    l.input_parts = ceil_div(l.group, l.input_group);
    l.input_groups = l.groups * l.input_parts;
}

size_t prepared_bytes(const PackSource *s) {
    PackedLinear l = {};
    describe(l, *s);
    return l.panel_bytes * l.panels;
}

PackedLinear *pack_linear(const PackSource *s, bool *fits) {
    PackedLinear *l = (PackedLinear *)calloc(1, sizeof(PackedLinear));
    if (!l) return nullptr;
    describe(*l, *s);
    l->segments = segments_of(*l, s->segments);
    if (s->codes) set_codes(*l, s->codes);
    l->borrowed = s->into != nullptr;
    l->data = s->into ? s->into : region_allocate(l->panel_bytes * l->panels);
    if (s->bias) l->bias = padded(s->bias, *l);
    if (s->row_scale) l->row_scale = padded(s->row_scale, *l);
    if (s->order) l->order = copied(s->order, l->k);
    if (!l->data || (s->bias && !l->bias) || (s->row_scale && !l->row_scale) || (s->order && !l->order)) {
        free_linear(l);
        return nullptr;
    }
    std::atomic<bool> failed{false};
    if (s->values) pack_panels(*s, *l, &failed); // otherwise `into` already holds the packed weight
    if (fits) *fits = !failed.load();
    return l;
}

void free_linear(PackedLinear *l) {
    if (l->data && !l->borrowed) region_free(l->data);
    free(l->bias);
    free(l->row_scale);
    free(l->order);
    free(l);
}

void unpack_rows(const PackedLinear *linear, const int64_t *ids, long count, float *out, long out_stride) {
    UnpackJob job = {linear, ids, out, out_stride};
    if (count < 8) {
        for (long i = 0; i < count; i++) unpack_one(&job, i);
    } else {
        pool_run(unpack_one, &job, count);
    }
}

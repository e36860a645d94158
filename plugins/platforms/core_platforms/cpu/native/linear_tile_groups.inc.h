// Products of groups of integers in tiles. Included by linear.inc.h behind linear_tiles.inc.h.
//
// Tiles read bytes: a part of a panel is expanded once for all rows, less its zero points, and with float scales. A group's sums
// leave the tiles through memory and become floats there, which takes as long as multiplying them: 8 ns each for sixteen rows,
// outputs and 32 inputs (Sapphire Rapids).

constexpr long kGroupInputs = 4096; // of a part, which waits for its first sums: 1,024 took 6% longer with data in the cache
constexpr long kLeastSpread = 48;   // rows for which weights are expanded; measured: vectors multiply 32 as fast

// Whether tiles can multiply groups of inputs: all have the same size, and a part of the panel holds one.
LANE bool tiles_fit(const PackedLinear &l) {
    return l.input_group <= kGroupInputs && l.group % l.input_group == 0 && l.input_group % 8 == 0;
}

// Whether integers up to `most`, less their zero point, are signed bytes; else they stay unsigned.
LANE bool signed_bytes(const PackedLinear &l, long most) {
    return l.has_zeros ? most < 64 && l.zero <= 64 : l.zero <= 128 && most - l.zero < 128; // zero points are such integers, too
}

LANE long largest_byte(const PackedLinear &l) { // of the table
    long most = 0;
    for (uint8_t byte : l.bytes) most = byte > most ? byte : most;
    return most;
}

// The form that tiles read: groups whose inputs share a scale, each of bytes [group / 4][32][4], scales and minima.
static PackedLinear tile_form(const PackedLinear &l) {
    PackedLinear form = l;
    form.scale_bytes = kPanel * sizeof(float);
    form.group = l.input_group, form.groups = l.input_groups;
    form.value_bytes = (size_t)form.group * kPanel;
    form.record_bytes = form.value_bytes + form.scale_bytes * (l.has_minimum ? 2 : 1);
    return form;
}

// What is taken from a group's integers, in each of the four bytes of a lane: the zero point of all, and that of each output.
LANE I zero_bytes(const PackedLinear &l, const uint8_t *zeros, long vector) {
    const I all = iset1(l.zero);
    const I zero = l.has_zeros ? iadd(all, load_u8(zeros + vector * 16)) : all, two = ior(zero, shift_left<8>(zero));
    return ior(two, shift_left<16>(two));
}

// Expands inputs [begin, end) of a panel of nibbles, of indices into a table, or of bytes; whole parts of groups.
template <Integers Stored, bool Signed>
static void expand_groups(const PackedLinear &l, const PackedLinear &form, const uint8_t *panel, long begin, long end, uint8_t *out) {
    constexpr long kStep = Stored == kBytes ? 4 : 8;
    const I table = Stored == kTableNibbles ? load_bytes(l.bytes) : izero(), mask = iset1(0x0f0f0f0f);
    for (long part = begin / form.group; part < end / form.group; part++, out += form.record_bytes) {
        const uint8_t *record = panel + part / l.input_parts * l.record_bytes, *tail = record + l.value_bytes;
        const uint8_t *w = record + part % l.input_parts * form.group / kStep * kPanel * 4;
        Scales<2> s;
        I zero[2];
        for (int v = 0; v < 2; v++) {
            s.scale[v] = scales(tail, l.scale_type, v);
            if (l.has_minimum) s.minimum[v] = scales(tail + l.scale_bytes, l.scale_type, v);
            zero[v] = Signed ? zero_bytes(l, tail + l.scale_bytes, v) : izero();
        }
        spread_scales(l, s, out + form.value_bytes);
        uint8_t *bytes = out;
        for (long k = 0; k < form.group; k += kStep, w += kPanel * 4, bytes += kPanel * kStep) {
            for (int v = 0; v < 2; v++) {
                const I stored = iload(w + v * 64);
                if (Stored == kBytes) {
                    istore(bytes + v * 64, sub_bytes(stored, zero[v]));
                    continue;
                }
                I low = iand(stored, mask), high = iand(shift_right<4>(stored), mask);
                if (Stored == kTableNibbles) low = lookup_bytes(table, low), high = lookup_bytes(table, high);
                istore(bytes + v * 64, sub_bytes(low, zero[v]));
                istore(bytes + kPanel * 4 + v * 64, sub_bytes(high, zero[v]));
            }
        }
    }
}

template <int Bits, bool Table, int First> LANE void expand_half(const uint8_t *unit, I table, I zero, uint8_t *out) {
    istore(out, sub_bytes(quad<Bits, Table, First>(unit, table), zero));
    istore(out + kPanel * 4, sub_bytes(quad<Bits, Table, First + 1>(unit, table), zero));
    istore(out + kPanel * 8, sub_bytes(quad<Bits, Table, First + 2>(unit, table), zero));
    istore(out + kPanel * 12, sub_bytes(quad<Bits, Table, First + 3>(unit, table), zero));
}

// The same of a panel of bit planes; whole units.
template <int Bits, bool Table, bool Signed>
static void expand_planes(const PackedLinear &l, const PackedLinear &form, const uint8_t *panel, long begin, long end, uint8_t *out) {
    const long units = l.super / kUnit;
    const I table = Table ? load_bytes(l.bytes) : izero();
    const size_t second = l.group < kUnit ? form.record_bytes : kUnit / 2 * kPanel; // where the second half of a unit goes
    I zero[2];
    Scales<2> upper;
    for (long number = begin / kUnit; number < end / kUnit; number++) {
        const uint8_t *record = panel + number / units * l.record_bytes;
        if (number == begin / kUnit || number % units == 0) {
            upper = super_scales<2>(l, record, 0);
            for (int v = 0; v < 2; v++) zero[v] = Signed ? zero_bytes(l, record + l.head_bytes - kPanel, v) : izero();
        }
        const uint8_t *sub = record + l.head_bytes + number % units * l.unit_bytes, *w = sub + l.unit_head;
        for (int v = 0; v < 2; v++) {
            expand_half<Bits, Table, 0>(w + v * 64, table, zero[v], out + v * 64);
            expand_half<Bits, Table, 4>(w + v * 64, table, zero[v], out + second + v * 64);
        }
        for (long group = 0; group < kUnit / l.group; group++, sub += l.sub_bytes, out += form.record_bytes)
            spread_scales(l, group_scales(l, upper, sub, 0), out + form.value_bytes);
    }
}

// Sums of one group in tile Sums, stored as [rows][16].
template <int Sums, bool Signed>
LANE void tile_group(const uint8_t *w, const uint8_t *x, long stride, long size, long step, int32_t *sums) {
    constexpr int kInputs = 4 + Sums % 2, kWeights = 6 + Sums % 2;
    tile_clear<Sums>();
    for (long k = 0; k < size; k += step, x += step, w += step * kPanel) {
        tile_load<kInputs>(x, stride);
        tile_load<kWeights>(w, kPanel * 4);
        tile_multiply<Sums, kInputs, kWeights, Signed>();
    }
    tile_store<Sums>(sums, kTileBytes);
}

// Groups by R rows and sixteen outputs. Sums become floats two groups after they were multiplied, as they arrive late.
template <int R, bool Minimum, bool Signed> struct TileGroups {
    const long stride, step, size, record, low_bytes, groups; // size: of a group; groups: of a row
    const uint8_t *w, *x, *tail; // of the group that is multiplied next; scales of the one whose sums are next
    const GroupMeta *meta;
    int32_t (*const sums)[kTileRows * 16]; // [4]

    template <int Sums> __attribute__((always_inline)) void multiply() {
        tile_group<Sums, Signed>(w, x, stride, size, step, sums[Sums]);
        w += record, x += size;
    }
    __attribute__((always_inline)) void multiply(long group) {
        switch (group & 3) {
        case 0: return multiply<0>();
        case 1: return multiply<1>();
        case 2: return multiply<2>();
        case 3: return multiply<3>();
        }
    }
    // As IntDotKind, without zero points.
    __attribute__((always_inline)) void add(long group, F (&acc)[R]) {
        const F scale = load((const float *)tail), low = Minimum ? load((const float *)(tail + low_bytes)) : zero();
        const int32_t *done = sums[group & 3];
        for (int r = 0; r < R; r++) {
            const GroupMeta &inputs = meta[r * groups];
            acc[r] = fma(mul(to_float(iload(done + 16 * r)), set1(inputs.scale)), scale, acc[r]);
            if (Minimum) acc[r] = fma(low, set1(inputs.sum), acc[r]);
        }
        tail += record, meta++;
    }
};

template <int R, bool Minimum, bool Signed>
static __attribute__((noinline)) void group_block(const LinearCall &c, const PackedLinear &form, long step, const TilePart &part,
                                                  long vector, long row, float (*out)[16]) {
    alignas(64) int32_t sums[4][kTileRows * 16];
    const uint8_t *w = part.w + vector * 64;
    TileGroups<R, Minimum, Signed> groups = {
        (long)c.staged_stride, step, form.group, (long)form.record_bytes, (long)form.scale_bytes, form.groups, w,
        row_staged(c, row) + part.begin, w + form.value_bytes, c.meta + row * form.groups + part.begin / form.group, sums};
    F acc[R];
    for (int r = 0; r < R; r++) acc[r] = part.first ? zero() : load(out[r]);
    const long count = (part.end - part.begin) / form.group;
    groups.multiply(0);
    if (count > 1) groups.multiply(1);
    for (long g = 0; g < count; g++) {
        if (g + 2 < count) groups.multiply(g + 2);
        groups.add(g, acc);
    }
    for (int r = 0; r < R; r++) store(out[r], acc[r]);
}

typedef void Expand(const PackedLinear &, const PackedLinear &, const uint8_t *, long, long, uint8_t *);

template <Expand *Expanded, bool Minimum, bool Signed> struct GroupPanel : TileFloats {
    static constexpr long kPairRows = kTileRows; // a block uses all tiles
    const PackedLinear &form;
    const uint8_t *data;
    uint8_t *part_memory;
    long bytes, step, most;
    long pieces(const TilePart &) const { return 2; }
    const uint8_t *weights(long begin, long end) const {
        Expanded(*c.weight, form, data, begin, end, part_memory);
        return part_memory;
    }
    template <int R> void block(const TilePart &part, long row, TileSums &sums, Ahead &ahead) const {
        for (int v = 0; v < 2; v++) {
            ahead.bring();
            group_block<R, Minimum, Signed>(c, form, step, part, v, row, sums.lanes[0][v]);
        }
    }
    template <bool Both> void multiply(const TilePart &part, const TileRows &rows, TileSums &sums, Ahead &ahead) const {
        switch (rows.first) { // a multiple of kLeastTileRows
        case 16: return block<16>(part, rows.row, sums, ahead);
        case 12: return block<12>(part, rows.row, sums, ahead);
        case 8: return block<8>(part, rows.row, sums, ahead);
        case 4: return block<4>(part, rows.row, sums, ahead);
        }
    }
};

template <Expand *Expanded, bool Minimum, bool Signed>
static bool group_rows(const LinearCall &c, long panel, long begin, long end, long unit) {
    const PackedLinear &l = *c.weight, form = tile_form(l);
    const long inputs = l.groups * l.group / l.segments, wanted = kGroupInputs / unit * unit;
    const long most = wanted ? wanted : unit;
    Scratch scratch(TileFloats::kMemory + (size_t)(most / form.group) * form.record_bytes);
    if (!scratch.memory) return false;
    TileSums *memory = (TileSums *)scratch.memory;
    uint8_t *expanded = (uint8_t *)scratch.memory + TileFloats::kMemory;
    tile_panel(c, panel, begin, end, GroupPanel<Expanded, Minimum, Signed>{
        {c, panel, l.segments, memory}, form, panel_data(c, panel), expanded, inputs, tile_step(form.group, 4, kTileBytes), most});
    return true;
}

// Multiplies rows by a panel of integers up to `most`, of which `unit` inputs can be expanded alone; returns the first row that
// is left. ForSigned, ForUnsigned: the functions that expand them.
template <Expand *ForSigned, Expand *ForUnsigned>
static long tile_integers(const LinearCall &c, long panel, long begin, long end, long most, long unit, long least) {
    const PackedLinear &l = *c.weight;
    const bool bytes = signed_bytes(l, most);
    const long last = end - (end - begin) % kLeastTileRows;
    if (end - begin < least || !tiles_fit(l) || (!bytes && (l.zero || l.has_zeros))) return begin;
    bool done;
    if (bytes)
        done = l.has_minimum ? group_rows<ForSigned, true, true>(c, panel, begin, last, unit)
                             : group_rows<ForSigned, false, true>(c, panel, begin, last, unit);
    else
        done = l.has_minimum ? group_rows<ForUnsigned, true, false>(c, panel, begin, last, unit)
                             : group_rows<ForUnsigned, false, false>(c, panel, begin, last, unit);
    return done ? last : begin; // vectors need no memory
}

template <Integers Stored> static long tile_groups(const LinearCall &c, long panel, long begin, long end) {
    const PackedLinear &l = *c.weight;
    const long most = Stored == kTableNibbles ? largest_byte(l) : Stored == kBytes ? 255 : 15;
    return tile_integers<expand_groups<Stored, true>, expand_groups<Stored, false>>(c, panel, begin, end, most, l.input_group, kLeastSpread);
}
template <int Bits, bool Table> static long tile_planes(const LinearCall &c, long panel, long begin, long end) {
    const long most = Table ? largest_byte(*c.weight) : (1 << Bits) - 1;
    return tile_integers<expand_planes<Bits, Table, true>, expand_planes<Bits, Table, false>>(c, panel, begin, end, most, kUnit, kLeastSpread);
}

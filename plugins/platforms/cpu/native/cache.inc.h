// Writes keys and values into the blocks of a paged cache; attention.inc.h tells their layout.

LANE const float *narrow(const float *x, long, float *) { return x; }
LANE const uint16_t *narrow(const float *x, long width, uint16_t *room) {
    for (long i = 0; i < width; i += 16) store_u16(room + i, shift_right<16>(bf16_bits(load(x + i))));
    return room;
}

template <class Element, bool Grouped> LANE void write_row(const CacheWriteCall &c, long row) {
    if (c.slots[row] < 0) return;
    constexpr long pair = Grouped && sizeof(Element) == 2 ? 2 : 1, lanes = Grouped ? 16 : 1;
    const long slot = c.slots[row], offset = slot % c.block_size;
    Element room[kMaxHead];
    for (long head = 0; head < c.heads_kv; head++) {
        uint8_t *base = c.cache + (size_t)(slot / c.block_size) * c.block_bytes + head * (c.block_bytes / c.heads_kv);
        Element *keys = (Element *)base + offset / lanes * lanes * c.dim + offset % lanes * pair;
        Element *values = (Element *)base + c.block_size * c.dim + offset / pair * pair * c.dim_v + offset % pair;
        const Element *k = narrow(c.k + row * c.k_row_stride + head * c.k_head_stride, c.dim, room);
        for (long i = 0; i < c.dim; i += pair) memcpy(keys + i * lanes, k + i, pair * sizeof(Element));
        const Element *v = narrow(c.v + row * c.v_row_stride + head * c.v_head_stride, c.dim_v, room);
        for (long i = 0; i < c.dim_v; i++) values[i * pair] = v[i];
    }
}

static void cache_write(const CacheWriteCall *c, long begin, long end) {
    const bool grouped = c->block_size % 16 == 0;
    for (long row = begin; row < end; row++) {
        if (c->bf16)
            grouped ? write_row<uint16_t, true>(*c, row) : write_row<uint16_t, false>(*c, row);
        else
            grouped ? write_row<float, true>(*c, row) : write_row<float, false>(*c, row);
    }
}

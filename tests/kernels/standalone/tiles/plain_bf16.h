// The instructions for BF16 in plain C++ that attention uses beside tiles, for lanes that have none.
#define CORE_BF16_DOT 1

LANE uint16_t rounded(float x) { // to the nearest, ties to even; subnormal numbers are flushed
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return 0x7fc0;
    if (!(bits & 0x7f800000)) return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
LANE void store_bf16(uint16_t *p, F x) {
    float lanes[16];
    store(lanes, x);
    for (int i = 0; i < 16; i++) p[i] = rounded(lanes[i]);
}
LANE I pack_bf16(F low, F high) {
    uint16_t both[32];
    store_bf16(both, low), store_bf16(both + 16, high);
    return iload(both);
}
LANE F dot_bf16(F acc, I w, I x) {
    const I high = iset1((int32_t)0xffff0000);
    acc = fma(as_float(iand(w, high)), as_float(iand(x, high)), acc);
    return fma(as_float(shift_left<16>(w)), as_float(shift_left<16>(x)), acc);
}
LANE I bf16_table(const float *p) {
    uint16_t table[32];
    store_bf16(table, load(p)), store_bf16(table + 16, load(p));
    return iload(table);
}
LANE I lookup_bf16(I table, I index) {
    uint16_t entries[32], which[32], out[32];
    istore(entries, table), istore(which, index);
    for (int i = 0; i < 32; i++) out[i] = entries[which[i] & 15];
    return iload(out);
}

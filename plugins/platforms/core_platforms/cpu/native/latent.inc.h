// Latent (MLA) layers cache a token's latent and its rotated key as one long key of one head. Values are the latents
// themselves and are not stored again: a task turns its spans' keys into values once for all of its rows.
//
// Where products sum pairs, two neighbouring dimensions of a key share a 32-bit lane. Their columns then come out
// with the four even dimensions of each eight before the four odd ones; `store_latent` restores the order.

// Writes a whole key or query to `to` [dim]: its latent part [dim_v], then its rotated part.
LANE const float *joined(const float *latent, const float *rotated, long dim_v, long dim, float *to) {
    memcpy(to, latent, dim_v * sizeof(float));
    memcpy(to + dim_v, rotated, (dim - dim_v) * sizeof(float));
    return to;
}

// Loads the four 16-byte parts of x, `stride` bytes apart.
LANE void store_parts(uint8_t *to, long stride, I x) {
    alignas(64) uint8_t parts[64];
    istore(parts, x);
    for (long b = 0; b < 4; b++) memcpy(to + b * stride, parts + 16 * b, 16);
}

// Turns 16 keys into values: [dim / pair][16][pair] to [16 / pair][dim][pair].
template <bool Half> static void turn_keys(const uint8_t *k, uint8_t *v, long dim) {
    const long row = dim * 4; // bytes of a value, or of a pair of them
    for (long i = 0; i < dim / (Half ? 2 : 1); i += 4) {
        I x[4];
        for (long j = 0; j < 4; j++) x[j] = iload(k + (i + j) * 64);
        transpose(x); // part b of x[j] belongs to key 4 * b + j
        for (long j = 0; j < 4 && !Half; j++) store_parts(v + j * row + i * 4, 4 * row, x[j]);
        for (long j = 0; j < 4 && Half; j += 2) {
            const I low = iset1(0x0000ffff), high = iset1((int32_t)0xffff0000);
            const I even = ixor(iand(x[j], low), shift_left<16>(x[j + 1]));
            const I odd = ixor(shift_right<16>(x[j]), iand(x[j + 1], high));
            store_parts(v + j / 2 * row + i * 8, 2 * row, even);
            store_parts(v + j / 2 * row + i * 8 + 16, 2 * row, odd);
        }
    }
}

// out[dim] = sums * factor, with the sums in the column order that `turn_keys` produces.
LANE void store_latent(float *out, const float *sums, long dim, bool half, float factor) {
    for (long i = 0; i < dim; i += 8)
        for (long j = 0; j < 4; j++) {
            out[i + 2 * j] = sums[i + (half ? j : 2 * j)] * factor;
            out[i + 2 * j + 1] = sums[i + (half ? 4 + j : 2 * j + 1)] * factor;
        }
}

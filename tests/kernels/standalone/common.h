// What the parts of the stand-alone check share: numbers that are the same on every machine, comparisons, and digests of
// results. It checks kernels of processors that only an emulator has here, so it needs neither Python nor torch.
#pragma once

#include "native.h"
#include "pool.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <vector>

typedef std::vector<float> Floats;

inline int failures = 0;
inline bool digests = false; // print a line for each result: table, case, digest of its bytes
inline uint32_t state = 1;

inline uint32_t next() { return state = state * 1664525u + 1013904223u; }
inline float uniform() { return (float)(int32_t)next() * 0x1p-31f; } // in -1..1
inline Floats random(size_t count) {
    Floats values(count);
    for (float &value : values) value = uniform();
    return values;
}
inline std::vector<uint8_t> random_bytes(size_t count) {
    std::vector<uint8_t> values(count);
    for (uint8_t &value : values) value = (uint8_t)(next() >> 24);
    return values;
}
inline float bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &bits, 4);
    return x;
}
inline uint16_t upper(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)(bits >> 16);
}

// Two machines whose kernels compute the same bits print the same lines.
inline void note(const char *what, const void *result, size_t bytes) {
    uint64_t digest = 0xcbf29ce484222325u; // FNV-1a
    for (size_t i = 0; i < bytes; i++) digest = (digest ^ ((const uint8_t *)result)[i]) * 0x100000001b3u;
    if (digests) printf("%s\t%s\t%016llx\n", kernels_active()->name, what, (unsigned long long)digest);
}
inline void note(const char *what, const Floats &result) {
    for (float value : result)
        if (value != value || value - value != 0) {
            printf("%s: %s is not finite\n", kernels_active()->name, what);
            failures++;
            break;
        }
    note(what, result.data(), result.size() * sizeof(float));
}

inline void close(const char *what, const Floats &got, const std::vector<double> &want, double tolerance) {
    double worst = 0, size = 1e-30;
    for (size_t i = 0; i < want.size(); i++) {
        worst = got[i] == got[i] ? fmax(worst, fabs(got[i] - want[i])) : INFINITY;
        size = fmax(size, fabs(want[i]));
    }
    note(what, got);
    if (worst <= tolerance * size) return;
    printf("%s: %s is off by %g of %g\n", kernels_active()->name, what, worst, size);
    failures++;
}

// linears.cpp, caches.cpp, states.cpp: results without an oracle of their own, which another table must equal.
void note_linears();
void note_caches();
void note_states();
void note_rows();

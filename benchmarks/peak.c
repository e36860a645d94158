// What one core multiplies at most: independent sums in registers, no memory. Prints operations a second (two a product).
// Built and run by benchmarks/kernels.py: cc -O3 -march=native peak.c && ./a.out
#include <immintrin.h>
#include <stdio.h>
#include <time.h>

enum { kSums = 16, kSteps = 4000, kRuns = 400 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

#define MEASURE(NAME, TYPE, ZERO, STEP, PRODUCTS)                                                                      \
    static double NAME(void) {                                                                                         \
        double best = 1e9;                                                                                             \
        for (int run = 0; run < kRuns; run++) {                                                                        \
            TYPE sum[kSums];                                                                                           \
            for (int i = 0; i < kSums; i++) sum[i] = ZERO;                                                             \
            double start = now();                                                                                      \
            for (int step = 0; step < kSteps; step++)                                                                  \
                _Pragma("GCC unroll 16") for (int i = 0; i < kSums; i++) {                                                                      \
                    sum[i] = STEP;                                                                                     \
                    __asm__ volatile("" : "+v"(sum[i]));                                                               \
                }                                                                                                      \
            double seconds = now() - start;                                                                            \
            if (seconds < best) best = seconds;                                                                        \
        }                                                                                                              \
        return 2.0 * PRODUCTS * kSums * kSteps / best;                                                                 \
    }

#if defined(__AVX512VNNI__)
MEASURE(int8, __m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32(sum[i], _mm512_set1_epi8(1), _mm512_set1_epi8(1)), 64)
#elif defined(__AVX2__)
MEASURE(int8, __m256i, _mm256_setzero_si256(), _mm256_madd_epi16(sum[i], _mm256_set1_epi16(1)), 16)
#endif
#if defined(__AVX512BF16__)
MEASURE(bf16, __m512, _mm512_setzero_ps(), _mm512_dpbf16_ps(sum[i], (__m512bh)_mm512_set1_ps(1), (__m512bh)_mm512_set1_ps(1)), 32)
#elif defined(__AVX512F__)
MEASURE(bf16, __m512, _mm512_setzero_ps(), _mm512_fmadd_ps(_mm512_set1_ps(1), _mm512_set1_ps(1), sum[i]), 16)
#elif defined(__AVX2__)
MEASURE(bf16, __m256, _mm256_setzero_ps(), _mm256_fmadd_ps(_mm256_set1_ps(1), _mm256_set1_ps(1), sum[i]), 8)
#endif

int main(void) {
#if defined(__AVX2__)
    printf("%g %g\n", bf16(), int8());
    return 0;
#else
    return 1; // not measured here
#endif
}

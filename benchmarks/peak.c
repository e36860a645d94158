// What this machine can do at most. Prints operations a second of one core (two a product; independent sums in registers
// or tiles, no memory) in bf16 and int8, then bytes a second that THREADS threads read of 256 MB.
// Built and run by benchmarks/kernels.py: cc -O3 -march=native -pthread peak.c && ./a.out THREADS
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define TILES 1
// Four tiles of sums, which are multiplied in turn: no product waits for the one before it.
#define MEASURE_TILES(NAME, INSTRUCTION, PRODUCTS)                                                                     \
    static double NAME##_tiles(void) {                                                                                 \
        double best = 1e9;                                                                                             \
        for (int run = 0; run < kRuns; run++) {                                                                        \
            double start = now();                                                                                      \
            for (int step = 0; step < kSteps / 4; step++)                                                              \
                __asm__ volatile(INSTRUCTION " %tmm6, %tmm4, %tmm0\n" INSTRUCTION " %tmm7, %tmm4, %tmm1\n" INSTRUCTION \
                                             " %tmm6, %tmm5, %tmm2\n" INSTRUCTION " %tmm7, %tmm5, %tmm3");             \
            double seconds = now() - start;                                                                            \
            if (seconds < best) best = seconds;                                                                        \
        }                                                                                                              \
        return 2.0 * PRODUCTS * 16 * 16 * kSteps / best;                                                               \
    }
MEASURE_TILES(int8, "tdpbssd", 64)
MEASURE_TILES(bf16, "tdpbf16ps", 32)

static int tiles_allowed(void) { // the kernel grants them to a process that asks
    struct { uint8_t palette, unused[15]; uint16_t bytes[16]; uint8_t rows[16]; } shapes = {.palette = 1};
    if (syscall(SYS_arch_prctl, 0x1023, 18)) return 0; // ARCH_REQ_XCOMP_PERM, tile data
    for (int i = 0; i < 8; i++) shapes.bytes[i] = 64, shapes.rows[i] = 16;
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
    return 1;
}
#endif

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

enum { kChunk = 2 << 20, kChunks = 128, kPasses = 40 };

static const char *memory;
static size_t readers;

static double wall(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static uint64_t read_chunk(const char *chunk) {
    const uint64_t *words = (const uint64_t *)chunk;
    uint64_t sums[32] = {0}, total = 0;
    for (size_t i = 0; i < kChunk / 8; i += 32)
        for (int j = 0; j < 32; j++) sums[j] += words[i + j];
    for (int j = 0; j < 32; j++) total += sums[j];
    return total;
}

// Bytes a second of one thread: every `readers`th chunk in turn, each one's fastest pass. Other work cannot hide it.
static void *reader(void *argument) {
    double best[kChunks], seconds = 0, *rate = argument;
    size_t first = (size_t)*rate, count = 0;
    volatile uint64_t sink = 0;
    for (int pass = 0; pass < kPasses; pass++)
        for (size_t chunk = first; chunk < kChunks; chunk += readers) {
            double start = wall();
            sink += read_chunk(memory + chunk * kChunk);
            double taken = wall() - start;
            if (pass == 0 || taken < best[chunk]) best[chunk] = taken;
        }
    for (size_t chunk = first; chunk < kChunks; chunk += readers) seconds += best[chunk], count++;
    *rate = (double)count * kChunk / seconds;
    return NULL;
}

static double bandwidth(size_t threads) {
    pthread_t ids[kChunks];
    double rates[kChunks], total = 0; // a rate holds its thread's first chunk at the start
    char *bytes = aligned_alloc(kChunk, (size_t)kChunk * kChunks);
    if (!bytes) return 0;
    madvise(bytes, (size_t)kChunk * kChunks, MADV_HUGEPAGE);
    memset(bytes, 1, (size_t)kChunk * kChunks);
    memory = bytes, readers = threads < kChunks ? threads : kChunks;
    for (size_t i = 0; i < readers; i++) rates[i] = (double)i;
    for (size_t i = 0; i < readers; i++) pthread_create(&ids[i], NULL, reader, &rates[i]);
    for (size_t i = 0; i < readers; i++) pthread_join(ids[i], NULL);
    for (size_t i = 0; i < readers; i++) total += rates[i];
    return total;
}

int main(int count, char **arguments) {
#if defined(__AVX2__)
    size_t threads = count > 1 ? strtoul(arguments[1], NULL, 10) : 1;
    if (threads < 1) return 2;
    double halves = bf16(), bytes = int8();
#if defined(TILES)
    if (tiles_allowed()) halves = bf16_tiles(), bytes = int8_tiles();
#endif
    printf("%g %g %g\n", halves, bytes, bandwidth(threads));
    return 0;
#else
    return 1; // not measured here
#endif
}

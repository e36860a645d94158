// Threads that spin briefly, then sleep; tiles are claimed from one atomic word.
//
// The word holds (generation, number of tiles, next tile). A claim is one fetch_add: a thread that gets a tile below the
// number of tiles knows that the job is unfinished, so its description is still the one of that generation. The caller
// therefore waits only for tiles that somebody claimed, never for a thread that the kernel has not scheduled.
#include "pool.h"

#include <atomic>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

namespace {

constexpr int kTileBits = 22;
constexpr uint64_t kTileMask = (uint64_t(1) << kTileBits) - 1;
constexpr long kMaxThreads = 256;
constexpr int64_t kSpinNanoseconds = 30000;
constexpr size_t kScratchAlignment = 64;

struct Pool {
    alignas(64) std::atomic<uint64_t> word{0};
    alignas(64) std::atomic<long> done{0};
    alignas(64) std::atomic<int> sleepers{0};
    std::atomic<bool> stop{false};
    TileFunction function = nullptr;
    const void *context = nullptr;
    uint64_t generation = 0;
    pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER; // held by the caller of a running job
    pthread_mutex_t sleep_mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
    pthread_t threads[kMaxThreads];
    long workers = 0;
    bool fork_handler = false;
};

Pool pool;

pthread_mutex_t scratch_mutex = PTHREAD_MUTEX_INITIALIZER;
void *scratch_memory = nullptr;
size_t scratch_bytes = 0;

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory"); // waits longer than `yield`, which most cores ignore
#endif
}

int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

uint64_t tiles_of(uint64_t word) { return (word >> kTileBits) & kTileMask; }
bool has_work(uint64_t word) { return (word & kTileMask) < tiles_of(word); }

// Claims and runs tiles until none is left.
void work() {
    while (has_work(pool.word.load(std::memory_order_acquire))) {
        uint64_t word = pool.word.fetch_add(1, std::memory_order_acq_rel);
        if (!has_work(word)) return;
        pool.function(pool.context, long(word & kTileMask));
        pool.done.fetch_add(1, std::memory_order_release);
    }
}

bool wanted() { return has_work(pool.word.load(std::memory_order_acquire)) || pool.stop.load(); }

bool spin_for_work() {
    int64_t deadline = now() + kSpinNanoseconds;
    do {
        for (int i = 0; i < 64; i++) {
            if (wanted()) return true;
            pause_briefly();
        }
    } while (now() < deadline);
    return false;
}

void sleep_for_work() {
    pthread_mutex_lock(&pool.sleep_mutex);
    pool.sleepers.fetch_add(1);
    while (!has_work(pool.word.load()) && !pool.stop.load()) pthread_cond_wait(&pool.wake, &pool.sleep_mutex);
    pool.sleepers.fetch_sub(1);
    pthread_mutex_unlock(&pool.sleep_mutex);
}

void wake_sleepers() {
    if (pool.sleepers.load() == 0) return;
    pthread_mutex_lock(&pool.sleep_mutex);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.sleep_mutex);
}

void *worker(void *) {
    while (!pool.stop.load()) {
        work();
        if (!spin_for_work()) sleep_for_work();
    }
    return nullptr;
}

// A child of fork has only the forking thread: it starts with an empty pool and fresh locks.
void after_fork() {
    pool.workers = 0;
    pool.stop.store(false);
    pool.sleepers.store(0);
    pool.word.store(0);
    pthread_mutex_init(&pool.busy, nullptr);
    pthread_mutex_init(&pool.sleep_mutex, nullptr);
    pthread_cond_init(&pool.wake, nullptr);
    pthread_mutex_init(&scratch_mutex, nullptr);
}

void stop_workers() {
    pool.stop.store(true);
    wake_sleepers();
    for (long i = 0; i < pool.workers; i++) pthread_join(pool.threads[i], nullptr);
    pool.workers = 0;
    pool.stop.store(false);
}

} // namespace

long pool_init(long threads) {
    if (threads < 1) threads = 1;
    if (threads > kMaxThreads) threads = kMaxThreads;
    pthread_mutex_lock(&pool.busy);
    if (!pool.fork_handler) pool.fork_handler = pthread_atfork(nullptr, nullptr, after_fork) == 0;
    if (threads != pool.workers + 1) {
        stop_workers();
        while (pool.workers + 1 < threads) {
            if (pthread_create(&pool.threads[pool.workers], nullptr, worker, nullptr) != 0) break;
            pool.workers++;
        }
    }
    long size = pool.workers + 1;
    pthread_mutex_unlock(&pool.busy);
    return size;
}

long pool_size() { return pool.workers + 1; }

void pool_run(TileFunction function, const void *context, long tiles) {
    bool alone = tiles < 2 || pool.workers == 0 || uint64_t(tiles) > kTileMask / 2;
    if (alone || pthread_mutex_trylock(&pool.busy) != 0) { // busy: another thread computes, so this one works alone
        for (long tile = 0; tile < tiles; tile++) function(context, tile);
        return;
    }
    pool.function = function;
    pool.context = context;
    pool.done.store(0, std::memory_order_relaxed);
    pool.generation++;
    pool.word.store((pool.generation << (2 * kTileBits)) | (uint64_t(tiles) << kTileBits));
    wake_sleepers();
    work();
    for (long spins = 0; pool.done.load(std::memory_order_acquire) < tiles; spins++) {
        pause_briefly();
        if (spins > 4000) sched_yield();
    }
    pthread_mutex_unlock(&pool.busy);
}

Scratch::Scratch(size_t bytes) : memory(nullptr), shared_(false) {
    size_t size = (bytes + kScratchAlignment) / kScratchAlignment * kScratchAlignment;
    if (pthread_mutex_trylock(&scratch_mutex) != 0) {
        memory = aligned_alloc(kScratchAlignment, size);
        return;
    }
    shared_ = true;
    if (scratch_bytes < size) {
        free(scratch_memory);
        scratch_memory = aligned_alloc(kScratchAlignment, size);
        scratch_bytes = scratch_memory ? size : 0;
    }
    memory = scratch_memory;
}

Scratch::~Scratch() {
    if (shared_)
        pthread_mutex_unlock(&scratch_mutex);
    else
        free(memory);
}

// Thread pool: threads spin briefly, then sleep; tiles are claimed from one atomic word.
//
// The word holds (generation, number of tiles, next tile). A claim is one fetch_add. A thread that gets tiles below
// the number of tiles knows that the job is unfinished, so its description is still that of this generation. The
// caller therefore waits only for claimed tiles, never for a thread that the kernel has not scheduled. A claim takes
// a share of the remaining tiles, so that many threads need few claims, and single tiles at the end, so that threads
// finish together.
//
// Waking costs the caller the same for any number of threads: it wakes two, and each woken thread that finds work
// left wakes two more. Threads do not spin when they outnumber the processors: each would keep another from working.
//
// The caller's wait for claimed tiles ends in sleep, too. If the tile's thread is not running (another program has
// its processor, or the control group's quota is used up), spinning would use up the time which that thread needs,
// and only an idle processor lets the system schedule it.
#include "pool.h"

#include <atomic>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr int kTileBits = 22;
constexpr uint64_t kTileMask = (uint64_t(1) << kTileBits) - 1;
constexpr long kMaxThreads = 1024;
constexpr long kSpinsBeforeYield = 4000;
constexpr int64_t kYieldNanoseconds = 1000000; // the caller yields this long before it sleeps
constexpr size_t kScratchAlignment = 64;
constexpr size_t kHugePage = 2 << 20;
constexpr int kKeptLevels = 8;            // nesting levels of calls whose memory is kept
constexpr size_t kStackBytes = 1 << 20;   // per thread, whatever `ulimit -s` says; no call needs a tenth of it

struct Pool {
    alignas(64) std::atomic<uint64_t> word{0};
    alignas(64) std::atomic<long> done{0};
    alignas(64) std::atomic<int> sleepers{0};
    std::atomic<bool> stop{false};
    std::atomic<bool> crowded{false}; // more threads than processors
    std::atomic<bool> caller_sleeps{false};
    std::atomic<int64_t> spin_nanoseconds{30000};
    TileFunction function = nullptr;
    const void *context = nullptr;
    uint64_t generation = 0;
    pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER; // locked by the caller of a running job
    pthread_mutex_t sleep_mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
    pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
    pthread_t threads[kMaxThreads];
    std::atomic<long> workers{0};
    bool fork_handler = false;
};

Pool pool;

struct KeptMemory {
    void *memory[kKeptLevels] = {};
    size_t bytes[kKeptLevels] = {};
    int level = 0; // nesting depth of the running calls
    ~KeptMemory() {
        for (void *each : memory) free(each);
    }
};

thread_local KeptMemory kept;

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

long processors() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    return sysconf(_SC_NPROCESSORS_ONLN);
}

long tiles_of(uint64_t word) { return long((word >> kTileBits) & kTileMask); }
long next_of(uint64_t word) { return long(word & kTileMask); }
bool has_work(uint64_t word) { return next_of(word) < tiles_of(word); }

// Claims and runs tiles until none is left.
void work() {
    long finished = 0;
    const long shares = 2 * (pool.workers.load(std::memory_order_relaxed) + 1);
    for (uint64_t seen = pool.word.load(std::memory_order_acquire); has_work(seen);) {
        const long share = (tiles_of(seen) - next_of(seen)) / shares;
        const long count = share > 1 ? share : 1;
        const uint64_t word = pool.word.fetch_add(uint64_t(count), std::memory_order_acq_rel);
        const long first = next_of(word), tiles = tiles_of(word), end = first + count < tiles ? first + count : tiles;
        for (long tile = first; tile < end; tile++) pool.function(pool.context, tile);
        if (first < end) finished += end - first;
        seen = word + uint64_t(count);
    }
    if (finished == 0) return;
    // Must precede the load of caller_sleeps: the caller stores that first and then reads done, so one of the two sees
    // the other.
    pool.done.fetch_add(finished);
    if (!pool.caller_sleeps.load()) return;
    // Locked so that the signal cannot fall between the caller's check of `done` and its wait, where it would be
    // lost.
    pthread_mutex_lock(&pool.sleep_mutex);
    pthread_cond_signal(&pool.finished);
    pthread_mutex_unlock(&pool.sleep_mutex);
}

bool all_done(long tiles) { return pool.done.load(std::memory_order_acquire) >= tiles; }

void sleep_until_done(long tiles) {
    pthread_mutex_lock(&pool.sleep_mutex);
    pool.caller_sleeps.store(true);
    while (pool.done.load() < tiles) pthread_cond_wait(&pool.finished, &pool.sleep_mutex);
    pool.caller_sleeps.store(false);
    pthread_mutex_unlock(&pool.sleep_mutex);
}

// Waits for tiles that other threads have claimed.
void wait_until_done(long tiles) {
    for (long spins = 0; spins < kSpinsBeforeYield && !pool.crowded; spins++) {
        if (all_done(tiles)) return;
        pause_briefly();
    }
    if (all_done(tiles)) return;
    const int64_t deadline = now() + kYieldNanoseconds;
    do {
        sched_yield();
        if (all_done(tiles)) return;
    } while (now() < deadline);
    sleep_until_done(tiles);
}

bool wanted() { return has_work(pool.word.load(std::memory_order_acquire)) || pool.stop.load(); }

bool spin_for_work() {
    if (pool.crowded) return wanted();
    int64_t deadline = now() + pool.spin_nanoseconds.load(std::memory_order_relaxed);
    do {
        for (int i = 0; i < 64; i++) {
            if (wanted()) return true;
            pause_briefly();
        }
    } while (now() < deadline);
    return false;
}

void wake_two() {
    if (pool.sleepers.load() == 0) return;
    pthread_mutex_lock(&pool.sleep_mutex);
    pthread_cond_signal(&pool.wake);
    if (pool.sleepers.load() > 1) pthread_cond_signal(&pool.wake);
    pthread_mutex_unlock(&pool.sleep_mutex);
}

void sleep_for_work() {
    pthread_mutex_lock(&pool.sleep_mutex);
    // Announced before the word is read again: a caller that posts work after this check sees a sleeper and signals.
    pool.sleepers.fetch_add(1);
    while (!has_work(pool.word.load()) && !pool.stop.load()) pthread_cond_wait(&pool.wake, &pool.sleep_mutex);
    pool.sleepers.fetch_sub(1);
    pthread_mutex_unlock(&pool.sleep_mutex);
    if (has_work(pool.word.load())) wake_two();
}

void *worker(void *) {
    while (!pool.stop.load()) {
        work();
        if (!spin_for_work()) sleep_for_work();
    }
    return nullptr;
}

// A forked child has only the forking thread: it starts with an empty pool and fresh locks, because a lost thread may
// have held the old ones.
void after_fork() {
    pool.workers = 0;
    pool.stop.store(false);
    pool.sleepers.store(0);
    pool.word.store(0);
    pthread_mutex_init(&pool.busy, nullptr);
    pthread_mutex_init(&pool.sleep_mutex, nullptr);
    pthread_cond_init(&pool.wake, nullptr);
    pthread_cond_init(&pool.finished, nullptr);
    pool.caller_sleeps.store(false);
}

void stop_workers() {
    pthread_mutex_lock(&pool.sleep_mutex);
    pool.stop.store(true);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.sleep_mutex);
    for (long i = 0; i < pool.workers; i++) pthread_join(pool.threads[i], nullptr);
    pool.workers = 0;
    pool.stop.store(false);
}

// Workers block all signals, so that handlers run on the program's own threads. A new thread inherits the mask.
void start_workers(long count) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kStackBytes);
    long started = 0;
    while (started < count && pthread_create(&pool.threads[started], &attributes, worker, nullptr) == 0) {
#if defined(__linux__)
        pthread_setname_np(pool.threads[started], "core-compute");
#endif
        started++;
    }
    pthread_attr_destroy(&attributes);
    pool.workers = started;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

} // namespace

long pool_init(long threads) {
    if (threads < 1) threads = 1;
    if (threads > kMaxThreads) threads = kMaxThreads;
    pthread_mutex_lock(&pool.busy);
    if (!pool.fork_handler) pool.fork_handler = pthread_atfork(nullptr, nullptr, after_fork) == 0;
    pool.crowded = threads > processors();
    if (threads != pool.workers + 1) {
        stop_workers();
        start_workers(threads - 1);
    }
    long size = pool.workers + 1;
    pthread_mutex_unlock(&pool.busy);
    return size;
}

long pool_size() { return pool.workers + 1; }

void pool_spin(long microseconds) { pool.spin_nanoseconds.store(int64_t(microseconds) * 1000); }

bool pool_bind(const int *processors, long count) {
    bool bound = true;
#if defined(__linux__)
    pthread_mutex_lock(&pool.busy);
    cpu_set_t set;
    bound = sched_getaffinity(0, sizeof set, &set) == 0;
    for (long i = 0; i < pool.workers && (i < count || count == 0); i++) {
        if (count > 0) {
            CPU_ZERO(&set);
            CPU_SET(processors[i], &set);
        }
        bound = pthread_setaffinity_np(pool.threads[i], sizeof set, &set) == 0 && bound;
    }
    pthread_mutex_unlock(&pool.busy);
#else
    bound = processors == nullptr || count == 0;
#endif
    return bound;
}

void pool_run(TileFunction function, const void *context, long tiles) {
    // Claims past the end also advance the word, so half of the counter is left free for them.
    bool alone = tiles < 2 || pool.workers == 0 || uint64_t(tiles) > kTileMask / 2;
    if (alone || pthread_mutex_trylock(&pool.busy) != 0) { // busy: another thread computes, so this one works alone
        for (long tile = 0; tile < tiles; tile++) function(context, tile);
        return;
    }
    pool.function = function;
    pool.context = context;
    pool.done.store(0, std::memory_order_relaxed);
    pool.generation++;
    // Publishes the job: function, context and done are written before the word, and threads read them after it.
    pool.word.store((pool.generation << (2 * kTileBits)) | (uint64_t(tiles) << kTileBits));
    wake_two();
    work();
    wait_until_done(tiles);
    pthread_mutex_unlock(&pool.busy);
}

uint64_t pool_jobs() { return pool.word.load(std::memory_order_relaxed); }

void pool_wait(const std::atomic<long> &counter, long value) {
    for (long spins = 0; counter.load(std::memory_order_acquire) < value; spins++) {
        if (spins < kSpinsBeforeYield && !pool.crowded)
            pause_briefly();
        else
            sched_yield();
    }
}

// Puts large buffers into huge pages where available: kernels walk through them with long strides.
static void *allocate(size_t size) {
    if (size < kHugePage / 4) return aligned_alloc(kScratchAlignment, size);
    const size_t whole = (size + kHugePage - 1) / kHugePage * kHugePage;
    void *memory = aligned_alloc(kHugePage, whole);
#ifdef MADV_HUGEPAGE
    if (memory) madvise(memory, whole, MADV_HUGEPAGE);
#endif
    return memory;
}

Scratch::Scratch(size_t bytes) : memory(nullptr) {
    const size_t size = (bytes + kScratchAlignment) / kScratchAlignment * kScratchAlignment;
    const int level = kept.level++;
    if (level >= kKeptLevels) {
        memory = allocate(size);
        return;
    }
    if (kept.bytes[level] < size) {
        free(kept.memory[level]);
        kept.memory[level] = allocate(size);
        kept.bytes[level] = kept.memory[level] ? size : 0;
    }
    memory = kept.memory[level];
}

Scratch::~Scratch() {
    if (--kept.level >= kKeptLevels) free(memory);
}

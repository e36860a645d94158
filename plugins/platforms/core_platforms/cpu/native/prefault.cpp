// Prefaults memory on one thread of the idle scheduling class, which gets a processor only when it would stand idle.
// The thread ends with the last page.
//
// It waits while the pool computes: in the first half minute after a start it otherwise used each moment in which a compute
// thread slept, and who wanted the processor next, waited (measured with two: 8 of 24 first tokens came more than 20 ms after
// the prefill, and 3 of 24 without prefaulting).
//
// On a virtual machine whose memory is provided on demand, the first write to a page costs many times what later ones
// do (measured: 0.5 GB/s against 10), and the step that writes it waits.
#include "prefault.h"

#include "pool.h"

#if defined(__linux__)
#include <atomic>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace {

constexpr size_t kPiece = 2 << 20; // step size: one huge page
constexpr int kMaxRanges = 1024;
constexpr useconds_t kQuietMicroseconds = 20000; // time without a job after which the engine counts as idle

struct Range {
    uintptr_t begin, end;
};

struct Queue {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    Range ranges[kMaxRanges];
    int next = 0, count = 0;
    bool running = false; // the thread still looks for ranges
    pid_t owner = 0;      // process that has to join the thread; a forked child does not have it
    pthread_t thread;
    std::atomic<bool> stop{false};
};

Queue queue;

bool next_range(Range &range) {
    pthread_mutex_lock(&queue.mutex);
    const bool found = !queue.stop.load() && queue.next < queue.count;
    if (found)
        range = queue.ranges[queue.next++];
    else
        queue.next = queue.count = 0, queue.running = false;
    pthread_mutex_unlock(&queue.mutex);
    return found;
}

bool take(uintptr_t begin, uintptr_t end) { return madvise((void *)begin, end - begin, MADV_POPULATE_WRITE) == 0; }

// Waits until the pool is idle, if it has had a job since `seen`, which becomes its latest one.
void wait_for_quiet(uint64_t &seen) {
    for (uint64_t latest = pool_jobs(); latest != seen && !queue.stop.load(); latest = pool_jobs()) {
        seen = latest;
        usleep(kQuietMicroseconds);
    }
}

void *take_all(void *) {
    sched_param none = {};
    const bool modest = sched_setscheduler(0, SCHED_IDLE, &none) == 0;
    pthread_setname_np(pthread_self(), "core-prefault");
    Range range;
    uint64_t job = 0;
    while (next_range(range))
        for (uintptr_t at = range.begin; modest && at < range.end && !queue.stop.load();) {
            wait_for_quiet(job);
            uintptr_t end = (at / kPiece + 1) * kPiece;
            if (end > range.end) end = range.end;
            if (!take(at, end)) break; // unmapped in the meantime, or no memory left
            at = end;
        }
    return nullptr;
}

// Blocks all signals, so that handlers run on the program's own threads.
bool start_thread() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&queue.thread, nullptr, take_all, nullptr) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
}

bool join_thread() {
    const bool mine = queue.owner == getpid();
    queue.owner = 0;
    if (mine) pthread_join(queue.thread, nullptr);
    return mine;
}

} // namespace

bool prefault(void *address, size_t bytes) {
    const uintptr_t begin = (uintptr_t)address;
    if (bytes == 0 || !take(begin, begin)) return false; // this kernel does not support it
    pthread_mutex_lock(&queue.mutex);
    if (queue.owner != getpid()) queue.next = queue.count = 0, queue.running = false;
    const bool room = queue.count < kMaxRanges;
    if (room) queue.ranges[queue.count++] = {begin, begin + bytes};
    if (room && !queue.running) {
        join_thread(); // the thread of earlier ranges, which no longer takes new ones
        queue.stop.store(false);
        queue.running = start_thread();
        queue.owner = queue.running ? getpid() : 0;
    }
    const bool queued = room && queue.running;
    pthread_mutex_unlock(&queue.mutex);
    return queued;
}

void prefault_stop() {
    queue.stop.store(true);
    pthread_mutex_lock(&queue.mutex);
    const pid_t owner = queue.owner;
    pthread_mutex_unlock(&queue.mutex);
    if (owner == getpid()) join_thread();
}
#else
bool prefault(void *, size_t) { return false; }
void prefault_stop() {}
#endif

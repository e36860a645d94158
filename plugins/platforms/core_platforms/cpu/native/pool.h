// The extension's own threads. `run` distributes numbered tiles over them; the caller is thread 0.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>

typedef void (*TileFunction)(const void *context, long tile);

// Sets the total number of threads, including the caller; replaces the threads of an earlier call. Returns the number
// running. Any thread may call it while another computes: it waits for the end of a `pool_run`, and calls made
// meanwhile run on their caller alone.
long pool_init(long threads);
long pool_size();
// How long idle threads look for work before they sleep; initially 30.
void pool_spin(long microseconds);
// Binds thread i + 1 to processors[i] from now on; a count of 0 lets all threads run where the caller may (thread 0
// is the caller's own). False where the system refuses.
bool pool_bind(const int *processors, long count);
// Calls function(context, tile) for 0 <= tile < tiles, in any order, on any thread. Returns when all have finished.
void pool_run(TileFunction function, const void *context, long tiles);

// A number that changes with every job which threads share.
uint64_t pool_jobs();

// Waits, in a tile, until earlier tiles of the same job have counted up to `value`. Tiles are claimed in their order, so
// each of them has a thread that runs it.
void pool_wait(const std::atomic<long> &counter, long value);

// Working memory that outlives the call that grew it. Each thread has its own, and so does each nesting level of
// calls. Memory is null when allocation fails.
class Scratch {
  public:
    explicit Scratch(size_t bytes);
    ~Scratch();
    Scratch(const Scratch &) = delete;
    void *memory;
};

// The extension's own threads: `run` spreads numbered tiles over them, the caller being thread 0.
#pragma once

#include <stddef.h>

typedef void (*TileFunction)(const void *context, long tile);

// Total threads including the caller; replaces the threads of an earlier call. Returns the number running. Any thread may
// call it while another computes: it waits for the end of a `pool_run`, and those meanwhile are done by their caller alone.
long pool_init(long threads);
long pool_size();
// How long idle threads look for work before they sleep; 30 at first.
void pool_spin(long microseconds);
// Keeps thread i + 1 on processors[i] from now on; with a count of 0 all threads go where the caller may (thread 0 is the
// caller's own). False where the system refuses.
bool pool_bind(const int *processors, long count);
// Calls function(context, tile) for 0 <= tile < tiles, in any order, on any thread. Returns when all have finished.
void pool_run(TileFunction function, const void *context, long tiles);

// Working memory that outlives the call that grew it: each thread has its own, and each call within a call. Null memory on
// exhaustion.
class Scratch {
  public:
    explicit Scratch(size_t bytes);
    ~Scratch();
    Scratch(const Scratch &) = delete;
    void *memory;
};

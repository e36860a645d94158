// The updates of adapters for the rows of one call, in pieces that a parallel region distributes.
#pragma once

#include "native.h"
#include "pool.h"

#include <atomic>

struct LowRankChunk { // rows with one adapter
    const LowRankUpdate *update;
    int32_t begin, end; // places among the rows, which are grouped by adapter
    int32_t unit;       // number of the chunk's first unit
};

// A x is computed in tiles that come first in a region; `update` waits for them, see `pool_wait`.
class LowRankWork {
  public:
    explicit LowRankWork(const LowRankCall &call); // at most kLowRankRows rows
    bool ok() const { return lists_.memory && inner_.memory; }
    bool empty() const { return num_chunks_ == 0; } // no row has an adapter
    long tiles() const { return tiles_; }
    void tile(long number) const;
    // Applies B (A x) to the panels [panel, last) of all rows. out: where output 0 of row 0 is. False: out of memory.
    bool update(long panel, long last, float *out, long out_stride) const;

  private:
    size_t prepare();
    void group();
    LowRankTask task(const LowRankChunk &chunk, long split) const;
    void join(const LowRankTask &task, float *sums) const;

    const LowRankCall &call_;
    const KernelTable *table_;
    LowRankChunk *chunks_ = nullptr;
    int32_t *order_ = nullptr, *starts_ = nullptr; // the rows by adapter; [table_rows + 1] counts
    long num_chunks_ = 0;
    long width_ = 0;  // numbers of A x per row
    long splits_ = 1; // subtrees of segments that are computed apart; a power of two
    // A unit is a panel of ranks and a subtree of segments for a chunk.
    long units_ = 0, tiles_ = 0;
    mutable std::atomic<long> finished_{0};
    Scratch lists_, inner_;
};

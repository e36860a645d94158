// Ranks of one host that compute one model together: sums, gathers and messages in shared memory.
#pragma once

#include "tape.h"

#include <stddef.h>
#include <stdint.h>

constexpr long kMostRanks = 64;

struct Ranks; // one process's end of the shared memory

// Bytes of memory for `size` ranks; each has two slots of `slot_bytes` bytes.
size_t ranks_bytes(long size, size_t slot_bytes);
// memory: zeroed, mapped by all ranks, and outliving the result. Null: out of memory.
Ranks *ranks_open(void *memory, long rank, long size, size_t slot_bytes);
void ranks_close(Ranks *ranks);

// How long a rank looks for the others before it sleeps, and after how long it no longer waits for them (0: never).
void ranks_patience(Ranks *ranks, int64_t spin_nanoseconds, int64_t limit_nanoseconds);
// Begins the command with this number. The operations of a command are counted from its start, so that ranks which gave
// up an earlier one at different places agree again.
void ranks_begin(Ranks *ranks, uint64_t command);
// Makes every rank leave its operation of the present command with kAborted.
void ranks_abort(Ranks *ranks);
// Makes every operation of all ranks return kBroken from now on.
void ranks_break(Ranks *ranks);
// The rank that the latest operation with kLate waited for.
long ranks_late(const Ranks *ranks);

struct SumCall { // adds up the rows of all ranks in place, in a tree: the same bits for any power of two of ranks
    Ranks *ranks;
    float *x;
    long x_stride, rows, width;
};

struct GatherPartsCall { // out[i, start of each rank, + its width) = x of that rank
    Ranks *ranks;
    const float *x;
    long x_stride, rows, start, width;
    long widest; // the largest width of all ranks; a row of it fits a slot
    float *out;
    long out_stride;
    long root; // the rank that gets the result; -1: all
};

Status run_sum(const SumCall &call);
Status run_gather_parts(const GatherPartsCall &call);
Status ranks_barrier(Ranks *ranks);
// Moves bytes from the root to all others; `size` is known to all of them.
Status ranks_broadcast(Ranks *ranks, long root, void *data, size_t size);
// Gathers `size` bytes of each rank, in their order; with `pieces`, each rank sends `size` bytes to each other instead.
Status ranks_exchange(Ranks *ranks, const void *data, size_t size, bool pieces, void *out);

// A stream of bytes from rank 0 to each other rank, apart from the operations above. A reader waits as long as it takes,
// unless it is limited: then the present command's limit and its abort end the wait.
Status ranks_write(Ranks *ranks, const void *data, size_t size);
Status ranks_read(Ranks *ranks, void *data, size_t size, bool limited);

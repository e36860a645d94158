// A tape: native calls recorded once with fixed addresses, replayed by one call with other row counts.
#pragma once

#include <stddef.h>

// The last three: of ranks, see ranks.h.
enum Status { kDone = 0, kNoMemory = 1, kNoRow = 2, kAborted = 3, kBroken = 4, kLate = 5 };

// How a recorded call depends on its rows: each independently; each independently, but not concurrently with other
// rows of the same call; or by sequences instead of rows.
enum Reach { kRowsApart = 0, kRowsTogether = 1, kSequences = 2 };

// Runs a recorded call without changing it: on the rows from `first` on, or on the first sequences.
using Replay = Status (*)(const void *call, long first, long count);

struct Tape;
void tape_begin(long rows, long batch); // starts recording this thread's calls; drops an unfinished recording
// null: nothing was recorded, memory ran out, or a call had another number of rows.
Tape *tape_end();
bool tape_recording();                  // on this thread
void tape_record(Replay replay, const void *call, size_t bytes, long rows, Reach reach);
long tape_length(const Tape *tape);
Status tape_run(const Tape *tape, long rows, long batch); // not reentrant: one run at a time per tape
void tape_free(Tape *tape);

// A tape: native calls recorded once with fixed addresses, replayed by one call with other numbers of rows.
#pragma once

#include <stddef.h>

enum Status { kDone = 0, kNoMemory = 1, kNoRow = 2 };

// How a recorded call depends on its rows: each by itself; each by itself, but not at the same time as other rows of the same
// call; or sequences, not rows, are what it is about.
enum Reach { kRowsApart = 0, kRowsTogether = 1, kSequences = 2 };

// Runs a recorded call, which stays as it is: of rows, those from `first` on; of sequences, the first ones.
using Replay = Status (*)(const void *call, long first, long count);

struct Tape;
void tape_begin(long rows, long batch); // this thread's calls are recorded from now on; forgets an unfinished recording
Tape *tape_end();                       // null: nothing was recorded, memory ran out, or a call had another number of rows
bool tape_recording();                  // on this thread
void tape_record(Replay replay, const void *call, size_t bytes, long rows, Reach reach);
long tape_length(const Tape *tape);
Status tape_run(const Tape *tape, long rows, long batch); // one at a time for each tape
void tape_free(Tape *tape);

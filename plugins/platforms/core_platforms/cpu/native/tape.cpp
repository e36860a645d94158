// Recording and replay of native calls. A tape keeps copies of the calls' arguments, not of the memory they point to:
// weights, workspaces and step inputs must outlive it (the Python side keeps them alive).
//
// Consecutive calls that process every row independently run on part of the rows at a time. With many rows each
// thread takes its own part through all of these calls: it waits for no other thread, and one call's output is still
// in its core's cache for the next.
#include "tape.h"
#include "native.h"

#include "pool.h"

#include <atomic>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

namespace {

constexpr size_t kAlignment = 16;
constexpr long kMostRows = 96;  // rows per part: its intermediate results fit into a core's caches
constexpr long kLeastRows = 48; // rows per part: with fewer, reading the weights would dominate

struct Entry {
    Replay replay;
    Reach reach;
    size_t bytes; // size of the call stored after this entry, rounded up
};

// Consecutive calls that process every row independently, run on parts of the rows.
struct Segment {
    const unsigned char *begin, *end;
    long rows, parts;
    std::atomic<int> status;
};

struct Recording {
    Tape *tape;
    pthread_t thread;
    long rows, batch;
    bool valid;
};

size_t round_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

Recording recording = {};

const Entry &entry_at(const unsigned char *p) { return *(const Entry *)p; }
const unsigned char *after(const unsigned char *p) { return p + sizeof(Entry) + entry_at(p).bytes; }
Status replay(const unsigned char *p, long first, long count) { return entry_at(p).replay(p + sizeof(Entry), first, count); }

// The first row of a part; parts differ by at most one block of rows.
long part_start(const Segment &segment, long part) {
    const long blocks = (segment.rows + kRowBlock - 1) / kRowBlock, row = blocks * part / segment.parts * kRowBlock;
    return row < segment.rows ? row : segment.rows;
}

void run_part(const void *context, long part) {
    Segment &segment = *(Segment *)context;
    const long first = part_start(segment, part), count = part_start(segment, part + 1) - first;
    for (const unsigned char *p = segment.begin; p < segment.end && count > 0; p = after(p)) {
        const Status status = replay(p, first, count);
        if (status == kDone) continue;
        segment.status.store(status);
        return;
    }
}

// The same number of parts for each thread, or one part on which all threads work together.
long parts_of(long rows) {
    const long threads = pool_size();
    if (rows < kLeastRows * threads) return 1;
    return (rows + kMostRows * threads - 1) / (kMostRows * threads) * threads;
}

} // namespace

struct Tape {
    unsigned char *data;
    size_t used, size;
    long length;
};

void tape_begin(long rows, long batch) {
    if (recording.tape) tape_free(recording.tape);
    Tape *tape = (Tape *)calloc(1, sizeof(Tape));
    recording = {tape, pthread_self(), rows, batch, tape != nullptr};
}

bool tape_recording() { return recording.tape && pthread_equal(recording.thread, pthread_self()); }

void tape_record(Replay replay, const void *call, size_t bytes, long rows, Reach reach) {
    Tape &tape = *recording.tape;
    if (rows != (reach == kSequences ? recording.batch : recording.rows)) recording.valid = false;
    const size_t needed = tape.used + sizeof(Entry) + round_up(bytes);
    if (needed > tape.size) {
        const size_t size = needed * 2;
        void *data = realloc(tape.data, size);
        if (!data) {
            recording.valid = false;
            return;
        }
        tape.data = (unsigned char *)data;
        tape.size = size;
    }
    *(Entry *)(tape.data + tape.used) = {replay, reach, round_up(bytes)};
    memcpy(tape.data + tape.used + sizeof(Entry), call, bytes);
    tape.used = needed;
    tape.length++;
}

Tape *tape_end() {
    Tape *tape = recording.tape;
    const bool valid = recording.valid && tape && tape->length > 0;
    recording = {};
    if (valid) return tape;
    if (tape) tape_free(tape);
    return nullptr;
}

long tape_length(const Tape *tape) { return tape->length; }

Status tape_run(const Tape *tape, long rows, long batch) {
    const unsigned char *p = tape->data, *end = p + tape->used;
    Status status = kDone;
    while (p < end && rows > 0 && status == kDone) {
        if (entry_at(p).reach != kRowsApart) {
            status = replay(p, 0, entry_at(p).reach == kSequences ? batch : rows);
            p = after(p);
            continue;
        }
        Segment segment = {p, p, rows, parts_of(rows), {kDone}};
        while (segment.end < end && entry_at(segment.end).reach == kRowsApart) segment.end = after(segment.end);
        pool_run(run_part, &segment, segment.parts);
        status = (Status)segment.status.load();
        p = segment.end;
    }
    return status;
}

void tape_free(Tape *tape) {
    free(tape->data);
    free(tape);
}

// Records and replays. A tape keeps copies of the calls' arguments, not of what they point to: weights, workspaces and step
// inputs must outlive it (the Python side holds them).
//
// Calls on rows that follow each other run on some rows at a time, so that what one leaves for the next is still in a cache:
// a row never depends on another except in calls on sequences.
#include "tape.h"

#include "pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

namespace {

constexpr size_t kAlignment = 16;
constexpr long kRowsAThread = 96; // that run at a time: their intermediate results fit into the caches of a core

struct Entry {
    Replay replay;
    bool of_sequences;
    size_t bytes; // of the call that follows, rounded up
};

struct Recording {
    Tape *tape;
    pthread_t thread;
    long rows, batch;
    bool valid;
};

size_t round_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

Recording recording = {};

// Runs the calls from `p` up to the next one on sequences, for `count` rows from `first` on. `p` is then there.
Status run_some_rows(const unsigned char *&p, const unsigned char *end, long first, long count) {
    while (p < end) {
        const Entry &entry = *(const Entry *)p;
        if (entry.of_sequences) break;
        const Status status = entry.replay(p + sizeof(Entry), first, count);
        if (status != kDone) return status;
        p += sizeof(Entry) + entry.bytes;
    }
    return kDone;
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

void tape_record(Replay replay, const void *call, size_t bytes, long rows, bool of_sequences) {
    Tape &tape = *recording.tape;
    if (rows != (of_sequences ? recording.batch : recording.rows)) recording.valid = false;
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
    *(Entry *)(tape.data + tape.used) = {replay, of_sequences, round_up(bytes)};
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
    const long most = kRowsAThread * pool_size();
    Status status = kDone;
    while (p < end && rows > 0 && status == kDone) {
        const unsigned char *begin = p;
        for (long first = 0; first < rows && status == kDone; first += most) {
            p = begin;
            status = run_some_rows(p, end, first, rows - first < most ? rows - first : most);
        }
        if (p == end || status != kDone) break;
        const Entry &entry = *(const Entry *)p; // on sequences
        status = entry.replay(p + sizeof(Entry), 0, batch);
        p += sizeof(Entry) + entry.bytes;
    }
    return status;
}

void tape_free(Tape *tape) {
    free(tape->data);
    free(tape);
}

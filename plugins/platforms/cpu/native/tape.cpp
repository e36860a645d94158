// Records and replays. A tape keeps copies of the calls' arguments, not of what they point to: weights, workspaces and step
// inputs must outlive it (the Python side holds them).
#include "tape.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

namespace {

constexpr size_t kAlignment = 16;

struct Entry {
    Replay replay;
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
    *(Entry *)(tape.data + tape.used) = {replay, round_up(bytes)};
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
    for (unsigned char *p = tape->data, *end = p + tape->used; p < end;) {
        const Entry &entry = *(const Entry *)p;
        const Status status = entry.replay(p + sizeof(Entry), rows, batch);
        if (status != kDone) return status;
        p += sizeof(Entry) + entry.bytes;
    }
    return kDone;
}

void tape_free(Tape *tape) {
    free(tape->data);
    free(tape);
}

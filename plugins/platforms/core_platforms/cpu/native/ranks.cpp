// Communication of ranks in shared memory.
//
// Every rank counts the operations. A rank that has filled its slot for operation n publishes n; those that need the slot
// wait for that number. There are two slots, used in turn: before a rank fills one again for n it waits until all others
// have begun n - 1, and therefore no longer read what it had for n - 2.
//
// A waiting rank looks for the number for some microseconds and then sleeps on a futex, because it may wait for a rank
// that another program keeps from running; spinning could then take the very processor that this rank needs.
#include "ranks.h"
#include "pool.h"

#include <atomic>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace {

constexpr int kOperationBits = 24; // operations of one command
constexpr size_t kLine = 64;
constexpr size_t kStreamBytes = 1 << 20;
constexpr long kBlock = 1024;         // floats that are summed at a time
constexpr long kSumTile = 16 * kBlock; // floats of a thread's tile

struct alignas(kLine) Bell { // wakes those that wait for a rank
    std::atomic<uint64_t> value;
    std::atomic<uint32_t> rung, sleepers;
};

struct Shared {
    alignas(kLine) std::atomic<uint64_t> aborted; // the newest command that a rank gave up
    std::atomic<uint32_t> broken;
    alignas(kLine) Bell posted; // bytes written to the stream
    Bell arrived[kMostRanks];   // operations that each rank has begun
    Bell taken[kMostRanks];     // bytes that each rank has read from the stream
};

size_t rounded(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

// Sleeps while a word has this value, at most some nanoseconds (0: without limit); may return early.
void sleep_on(std::atomic<uint32_t> &word, uint32_t value, int64_t limit) {
#if defined(__linux__)
    const timespec time = {time_t(limit / 1000000000), long(limit % 1000000000)};
    syscall(SYS_futex, &word, FUTEX_WAIT, value, limit ? &time : nullptr, nullptr, 0);
#else
    (void)word, (void)value, (void)limit;
    usleep(50);
#endif
}

void ring(Bell &bell) {
    bell.rung.fetch_add(1);
#if defined(__linux__)
    if (bell.sleepers.load()) syscall(SYS_futex, &bell.rung, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
#endif
}

void publish(Bell &bell, uint64_t value) {
    bell.value.store(value); // before `sleepers` is read: whoever goes to sleep after that sees the new value
    ring(bell);
}

} // namespace

struct Ranks {
    Shared *shared;
    unsigned char *slots, *stream;
    size_t slot_bytes;
    long rank, size, late;
    uint64_t operation, command, position;
    int64_t spin, limit;

    unsigned char *slot(long of) const { return slots + (size_t(of) * 2 + (operation & 1)) * slot_bytes; }
};

namespace {

Status state_of(const Ranks &ranks, bool commands) {
    if (ranks.shared->broken.load(std::memory_order_acquire)) return kBroken;
    const bool aborted = commands && ranks.shared->aborted.load(std::memory_order_acquire) >= ranks.command;
    return aborted ? kAborted : kDone;
}

// Waits until a value has been reached. commands: whether an abort of the present command ends the wait.
Status await(Ranks &ranks, Bell &bell, uint64_t value, long rank, bool commands) {
    if (bell.value.load(std::memory_order_acquire) >= value) return kDone;
    const int64_t begin = now();
    do {
        for (int i = 0; i < 64; i++) {
            if (bell.value.load(std::memory_order_acquire) >= value) return kDone;
            pause_briefly();
        }
    } while (now() - begin < ranks.spin);
    Status status = kDone;
    bell.sleepers.fetch_add(1);
    for (;;) {
        const uint32_t rung = bell.rung.load();
        if (bell.value.load() >= value) break;
        status = state_of(ranks, commands);
        if (status != kDone) break;
        const bool limited = commands && ranks.limit;
        const int64_t left = limited ? begin + ranks.limit - now() : 0;
        if (limited && left <= 0) {
            ranks.late = rank;
            status = kLate;
            break;
        }
        sleep_on(bell.rung, rung, left);
    }
    bell.sleepers.fetch_sub(1);
    return status;
}

Status await_rank(Ranks &ranks, long rank, uint64_t operation) {
    if (rank == ranks.rank) return kDone;
    return await(ranks, ranks.shared->arrived[rank], operation, rank, true);
}

Status await_all(Ranks &ranks, uint64_t operation) {
    for (long rank = 0; rank < ranks.size; rank++) {
        const Status status = await_rank(ranks, rank, operation);
        if (status != kDone) return status;
    }
    return kDone;
}

// Begins an operation; a rank that writes may then fill its slot.
Status begin_operation(Ranks &ranks, bool writes) {
    const Status status = state_of(ranks, true);
    if (status != kDone) return status;
    ranks.operation++;
    return writes ? await_all(ranks, ranks.operation - 1) : kDone;
}

void arrive(Ranks &ranks) { publish(ranks.shared->arrived[ranks.rank], ranks.operation); }

// out = the sum of the parts: of the first half, plus that of the second one.
void sum_block(const float *const *parts, long count, long start, long width, float *out) {
    if (count == 1) {
        memcpy(out, parts[0] + start, width * sizeof(float));
        return;
    }
    if (count == 2) {
        const float *a = parts[0] + start, *b = parts[1] + start;
        for (long i = 0; i < width; i++) out[i] = a[i] + b[i];
        return;
    }
    long half = 1;
    while (half * 2 < count) half *= 2;
    float second[kBlock];
    sum_block(parts, half, start, width, out);
    sum_block(parts + half, count - half, start, width, second);
    for (long i = 0; i < width; i++) out[i] += second[i];
}

// One chunk of rows: their numbers lie in the slots without gaps.
struct SumJob {
    const float *parts[kMostRanks];
    const SumCall *call;
    long first, total;
};

void sum_tile(const void *context, long tile) {
    const SumJob &job = *(const SumJob *)context;
    const SumCall &call = *job.call;
    const long end = (tile + 1) * kSumTile < job.total ? (tile + 1) * kSumTile : job.total;
    for (long place = tile * kSumTile, next; place < end; place = next) {
        const long row = place / call.width, column = place % call.width;
        long width = call.width - column;
        if (width > kBlock) width = kBlock;
        if (width > end - place) width = end - place;
        next = place + width;
        float *out = call.x + (job.first + row) * call.x_stride + column;
        sum_block(job.parts, call.ranks->size, place, width, out);
    }
}

} // namespace

size_t ranks_bytes(long size, size_t slot_bytes) {
    return rounded(sizeof(Shared)) + kStreamBytes + size_t(size) * 2 * rounded(slot_bytes);
}

Ranks *ranks_open(void *memory, long rank, long size, size_t slot_bytes) {
    Ranks *ranks = (Ranks *)calloc(1, sizeof(Ranks));
    if (!ranks) return nullptr;
    unsigned char *stream = (unsigned char *)memory + rounded(sizeof(Shared));
    *ranks = {(Shared *)memory, stream + kStreamBytes, stream, rounded(slot_bytes), rank, size, -1, 0, 0, 0, 30000, 0};
    return ranks;
}

void ranks_close(Ranks *ranks) { free(ranks); }

void ranks_patience(Ranks *ranks, int64_t spin_nanoseconds, int64_t limit_nanoseconds) {
    ranks->spin = spin_nanoseconds, ranks->limit = limit_nanoseconds;
}

void ranks_begin(Ranks *ranks, uint64_t command) {
    ranks->command = command;
    ranks->operation = command << kOperationBits;
    arrive(*ranks);
}

void ranks_abort(Ranks *ranks) {
    std::atomic<uint64_t> &aborted = ranks->shared->aborted;
    uint64_t seen = aborted.load();
    while (seen < ranks->command && !aborted.compare_exchange_weak(seen, ranks->command)) {}
    for (long rank = 0; rank < ranks->size; rank++) ring(ranks->shared->arrived[rank]);
}

void ranks_break(Ranks *ranks) {
    ranks->shared->broken.store(1);
    ring(ranks->shared->posted);
    for (long rank = 0; rank < ranks->size; rank++) {
        ring(ranks->shared->arrived[rank]);
        ring(ranks->shared->taken[rank]);
    }
}

long ranks_late(const Ranks *ranks) { return ranks->late; }

Status run_sum(const SumCall &call) {
    Ranks &ranks = *call.ranks;
    const long most = long(ranks.slot_bytes / sizeof(float)) / call.width;
    for (long first = 0, count; first < call.rows; first += count) {
        count = call.rows - first < most ? call.rows - first : most;
        Status status = begin_operation(ranks, true);
        if (status != kDone) return status;
        float *own = (float *)ranks.slot(ranks.rank);
        const float *x = call.x + first * call.x_stride;
        for (long row = 0; row < count; row++)
            memcpy(own + row * call.width, x + row * call.x_stride, call.width * sizeof(float));
        arrive(ranks);
        status = await_all(ranks, ranks.operation);
        if (status != kDone) return status;
        SumJob job = {{}, &call, first, count * call.width};
        for (long rank = 0; rank < ranks.size; rank++) job.parts[rank] = (const float *)ranks.slot(rank);
        pool_run(sum_tile, &job, (job.total + kSumTile - 1) / kSumTile);
    }
    return kDone;
}

Status run_gather_parts(const GatherPartsCall &call) {
    Ranks &ranks = *call.ranks;
    const bool gets = call.root < 0 || call.root == ranks.rank;
    const size_t room = ranks.slot_bytes - kLine;
    const long most = long(room / sizeof(float)) / call.widest;
    for (long first = 0, count; first < call.rows; first += count) {
        count = call.rows - first < most ? call.rows - first : most;
        Status status = begin_operation(ranks, true);
        if (status != kDone) return status;
        long *place = (long *)ranks.slot(ranks.rank);
        place[0] = call.start, place[1] = call.width;
        float *own = (float *)(ranks.slot(ranks.rank) + kLine);
        for (long row = 0; row < count; row++)
            memcpy(own + row * call.width, call.x + (first + row) * call.x_stride, call.width * sizeof(float));
        arrive(ranks);
        for (long rank = 0; gets && rank < ranks.size; rank++) {
            status = await_rank(ranks, rank, ranks.operation);
            if (status != kDone) return status;
            const long *part = (const long *)ranks.slot(rank);
            const float *values = (const float *)(ranks.slot(rank) + kLine);
            const long start = part[0], width = part[1];
            for (long row = 0; row < count; row++)
                memcpy(call.out + (first + row) * call.out_stride + start, values + row * width, width * sizeof(float));
        }
    }
    return kDone;
}

Status ranks_barrier(Ranks *ranks) {
    const Status status = begin_operation(*ranks, false);
    if (status != kDone) return status;
    arrive(*ranks);
    const Status reached = await_all(*ranks, ranks->operation);
    // A rank that gave the command up may have begun the next one, which counts as having arrived here.
    return reached == kDone ? state_of(*ranks, true) : reached;
}

Status ranks_broadcast(Ranks *ranks, long root, void *data, size_t size) {
    const bool sends = root == ranks->rank;
    for (size_t start = 0, count; start < size; start += count) {
        count = size - start < ranks->slot_bytes ? size - start : ranks->slot_bytes;
        Status status = begin_operation(*ranks, sends);
        if (status != kDone) return status;
        if (sends) memcpy(ranks->slot(root), (const char *)data + start, count);
        arrive(*ranks);
        status = await_rank(*ranks, root, ranks->operation);
        if (status != kDone) return status;
        if (!sends) memcpy((char *)data + start, ranks->slot(root), count);
    }
    return kDone;
}

Status ranks_exchange(Ranks *ranks, const void *data, size_t size, bool pieces, void *out) {
    const long sent = pieces ? ranks->size : 1;
    const size_t most = ranks->slot_bytes / sent;
    for (size_t start = 0, count; start < size; start += count) {
        count = size - start < most ? size - start : most;
        Status status = begin_operation(*ranks, true);
        if (status != kDone) return status;
        for (long piece = 0; piece < sent; piece++)
            memcpy(ranks->slot(ranks->rank) + piece * count, (const char *)data + piece * size + start, count);
        arrive(*ranks);
        const size_t mine = pieces ? ranks->rank * count : 0;
        for (long rank = 0; rank < ranks->size; rank++) {
            status = await_rank(*ranks, rank, ranks->operation);
            if (status != kDone) return status;
            memcpy((char *)out + rank * size + start, ranks->slot(rank) + mine, count);
        }
    }
    return kDone;
}

Status ranks_write(Ranks *ranks, const void *data, size_t size) {
    while (size > 0) {
        uint64_t space = kStreamBytes;
        for (long rank = 1; rank < ranks->size; rank++) {
            // Half of the stream must be free, so that a writer far ahead is not woken for each byte.
            const uint64_t least = ranks->position > kStreamBytes / 2 ? ranks->position - kStreamBytes / 2 : 0;
            const Status status = await(*ranks, ranks->shared->taken[rank], least, rank, true);
            if (status != kDone) return status;
            const uint64_t used = ranks->position - ranks->shared->taken[rank].value.load();
            if (kStreamBytes - used < space) space = kStreamBytes - used;
        }
        const size_t place = ranks->position % kStreamBytes;
        size_t count = size < space ? size : space;
        if (count > kStreamBytes - place) count = kStreamBytes - place;
        memcpy(ranks->stream + place, data, count);
        ranks->position += count;
        publish(ranks->shared->posted, ranks->position);
        data = (const char *)data + count, size -= count;
    }
    return kDone;
}

Status ranks_read(Ranks *ranks, void *data, size_t size, bool limited) {
    while (size > 0) {
        const Status status = await(*ranks, ranks->shared->posted, ranks->position + 1, 0, limited);
        if (status != kDone) return status;
        const size_t place = ranks->position % kStreamBytes;
        size_t count = ranks->shared->posted.value.load() - ranks->position;
        if (count > size) count = size;
        if (count > kStreamBytes - place) count = kStreamBytes - place;
        memcpy(data, ranks->stream + place, count);
        ranks->position += count;
        publish(ranks->shared->taken[ranks->rank], ranks->position);
        data = (char *)data + count, size -= count;
    }
    return kDone;
}

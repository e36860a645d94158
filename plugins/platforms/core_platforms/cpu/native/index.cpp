// The choice of keys by an index: scores of tiles of rows, spread over the threads, then the best keys of each row. Also gathers
// the chosen keys of rows into a cache of their own, which the calls of latent attention then read.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "native.h"
#include "pool.h"

namespace {

constexpr long kTileRows = 32;  // rows whose scores are in memory at once
constexpr long kPartKeys = 256; // keys of a task: a thread turns each key once for all rows of a tile and sequence
constexpr long kPartChosen = 256;

struct ScoreJob {
    const KernelTable *table;
    const IndexCall *call;
    const IndexTask *tasks;
};

struct ChosenRow {
    const float *scores;
    long keys; // visible ones
    int32_t *out;
};

struct ChoiceJob {
    const IndexCall *call;
    const ChosenRow *rows;
    std::atomic<bool> *exhausted;
};

void score_tile(const void *context, long tile) {
    const ScoreJob &job = *(const ScoreJob *)context;
    job.table->context->index_scores(job.call, &job.tasks[tile]);
}

// A number whose order is that of the scores: equal for both zeros, and for NaN and the least score.
uint32_t ranked(float score) {
    const float x = score == score ? score + 0.0f : -INFINITY;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

struct Limit {
    uint32_t rank; // of the worst chosen key
    long equal;    // how many of the keys with this rank are chosen
};

// The rank of the top_k-th best of some numbers, digit by digit: sorting a part of them guesses a branch for every comparison,
// half of which are guessed wrongly. spare: room for `count` numbers.
Limit limit_of(const uint32_t *numbers, long count, long top_k, uint32_t *spare) {
    constexpr int shifts[] = {21, 10, 0};
    constexpr uint32_t mask = 2047;
    uint32_t limit = 0, above = 0; // above: the bits of earlier digits, which the numbers that are left share
    for (int shift : shifts) {
        uint32_t counts[mask + 1] = {};
        for (long i = 0; i < count; i++) counts[(numbers[i] - above) >> shift]++;
        uint32_t digit = mask;
        for (; counts[digit] < top_k; digit--) top_k -= counts[digit];
        limit = above + (digit << shift);
        if (shift == 0) break;
        long left = 0;
        for (long i = 0; i < count; i++) {
            spare[left] = numbers[i];
            left += (numbers[i] - above) >> shift == digit;
        }
        numbers = spare, count = left, above = limit;
    }
    return {limit, top_k};
}

// The top_k best keys in the order of their positions. Of equal scores the earlier keys win; NaN is the worst.
void choose_tile(const void *context, long tile) {
    const ChoiceJob &job = *(const ChoiceJob *)context;
    const ChosenRow &row = job.rows[tile];
    const long top_k = job.call->top_k;
    if (row.keys <= top_k) {
        for (long i = 0; i < top_k; i++) row.out[i] = int32_t(i < row.keys ? i : -1);
        return;
    }
    Scratch scratch(2 * row.keys * sizeof(uint32_t));
    uint32_t *ranks = (uint32_t *)scratch.memory;
    if (!ranks) return job.exhausted->store(true);
    for (long i = 0; i < row.keys; i++) ranks[i] = ranked(row.scores[i]);
    Limit limit = limit_of(ranks, row.keys, top_k, ranks + row.keys);
    for (long i = 0, found = 0; found < top_k; i++) { // every key is written, and stays if it is chosen
        const bool equals = ranks[i] == limit.rank, is_chosen = (ranks[i] > limit.rank) | (equals & (limit.equal > 0));
        row.out[found] = int32_t(i);
        limit.equal -= equals, found += is_chosen;
    }
}

struct GatherJob {
    const ChosenCall *call;
    long parts; // of a row
};

// The sequence of a row of the batch.
long sequence_of(const int32_t *cu_seqlens, long batch, long row) {
    return std::upper_bound(cu_seqlens, cu_seqlens + batch + 1, int32_t(row)) - cu_seqlens - 1;
}

// Word: the neighbouring numbers of a key that a product sums. Sixteen keys are copied side by side: chosen keys that share a
// group of the cache then read the same lines in one pass.
template <class Word> void gather_chosen(const ChosenCall &c, long row, long begin, long end, long pair) {
    const bool grouped = c.block_size % 16 == 0;
    const long sequence = sequence_of(c.cu_seqlens, c.batch, c.first + row), words = c.dim / pair, step = grouped ? 16 : 1;
    const int32_t *chosen = c.chosen + (c.first + row) * c.chosen_row_stride;
    for (long group = begin; group < end && chosen[group] >= 0; group += 16) {
        const Word *from[16];
        for (long lane = 0; lane < 16; lane++) {
            const bool is_key = group + lane < end && chosen[group + lane] >= 0;
            const long slot = index_slot(c, sequence, chosen[is_key ? group + lane : group]), offset = slot % c.block_size;
            from[lane] = (const Word *)(c.cache + (size_t)(slot / c.block_size) * c.block_bytes);
            from[lane] += grouped ? offset / 16 * 16 * words + offset % 16 : offset * words;
        }
        Word *to = (Word *)c.to + row * c.room * words + group * words;
        for (long lane = 0; lane < 16; lane += 4) // the addresses of four keys have room in registers
            for (long i = 0; i < words; i++)
                for (long k = lane; k < lane + 4; k++) memcpy(to + i * 16 + k, from[k] + i * step, sizeof(Word));
    }
}

void gather_tile(const void *context, long tile) {
    const GatherJob &job = *(const GatherJob *)context;
    const ChosenCall &c = *job.call;
    const long row = tile / job.parts, begin = tile % job.parts * kPartChosen, end = at_most(begin + kPartChosen, c.top_k);
    if (c.element == kCacheF32)
        gather_chosen<uint32_t>(c, row, begin, end, 1);
    else if (c.element == kCacheBF16)
        gather_chosen<uint32_t>(c, row, begin, end, 2);
    else
        gather_chosen<uint16_t>(c, row, begin, end, c.element == kCacheF16 ? 1 : 2);
    if (begin) return;
    const int32_t *chosen = c.chosen + (c.first + row) * c.chosen_row_stride;
    long count = 0;
    while (count < c.top_k && chosen[count] >= 0) count++;
    c.lengths[row] = int32_t(count);
}

// Adds the tasks of some rows of a sequence; none where every key is chosen.
long add_tasks(const IndexCall &c, IndexTask t, IndexTask *to) {
    const long keys = t.position + t.rows;
    if (keys <= c.top_k) return 0;
    long count = 0;
    for (long first = 0; first < keys; first += kPartKeys) {
        to[count] = t;
        to[count].first = first, to[count].end = at_most(first + kPartKeys, keys);
        count++;
    }
    return count;
}

} // namespace

bool run_index(const IndexCall &call) {
    long longest = 0;
    for (long sequence = 0; sequence < call.batch; sequence++) longest = std::max<long>(longest, call.seq_lens[sequence]);
    const long stride = ceil_div(longest, 16) * 16, most = kTileRows * ceil_div(longest, kPartKeys);
    Scratch scratch(kTileRows * (stride * sizeof(float) + sizeof(ChosenRow)) + most * sizeof(IndexTask));
    if (!scratch.memory) return false;
    float *scores = (float *)scratch.memory;
    IndexTask *tasks = (IndexTask *)(scores + kTileRows * stride);
    ChosenRow *rows = (ChosenRow *)(tasks + most);
    std::atomic<bool> exhausted{false};
    const ScoreJob score = {kernels_active(), &call, tasks};
    const ChoiceJob choice = {&call, rows, &exhausted};
    long filled = 0, count = 0;
    const auto run = [&]() {
        pool_run(score_tile, &score, count);
        pool_run(choose_tile, &choice, filled);
        filled = count = 0;
    };
    for (long sequence = 0; sequence < call.batch; sequence++) {
        const long start = call.cu_seqlens[sequence], queries = call.cu_seqlens[sequence + 1] - start;
        for (long row = 0; row < queries;) {
            IndexTask t = {};
            t.sequence = sequence, t.token = start + row, t.rows = at_most(queries - row, kTileRows - filled);
            t.position = call.seq_lens[sequence] - queries + row, t.scores = scores + filled * stride, t.stride = stride;
            count += add_tasks(call, t, tasks + count);
            for (long i = 0; i < t.rows; i++)
                rows[filled + i] = {t.scores + i * stride, t.position + i + 1, call.out + (t.token + i) * call.out_row_stride};
            filled += t.rows, row += t.rows;
            if (filled == kTileRows) run();
        }
    }
    run();
    return !exhausted.load();
}

bool run_index_gather(const ChosenCall &call) {
    const GatherJob job = {&call, ceil_div(call.top_k, kPartChosen)};
    pool_run(gather_tile, &job, call.rows * job.parts);
    return true;
}

namespace {

struct WriteJob {
    const KernelTable *table;
    const IndexWriteCall *call;
};

constexpr long kWriteRows = 64;

void write_tile(const void *context, long tile) {
    const WriteJob &job = *(const WriteJob *)context;
    job.table->context->index_write(job.call, tile * kWriteRows, at_most((tile + 1) * kWriteRows, job.call->rows));
}

} // namespace

bool run_index_write(const IndexWriteCall &call) {
    const WriteJob job = {kernels_active(), &call};
    pool_run(write_tile, &job, ceil_div(call.rows, kWriteRows));
    return true;
}

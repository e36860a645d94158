// The updates of adapters over the thread pool: rows grouped by adapter, both products in one parallel region.
#include "low_rank.h"

#include <string.h>

namespace {

constexpr long kChunkRows = 48;  // rows that share a unit: their inputs stay in the second-level cache
constexpr long kTileWork = 1024; // vector products: below this, another claim costs more than it saves

size_t list_bytes(const LowRankCall &c) {
    const long chunks = c.rows / kChunkRows + at_most(c.rows, c.table_rows);
    return chunks * sizeof(LowRankChunk) + (c.rows + c.table_rows + 1) * sizeof(int32_t);
}

const LowRankUpdate *update_of(const LowRankCall &c, long row) {
    return c.which[row] < 0 ? nullptr : c.table[c.which[row]];
}

} // namespace

LowRankWork::LowRankWork(const LowRankCall &call)
    : call_(call), table_(kernels_active()), lists_(list_bytes(call)), inner_(prepare()) {}

// Groups the rows, numbers the units and chooses how many tiles share them; returns the bytes of A x.
size_t LowRankWork::prepare() {
    if (!lists_.memory) return 0;
    group();
    const long threads = pool_size();
    long panels = 0, work = 0;
    for (long i = 0; i < num_chunks_; i++) {
        const LowRankChunk &chunk = chunks_[i];
        const long ranks = chunk.update->panels * kRankLanes;
        panels += chunk.update->panels;
        work += (chunk.end - chunk.begin) * chunk.update->panels * call_.k;
        width_ = ranks > width_ ? ranks : width_;
    }
    const long wanted = work < kTileWork ? 1 : panels < 4 * threads ? threads : 4 * threads;
    while (splits_ < call_.segments && panels * splits_ < 2 * wanted && panels * splits_ % wanted) splits_ *= 2;
    for (long i = 0; i < num_chunks_; i++) {
        chunks_[i].unit = (int32_t)units_;
        units_ += chunks_[i].update->panels * splits_;
    }
    tiles_ = at_most(units_, wanted);
    return call_.rows * splits_ * width_ * sizeof(float);
}

void LowRankWork::group() {
    const long rows = call_.rows, adapters = call_.table_rows;
    order_ = (int32_t *)lists_.memory, starts_ = order_ + rows;
    const size_t used = (rows + adapters + 1) * sizeof(int32_t);
    chunks_ = (LowRankChunk *)((uint8_t *)lists_.memory + (used + 7) / 8 * 8);
    if (rows == 1) { // the usual case of a single stream
        const LowRankUpdate *update = update_of(call_, 0);
        order_[0] = 0;
        if (update) chunks_[num_chunks_++] = {update, 0, 1, 0};
        return;
    }
    memset(starts_, 0, (adapters + 1) * sizeof(int32_t));
    for (long row = 0; row < rows; row++)
        if (update_of(call_, row)) starts_[call_.which[row] + 1]++;
    for (long i = 0; i < adapters; i++) starts_[i + 1] += starts_[i];
    for (long row = 0; row < rows; row++)
        if (update_of(call_, row)) order_[starts_[call_.which[row]]++] = (int32_t)row;
    long begin = 0; // filling has moved each start to its group's end
    for (long i = 0; i < adapters; i++)
        for (const long end = starts_[i]; begin < end;) {
            const long last = at_most(begin + kChunkRows, end);
            chunks_[num_chunks_++] = {call_.table[i], (int32_t)begin, (int32_t)last, 0};
            begin = last;
        }
}

LowRankTask LowRankWork::task(const LowRankChunk &chunk, long split) const {
    const long stride = splits_ * width_;
    float *inner = (float *)inner_.memory + chunk.begin * stride + split * width_;
    return {&call_, chunk.update, order_ + chunk.begin, chunk.end - chunk.begin, inner, stride, nullptr, 0};
}

void LowRankWork::tile(long number) const {
    long unit = units_ * number / tiles_;
    const long last = units_ * (number + 1) / tiles_, segments = call_.segments / splits_;
    for (long i = 0; i < num_chunks_ && unit < last; i++) {
        const LowRankChunk &chunk = chunks_[i];
        const long end = at_most(last, chunk.unit + chunk.update->panels * splits_);
        for (; unit < end; unit++) {
            const long panel = (unit - chunk.unit) / splits_, split = (unit - chunk.unit) % splits_;
            const LowRankTask one = task(chunk, split);
            table_->low_rank_inner(&one, panel, split * segments, segments);
        }
    }
    finished_.fetch_add(1, std::memory_order_release);
}

// Adds the subtrees of each row as a binary tree; leaves [count, width] in `sums`.
void LowRankWork::join(const LowRankTask &task, float *sums) const {
    const long width = task.update->panels * kRankLanes;
    for (long row = 0; row < task.count; row++) {
        float *to = sums + row * width;
        const float *from = task.inner + row * task.inner_stride;
        for (long i = 0; i < width; i++) {
            float parts[1 << kSegmentLevels];
            for (long s = 0; s < splits_; s++) parts[s] = from[s * width_ + i];
            for (long step = 1; step < splits_; step *= 2)
                for (long s = 0; s < splits_; s += 2 * step) parts[s] += parts[s + step];
            to[i] = parts[0];
        }
    }
}

bool LowRankWork::update(long panel, long last, float *out, long out_stride) const {
    pool_wait(finished_, tiles_);
    for (long i = 0; i < num_chunks_; i++) {
        LowRankTask one = task(chunks_[i], 0);
        const long width = one.update->panels * kRankLanes;
        Scratch sums(splits_ > 1 ? one.count * width * sizeof(float) : 0);
        if (splits_ > 1) {
            if (!sums.memory) return false;
            join(one, (float *)sums.memory);
            one.inner = (float *)sums.memory, one.inner_stride = width;
        }
        one.out = out, one.out_stride = out_stride;
        table_->low_rank_outer(&one, panel, last);
    }
    return true;
}

namespace {

// Rows that share a panel, from lane `first` of it on. Item: what a lane has of a step along k.
template <class Item> void pack_panel(const LowRankPack &p, Item *to, const uint8_t *from, long first, long rows) {
    const long whole = p.k * (p.format == kF32 ? 4 : 2), steps = whole / (long)sizeof(Item);
    for (long step = 0; step < steps; step++)
        for (long row = 0; row < rows; row++)
            memcpy(to + step * p.lanes + first + row, from + row * p.stride + step * sizeof(Item), sizeof(Item));
    const long rest = whole - steps * (long)sizeof(Item); // of an odd k in bfloat16
    for (long row = 0; row < rows && rest; row++)
        memcpy(to + steps * p.lanes + first + row, from + row * p.stride + steps * sizeof(Item), rest);
}

template <class Item> void pack_panels(const LowRankPack &p) {
    const long inputs = p.format == kBF16 ? 2 : 1, panel = ceil_div(p.k, inputs) * p.lanes;
    for (long row = 0; row < p.rows;) {
        const long lane = (p.first + row) % p.lanes, count = at_most(p.lanes - lane, p.rows - row);
        pack_panel(p, (Item *)p.to + (p.first + row) / p.lanes * panel, p.from + row * p.stride, lane, count);
        row += count;
    }
}

struct Job {
    const LowRankWork *work;
    const LowRankCall *call;
    long panels, tiles; // of outputs
    std::atomic<bool> *exhausted;
};

void run_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    if (tile < job.work->tiles()) return job.work->tile(tile);
    tile -= job.work->tiles();
    const long panel = job.panels * tile / job.tiles, last = job.panels * (tile + 1) / job.tiles;
    if (!job.work->update(panel, last, job.call->out, job.call->out_stride)) job.exhausted->store(true);
}

bool run_rows(const LowRankCall &call) {
    const LowRankWork work(call);
    if (!work.ok()) return false;
    if (work.empty()) return true;
    std::atomic<bool> exhausted{false};
    const long panels = ceil_div(call.outputs, kPanel);
    const Job job = {&work, &call, panels, at_most(panels, work.tiles() > 1 ? work.tiles() : 1), &exhausted};
    pool_run(run_tile, &job, work.tiles() + job.tiles);
    return !exhausted.load();
}

} // namespace

bool run_low_rank(const LowRankCall &call) {
    for (long row = 0; row < call.rows; row += kLowRankRows) {
        LowRankCall part = call;
        part.x += row * call.x_stride, part.out += row * call.out_stride, part.which += row;
        part.rows = at_most(kLowRankRows, call.rows - row);
        if (!run_rows(part)) return false;
    }
    return true;
}

void pack_low_rank(const LowRankPack &pack) {
    pack.format == kF16 ? pack_panels<uint16_t>(pack) : pack_panels<uint32_t>(pack);
}

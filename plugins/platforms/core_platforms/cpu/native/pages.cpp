// Copies KV pages: the bytes of one block in all buffers of the cache, one after the other in the page.
#include "native.h"
#include "pool.h"

#include <string.h>

namespace {

constexpr long kTileBytes = 1 << 20; // copied in about 50 microseconds; fewer bytes are not worth another thread

struct Job {
    const PageCopies *copies;
    long pages_a_tile;
};

void copy_page(const PageCopies &c, long page) {
    char *outside = (char *)c.addresses[page];
    for (long buffer = 0; buffer < c.buffers; buffer++) {
        const size_t size = (size_t)c.sizes[buffer];
        char *block = (char *)c.starts[buffer] + c.blocks[page] * c.sizes[buffer];
        if (c.save)
            memcpy(outside, block, size);
        else
            memcpy(block, outside, size);
        outside += size;
    }
}

void copy_tile(const void *context, long tile) {
    const Job &job = *(const Job *)context;
    const long begin = tile * job.pages_a_tile, end = at_most(begin + job.pages_a_tile, job.copies->pages);
    for (long page = begin; page < end; page++) copy_page(*job.copies, page);
}

} // namespace

void copy_pages(const PageCopies &copies) {
    long page_bytes = 0;
    for (long buffer = 0; buffer < copies.buffers; buffer++) page_bytes += copies.sizes[buffer];
    const Job job = {&copies, page_bytes < kTileBytes ? kTileBytes / page_bytes : 1};
    const long tiles = (copies.pages + job.pages_a_tile - 1) / job.pages_a_tile;
    if (tiles > 1)
        pool_run(copy_tile, &job, tiles);
    else
        copy_tile(&job, 0);
}

// Copies KV pages: the bytes of one block in all buffers of the cache, one after the other in the page.
#include "native.h"

#include <string.h>

void copy_pages(const PageCopies &c) {
    for (long page = 0; page < c.pages; page++) {
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
}

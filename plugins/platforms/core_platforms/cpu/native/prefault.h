// Backs pages with memory before they are first written, in otherwise idle time.
#pragma once

#include <stddef.h>

// Backs [address, address + bytes) in the background, after earlier ranges. The content does not change. False where
// the system cannot do it: pages are then backed on first write, as usual.
bool prefault(void *address, size_t bytes);
// Drops the remaining ranges; after the return no page is touched any more.
void prefault_stop();

// Pages taken from the system before they are first written, in time that nobody else wants.
#pragma once

#include <stddef.h>

// Takes the pages of [address, address + bytes) in the background, after those of earlier calls. Changes no content. False
// where the system cannot do it: pages are then taken when they are written, as always.
bool prefault(void *address, size_t bytes);
// Forgets what is left to take; on return nothing is touched any more.
void prefault_stop();

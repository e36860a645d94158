// Pages of mapped files, given back to the system while a file is read.
#pragma once

#include <stddef.h>

// Whether [begin, end) lies in private mappings of files, whose pages the system can read again unless they were written.
bool in_private_file(const void *begin, const void *end);
// Unmaps the whole pages of [begin, end), a range for which `in_private_file` is true and that nobody has written.
void give_back_pages(const void *begin, const void *end);

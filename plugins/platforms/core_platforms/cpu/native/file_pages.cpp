// The kernel's list of mappings is read for each question: a fraction of a millisecond, asked once in 32 MB.
#include "file_pages.h"

#if defined(__linux__)
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

bool in_private_file(const void *begin, const void *end) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps) return false;
    char line[512], flags[8];
    uintptr_t at = (uintptr_t)begin, first, last;
    unsigned long inode;
    bool starts_line = true, stays = begin < end;
    // Mappings are sorted by address, and one file may be several of them.
    while (stays && at < (uintptr_t)end && fgets(line, sizeof(line), maps)) {
        const bool parsed = starts_line && sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %*s %*s %lu", &first, &last, flags, &inode) == 4;
        starts_line = false;
        for (const char *c = line; *c; c++) starts_line = *c == '\n'; // a path may be longer than the buffer
        if (!parsed || last <= at) continue;
        stays = first <= at && flags[3] == 'p' && inode != 0;
        at = last;
    }
    fclose(maps);
    return stays && at >= (uintptr_t)end;
}

void give_back_pages(const void *begin, const void *end) {
    constexpr uintptr_t kPage = 4096; // where pages are larger, the system refuses addresses that are none of theirs
    const uintptr_t first = ((uintptr_t)begin + kPage - 1) / kPage * kPage, last = (uintptr_t)end / kPage * kPage;
    if (first < last) madvise((void *)first, last - first, MADV_DONTNEED);
}
#else
bool in_private_file(const void *, const void *) { return false; }
void give_back_pages(const void *, const void *) {}
#endif

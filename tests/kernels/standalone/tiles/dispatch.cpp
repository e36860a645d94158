// In place of dispatch.cpp: offers the tiles in plain C++, and those of AVX2.
#include "native.h"

#include <string.h>

static const KernelTable *const tables[] = {&core_kernels_amx, &core_kernels_avx2};
static const KernelTable *active = tables[0];

const KernelTable *kernels_at(int index) { return index < 2 ? tables[index] : nullptr; }
const KernelTable *kernels_active() { return active; }
bool kernels_select(const char *name) {
    for (const KernelTable *table : tables)
        if (!strcmp(table->name, name)) active = table;
    return !strcmp(active->name, name);
}

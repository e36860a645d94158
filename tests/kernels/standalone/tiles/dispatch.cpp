// In place of the extension's dispatch.cpp: offers AVX2 with products and attention of tiles in plain C++, then AVX2.
#include "native.h"

#include <string.h>

bool tiled_linear(const LinearCall *c, long panel, long begin, long end); // kernels_tiles.cpp
void tiled_attention(const AttentionCall *c, const AttentionTask *t, void *memory); // attention_tiles.cpp
void tiled_attention_merge(const AttentionCall *c, const AttentionTask *t);

static KernelTable tiled() {
    static ContextKernels context = *core_kernels_avx2.context;
    context.attention = tiled_attention, context.attention_merge = tiled_attention_merge;
    context.attention_rows = kMostTaskRows;
    KernelTable table = core_kernels_avx2;
    table.name = "amx", table.linear = tiled_linear, table.context = &context;
    return table;
}
static const KernelTable *active = nullptr;

const KernelTable *kernels_at(int index) {
    static const KernelTable amx = tiled();
    const KernelTable *const tables[] = {&amx, &core_kernels_avx2};
    return index < 2 ? tables[index] : nullptr;
}
const KernelTable *kernels_active() { return active; }
bool kernels_select(const char *name) {
    for (int i = 0; const KernelTable *table = kernels_at(i); i++)
        if (!strcmp(table->name, name)) active = table;
    return active && !strcmp(active->name, name);
}

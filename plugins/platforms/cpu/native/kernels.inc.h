// Assembles one instruction set's table. The including file names the table and the lanes.
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {
#include CORE_LANES
#include "linear.inc.h"
#include "small_ops.inc.h"
#include "attention.inc.h"
} // namespace

extern "C" const KernelTable CORE_TABLE = {
    CORE_TABLE_NAME, staged_bytes, stage,      linear,      rms_norm,  rotary,
    gated,           add_rows,     scale_rows, cache_write, attention, attention_merge,
};

// The kernels for NEON with dot products, 8-bit matrix and BF16 instructions. Everything but the tables has internal linkage.
#include "native.h"

#define CORE_TABLE core_kernels_neon_bf16
#define CORE_CONTEXT core_context_neon_bf16
#define CORE_TABLE_NAME "neon_bf16"
#define CORE_LANES "lanes_neon.h"
#include "kernels.inc.h"

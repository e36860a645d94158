// The kernels for NEON with dot products. Everything but the tables has internal linkage.
#include "native.h"

#define CORE_TABLE core_kernels_neon_dot
#define CORE_CONTEXT core_context_neon_dot
#define CORE_TABLE_NAME "neon_dot"
#define CORE_LANES "lanes_neon.h"
#include "kernels.inc.h"

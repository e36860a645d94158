// The kernels for NEON of any aarch64. Everything but the tables has internal linkage.
#include "native.h"

#define CORE_TABLE core_kernels_neon
#define CORE_CONTEXT core_context_neon
#define CORE_TABLE_NAME "neon"
#define CORE_LANES "lanes_neon.h"
#include "kernels.inc.h"

// The kernels for AVX2, FMA and F16C. Everything but the tables has internal linkage.
#include "native.h"

#define CORE_TABLE core_kernels_avx2
#define CORE_CONTEXT core_context_avx2
#define CORE_TABLE_NAME "avx2"
#define CORE_LANES "lanes_avx2.h"
#include "kernels.inc.h"

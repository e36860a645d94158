// The kernels for AVX-512 F, BW, VL and DQ. Everything but the table has internal linkage.
#include "native.h"

#define CORE_TABLE core_kernels_avx512
#define CORE_TABLE_NAME "avx512"
#define CORE_LANES "lanes_avx512.h"
#include "kernels.inc.h"

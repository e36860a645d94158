// The kernels for AVX-512 with VNNI, BF16, and AMX tiles: of 8-bit integers and bfloat16 in products, of bfloat16 in attention.
// Everything but the tables has internal linkage.
#include "native.h"

#define CORE_TABLE core_kernels_amx
#define CORE_CONTEXT core_context_amx
#define CORE_TABLE_NAME "amx"
#define CORE_LANES "lanes_avx512.h"
#define CORE_TILES_HEADER "tiles_amx.h"
#include "kernels.inc.h"

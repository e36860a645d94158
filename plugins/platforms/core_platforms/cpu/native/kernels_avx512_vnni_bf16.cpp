// The kernels for AVX-512 with VNNI and BF16. Everything but the tables has internal linkage.
#include "native.h"

#define CORE_TABLE core_kernels_avx512_vnni_bf16
#define CORE_CONTEXT core_context_avx512_vnni_bf16
#define CORE_TABLE_NAME "avx512_vnni_bf16"
#define CORE_LANES "lanes_avx512.h"
#include "kernels.inc.h"

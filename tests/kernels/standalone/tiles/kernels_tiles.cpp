// The products of `amx` as this machine can run them: tiles in plain C++, and the lanes of AVX2.
//
// Inputs are staged by AVX2's own kernels, which round none to bf16 for tiles.
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"
#include "pool.h"

#pragma GCC diagnostic ignored "-Wunused-function"

namespace {
#ifdef TEST_REAL_TILES
#include "lanes_avx512.h"
#include "tiles_amx.h"
#else
#include "lanes_avx2.h"
#define TILES_OF "products"
#include "plain_tiles.h"
#endif
#include "linear.inc.h"

} // namespace

bool tiled_linear(const LinearCall *c, long panel, long begin, long end) { return linear(c, panel, begin, end); }

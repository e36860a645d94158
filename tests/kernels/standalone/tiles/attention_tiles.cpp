// The attention of `amx` as this machine can run it: tiles in plain C++, and the lanes of AVX2.
#include <atomic>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"

#pragma GCC diagnostic ignored "-Wunused-function"

namespace {
#include "lanes_avx2.h"
#define TILES_OF "attention"
#include "plain_tiles.h"
#include "plain_bf16.h"
// What attention uses of the products' files.
LANE int32_t read_i32(const uint8_t *p) {
    int32_t x;
    memcpy(&x, p, 4);
    return x;
}
LANE I bf16_bits(F x) {
    uint16_t halves[16];
    store_bf16(halves, x);
    return shift_left<16>(load_u16(halves));
}
#include "small_ops.inc.h"
#include "activations.inc.h"
#include "kv_codes.inc.h"
#include "kv_elements.inc.h"
#include "latent.inc.h"
#include "span.inc.h"
#include "attention_span.inc.h"
#include "attention.inc.h"
} // namespace

void tiled_attention(const AttentionCall *call, const AttentionTask *task, void *memory) { attention(call, task, memory); }
void tiled_attention_merge(const AttentionCall *call, const AttentionTask *task) { attention_merge(call, task); }

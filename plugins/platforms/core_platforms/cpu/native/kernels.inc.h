// Assembles the kernel table of one instruction set. The including file names the table and the lanes.
#include <stdint.h>
#include <string.h>

#include "native.h"
#include "pool.h"
#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized" // false warning from GCC 12's own header
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif
#if defined(CORE_PART) // the entries of the other part are unused, and left out
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

namespace {
#include CORE_LANES
#ifdef CORE_TILES_HEADER
#include CORE_TILES_HEADER
#endif
#include "linear.inc.h"
#include "stage.inc.h"
#include "small_ops.inc.h"
#include "activations.inc.h"
#include "kv_codes.inc.h"
#include "kv_elements.inc.h"
#include "latent.inc.h"
#include "span.inc.h"
#include "low_rank.inc.h"
#include "attention_span.inc.h"
#include "attention.inc.h"
#include "cache.inc.h"
#include "logits.inc.h"
#include "threshold.inc.h"
#include "race.inc.h"
#include "logprobs.inc.h"
#include "experts.inc.h"
#include "state_bytes.inc.h"
#include "state_rows.inc.h"
#include "states.inc.h"
#include "index.inc.h"
#include "index_choice.inc.h"
#include "index_gather.inc.h"
} // namespace

// CORE_PART: 1 or 2 for an object file with one of the two tables (see setup.py); without it an object file has both.
extern "C" const ContextKernels CORE_CONTEXT;
#if CORE_PART != 1
extern "C" const ContextKernels CORE_CONTEXT = {
    cache_write, attention, attention_merge, state_convolve, state_select, state_update, state_finish, index_write,
    index_queries, index_scores, index_choose, index_gather, kAttentionRows,
};
#endif
#if CORE_PART != 2
extern "C" const KernelTable CORE_TABLE = {
    CORE_TABLE_NAME, staged_bytes, stage,     kTableRowBlock, row_chunk,      linear, norm,  rotary,  gated,    activate,
    add_rows,        open_rows,    scale_rows, soft_cap_rows, race, route, combine, logprobs, low_rank_inner, low_rank_outer, &CORE_CONTEXT,
};
#endif

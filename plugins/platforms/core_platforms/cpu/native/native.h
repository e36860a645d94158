// Plain data shared by every file of the extension: packed weights, the arguments of each call, the table of one
// instruction set.
//
// Nothing here has external code: files compiled for different instruction sets include this header, and of an inline
// function the linker could keep the copy compiled for the highest set, which would crash on older processors.
#pragma once

#include <stddef.h>
#include <stdint.h>

constexpr long kPanel = 32; // outputs packed side by side: two vectors of 16 lanes
constexpr long kRowChunk = 96;         // rows per tile: its staged rows stay in the second-level cache
constexpr long kRowBlock = 12;         // rows that the widest inner block handles at once
constexpr long kMostRowChunk = 256;    // the largest chunk that a table may ask for (KernelTable::row_chunk)
constexpr long kSmallElements = 32768; // below this, waking a thread costs more than it saves
constexpr long kCombineRanges = 8; // ranges of experts with separate sums
constexpr int kSegmentLevels = 3; // depth of the binary tree that adds at most eight segments

// Attention restarts its sums at every span of keys, at absolute positions, so that its bits do not depend on how
// queries, blocks and threads split the work.
constexpr long kSpan = 128;
constexpr long kTaskRows = 48, kMostTaskRows = 192; // of a task; of one of a table whose rows are faster than reading keys
constexpr long kMaxHead = 576; // a latent of 512 and its rotated key of 64
constexpr size_t kAttentionBytes = 1792 * 1024; // working memory of an attention task: too large for a small stack

inline long ceil_div(long a, long b) { return (a + b - 1) / b; }
inline long at_most(long a, long b) { return a < b ? a : b; }

enum Format {
    kF32 = 0, kF16 = 1, kBF16 = 2, kInt4 = 3, kInt8 = 4, kCode4 = 5, kE4M3 = 6, kE5M2 = 7,
    kPlanes2 = 8, kPlanes3 = 9, kPlanes4 = 10, kPlanes5 = 11, kPlanes6 = 12, kPlanesCode4 = 13,
    kPlanesCode3 = 14,
};
// Rows as they lie in files: the plain formats above, and the block types of GGUF.
enum RowLayout {
    kRowsF32 = 0, kRowsF16 = 1, kRowsBF16 = 2, kRowsQ4_0 = 3, kRowsQ4_1 = 4, kRowsQ5_0 = 5, kRowsQ5_1 = 6,
    kRowsQ8_0 = 7, kRowsQ2_K = 8, kRowsQ3_K = 9, kRowsQ4_K = 10, kRowsQ5_K = 11, kRowsQ6_K = 12, kRowsTQ2_0 = 13,
    kRowsIQ4_NL = 14, kRowsIQ4_XS = 15, kRowsMXFP4 = 16,
};
enum Activation { kNone = 0, kRoundBF16 = 1, kQuantInt8 = 2 };
enum ScaleType { kScaleF32 = 0, kScaleF16 = 1, kScaleE8M0 = 2, kScaleE4M3 = 3, kScaleBF16 = 4 };
// How a group's scale follows from its super-group's: unchanged; multiplied by a nibble (the high nibble is the
// minimum's); multiplied by a signed byte.
enum SubScales { kNoSubScales = 0, kSubNibbles = 1, kSubBytes = 2 };
constexpr long kUnit = 32; // inputs whose bit planes are stored together

// How a scale follows from the largest magnitude of its inputs: the rules of core_runtime/weights/input_rounding.py.
enum InputRule {
    kInputsKept = 0, kInputsFixed = 1, kInputsDivide = 2, kInputsLargest = 3, kInputsRange = 4, kInputsInverse = 5,
    kInputsEven = 6, kInputsCarry = 7, kInputsFloor = 8, kInputsCeil = 9, kInputsQuotient = 10, kInputsFP8 = 11,
};

// The rounding of each row of inputs before the activation scheme; rounding.inc.h computes it.
struct InputRounding {
    int rule;       // an InputRule
    int mantissa;   // stored bits of the numbers' mantissa; -1: integers
    int exponent;   // of the largest number
    int zero;       // zero point of kInputsFixed
    long group;     // inputs that share a scale; 0: a row
    float largest;  // number
    float least;    // smallest normal number
    float per_step; // 2^-mantissa
    float scale;    // of kInputsFixed and kInputsFP8
    float bound;    // a scale's inputs count as no larger than this
    float floor;    // and with kInputsInverse as no smaller than this
};

// One weight matrix [n, k], cut into panels of 32 outputs. Within a panel, k runs outermost:
//   f32, f16   [k][32]
//   bf16       [ceil(k / 2)][32][2]
//   int4       per group: [group / 8][32][4 bytes: low nibbles k..k+3, high nibbles k+4..k+7], scale[32], minimum[32] or
//              zeros[32] of one byte, or neither
//   int8       per group: [group / 4][32][4 bytes], followed by scales and minima or zeros as for int4
//   code4      as int4, with indices into a table of sixteen numbers
//   e4m3, e5m2 as int8, with 8-bit floats
// Groups of 8-bit elements may extend beyond k, where inputs count as zero.
//   planes     integers of 2 to 6 bits (code4, code3: indices). Per super-group: scale[32] (f16), minimum[32] or zeros[32]
//              of one byte, or neither. Then per unit of 32 inputs: sub-scale[32] and optional sub-minimum[32] of each
//              of its groups; a plane of the low 2 or 4 bits, and one of the other 1 or 2: [bits][32][4 bytes], where
//              byte j holds inputs j, j + 4, ... from its low bits on
struct PackedLinear {
    int format;
    int activation;
    long n, k, panels;
    long group, groups; // for grouped formats only
    long segments;      // equal parts of k with separate sums; a power of two
    int zero;
    int has_minimum;
    int has_zeros;       // replace `zero`: one per group (planes: super-group) and output
    int scale_type;      // type of scale and minimum
    size_t scale_bytes;  // bytes of one group's scales
    size_t value_bytes;  // bytes of one group's values
    size_t record_bytes; // bytes of one group (planes: of one super-group)
    long super;          // planes: inputs per super-group
    int sub_scales;      // planes: a SubScales
    size_t sub_bytes;    // planes: bytes of one group's sub-scales and sub-minima
    size_t head_bytes;   // planes: bytes of a super-group's own scales and minima
    size_t unit_head;    // planes: bytes of the sub-scales at the start of a unit
    size_t unit_bytes;   // planes: bytes of a unit
    size_t panel_bytes;
    uint8_t *data;
    int borrowed;     // data is the caller's memory and is not freed
    float *bias;      // padded to whole panels, or null
    float *row_scale; // a factor per output, padded like the bias, or null
    int32_t *order;   // [k] the input that each k multiplies; null: the k-th
    long input_group; // inputs that share a quantization scale, counted from the start of each group
    long input_parts; // parts of a group with their own input scale
    long input_groups; // input scales per row; 0 where inputs are not quantized
    float unit;       // value of an integer step: 0.5 where codes are stored doubled
    float code_unit;  // planes of indices: the power of two of which all table entries are multiples
    float codes[16];  // code4: its table
    float products[16]; // the table as products read it (rounded like the inputs)
    uint8_t bytes[16];  // the table as doubled unsigned integers
    InputRounding rounding;
};

// Data that the integer product needs about one input group of one quantized row.
struct GroupMeta {
    float scale;
    int32_t correction; // -zero * sum of the quantized values
    float sum;          // scale * sum of the quantized values
    float total;        // sum of the quantized values
};

struct LinearCall {
    const PackedLinear *weight;
    const float *x; // [rows, k]
    long x_stride;
    float *out; // [rows, n]
    long out_stride;
    long rows;
    int accumulate;
    uint8_t *staged; // rows after the activation scheme, or null when `x` is read as it is
    size_t staged_stride;
    GroupMeta *meta; // [rows, input_groups]
    const uint8_t *panel; // the panel to multiply, where it is not in the weight; or null
    const uint8_t *next;  // the data read after this panel, which is prefetched; null: the weight's next panel
};

struct NormCall {
    const float *x; // [rows, heads, width]
    long row_stride, head_stride;
    float *out;
    long out_row_stride, out_head_stride;
    const float *weight; // [width], or [heads, width]
    float eps;
    long rows, heads, width;
    long weight_stride; // from head to head: 0 or width
    const float *bias;  // as the weight, or null
    int centred;        // subtract the mean first
};

struct RotaryCall {
    float *x; // [rows, heads, width]
    long row_stride, head_stride;
    long rows, heads, half;
    const float *cos, *sin; // [positions, half]
    const int64_t *positions;
};

// The numbers are defined in plugins/executors/core_runtime/layers/activations.py. Only `gated` supports the clamped
// swiglu.
enum ActivationKind {
    kSilu = 0, kGeluTanh = 1, kGelu = 2, kRelu = 3, kRelu2 = 4, kQuickGelu = 5, kXielu = 6, kClampedSwiglu = 7, kClampedSilu = 8
};
struct ActivationSpec {
    int kind;         // an ActivationKind
    float numbers[4]; // as many as the kind has
};

struct RowsCall { // gated, activate, add, open_gate, scale and soft_cap
    const float *x;
    long x_stride;
    float *out;
    long out_stride;
    long rows, width;
    float factor; // scale: the factor; soft_cap: the cap; open_gate: neighbouring values per gate value
    ActivationSpec activation; // for gated and activate
};

// Element types of a KV cache; kv_elements.inc.h converts them.
enum CacheElement { kCacheF32 = 0, kCacheBF16 = 1, kCacheF16 = 2, kCacheE4M3 = 3, kCacheE5M2 = 4, kCacheI8 = 5, kCacheK8V4 = 6 };

// One layer's paged KV cache; span.inc.h describes the layout of a block.
struct CacheShape {
    long heads_kv, dim, dim_v, block_size;
    long block_bytes, head_bytes; // from a block to the next, which other layers may lie between; of one head in a block
    int element;            // a CacheElement
    int scaled;             // each token and head has two scales of its own, stored in the block
    float k_scale, v_scale; // value = stored number * this scale (* the token's own scale)
    int latent;             // values are the first dim_v numbers of the keys and are not stored again: latent.inc.h
};

// Spans whose blocks several sequences share, with the partial results that the tasks over all of them leave for each
// sequence.
struct SharedSpans {
    // [batch, spans] index in `records`, or kNotShared, or kFolded: merged into an earlier span's record.
    const int64_t *place;
    long spans;
    float *records; // [heads_kv, rows of the sequence] times (maximum, sum, out[dim_v]), see kRecordHead
};
constexpr int64_t kNotShared = -1, kFolded = -2;
constexpr long kRecordHead = 2;

// Paged attention over one layer's cache.
struct AttentionCall : CacheShape {
    const float *q; // [tokens, heads_q, dim]
    long q_row_stride, q_head_stride;
    const float *q_pe; // latent: [tokens, heads_q, dim - dim_v], what follows the dim_v numbers of q
    long pe_row_stride, pe_head_stride;
    float *out; // [tokens, heads_q, dim_v]
    long out_row_stride, out_head_stride;
    const uint8_t *cache;
    const int32_t *cu_seqlens;  // [batch + 1]
    const int32_t *seq_lens;    // [batch], with this step's tokens
    const int32_t *block_table; // [batch, table_stride]
    long table_stride, batch;
    long heads_q;
    float scale, cap;           // cap 0: none
    long window;                // keys a query sees up to itself; 0: all; below 0: its own chunk of -window
    long ahead;                 // keys after itself that a query also sees; 0 for a decoder
    const float *sinks;         // [heads_q] one more logit in each softmax, or null
    const float *slopes;        // [heads_q] adds slope * (key - query) to a score, or null
    const SharedSpans *shared;  // or null
    const int32_t *tails;       // [batch, tail_depth] slots of a sequence's last keys, -1: use the block table; or null
    long tail_depth;
    const int32_t *sees_to;     // [tokens] last position that each query sees, its own or a later one; or null: its own
};

// Number of leading keys of a sequence that the block table locates. Static, so that every file has its own copy.
static inline long table_keys(const AttentionCall &c, long sequence) {
    const long keys = c.seq_lens[sequence], others = c.tails ? c.tail_depth : 0;
    return keys > others ? keys - others : 0;
}

// The first key that a query sees. Static, so that every file has its own copy.
static inline long first_key(const AttentionCall &c, long position) {
    if (c.window < 0) return position - position % -c.window;
    return c.window && position >= c.window ? position + 1 - c.window : 0;
}

// One past the last key that a query sees. Static, so that every file has its own copy.
static inline long end_key(const AttentionCall &c, long sequence, long position) {
    const long keys = c.seq_lens[sequence], next = c.cu_seqlens[sequence + 1];
    const long end = (c.sees_to ? c.sees_to[next - keys + position] : position) + 1 + c.ahead;
    return end < keys ? end : keys;
}

struct LinearRun { // one whole product; for the fields see LinearCall
    const PackedLinear *weight;
    const float *x;
    long x_stride, rows;
    float *out;
    long out_stride;
    int accumulate;
    int gated; // out[rows, n / 2] = activation(first half) * second half; n is then a multiple of 2 * kPanel
    int activated; // out[rows, n] = activation(product)
    ActivationSpec activation; // for gated and activated
};

struct GatherCall { // rows of a packed weight: the embedding
    const PackedLinear *weight;
    const int64_t *ids; // [rows]
    long rows;
    float *out;
    long out_stride;
    long first, whole; // of a part of a vocabulary of `whole` ids: its first id; rows of other parts are 0. Or 0, 0
};

struct TakeCall { // out[i] = x[which[i]]
    const float *x;
    long x_stride;
    const int64_t *which; // [rows]
    float *out;
    long out_stride;
    long rows, width;
};

struct CacheWriteCall : CacheShape {
    const float *k, *v; // [rows, heads_kv, dim], [rows, heads_kv, dim_v]; latent: [rows, dim_v], [rows, dim - dim_v]
    long k_row_stride, k_head_stride, v_row_stride, v_head_stride;
    uint8_t *cache;
    const int64_t *slots; // [rows]; negative: not stored
    long rows;
};

// The keys of sequences by position, as attention finds them.
struct KeyPlaces {
    const uint8_t *cache;
    long block_size, block_bytes;
    const int32_t *cu_seqlens, *seq_lens, *block_table; // see AttentionCall, also for the tails
    long table_stride, batch;
    const int32_t *tails;
    long tail_depth;
};

// The slot of a key of a sequence. Static, so that every file has its own copy.
static inline long index_slot(const KeyPlaces &c, long sequence, long key) {
    const long tail = c.tails ? key - (c.seq_lens[sequence] - c.tail_depth) : -1;
    const long slot = tail < 0 ? -1 : c.tails[sequence * c.tail_depth + tail];
    if (slot >= 0) return slot;
    return c.block_table[sequence * c.table_stride + key / c.block_size] * c.block_size + key % c.block_size;
}

constexpr long kMaxIndex = 256; // numbers of a key of an index

// The choice of keys by an index, whose own keys begin `offset` bytes into each block; index.inc.h describes them.
struct IndexCall : KeyPlaces {
    long offset, dim, heads;
    int element; // float32, bfloat16 or float16, as a CacheElement
    float scale;
    long top_k;
    const float *q; // [rows, heads, dim]
    long q_row_stride;
    const float *weights; // [rows, heads]
    long weights_row_stride;
    int32_t *out; // [rows, top_k] chosen positions, ascending, then -1
    long out_row_stride;
};

struct IndexTask { // scores of some successive rows of a sequence over the keys [first, end)
    long sequence, token, rows;
    long position; // of the first row
    long first, end;
    float *scores; // [rows, stride]
    long stride;
    const uint32_t *queries; // [rows, query_words], as `index_queries` writes them
    long query_words;
};

// Room for a row's queries and weights as products read them, in 32-bit words.
static inline long index_query_words(const IndexCall &c) { return (c.heads + 15) / 16 * 16 * (c.dim + 4); }

struct IndexWriteCall {
    const float *k; // [rows, dim]
    long k_row_stride, rows, dim;
    uint8_t *cache;
    const int64_t *slots; // [rows]; negative: not stored
    long block_size, block_bytes, offset;
    int element;
};

// Copies the chosen keys of the rows [first, first + rows) of a batch to blocks of a cache of their own.
struct ChosenCall : KeyPlaces {
    const int32_t *chosen; // [rows of the batch, top_k], -1 after the last one
    long chosen_row_stride, top_k, first, rows;
    long dim;
    int element;
    uint8_t *to; // [rows, room keys], in the layout of blocks of a multiple of 16 keys
    long room;
    int32_t *lengths; // [rows], is set to the number of keys of each row
};

// Samples one token for each selected row of logits; race.inc.h defines the rules.
struct RaceCall {
    const float *logits; // [*, vocab]
    long stride, vocab, rows;
    const int64_t *which;      // [rows] rows of logits
    const int64_t *keys;       // [rows, 5] 32-bit words: seed (low, high), output index, choice, purpose
    const float *temperatures; // [rows]; 0: the largest logit wins
    const int64_t *top_k;      // [rows] 0: all; null: no row has a filter
    const double *top_p;       // [rows] 1: all
    const float *least;        // [rows] lower limit on (logit - largest) / T
    const uint32_t *masks;     // [*, mask_words]; bit b of word w: token 32 * w + b is allowed
    const int64_t *mask_rows;  // [rows] rows of masks, -1: every token is allowed; null: for all rows
    long mask_words;
    int64_t *out;              // [rows] tokens; -1 where a logit is NaN or infinite, or all are -infinity or masked
};

enum RouteScores { kSoftmax = 0, kSigmoid = 1, kSparseMixer = 2 };

// Chooses the experts of each token from the router's logits; experts.inc.h defines the rules.
struct RouteCall {
    const float *logits; // [rows, experts]
    long stride, experts, rows, top_k;
    int scores;      // a RouteScores
    int renormalize; // divide the chosen scores by their sum plus `epsilon`
    float epsilon;
    float jitter; // for the sparse mixer
    long groups, top_groups;  // groups of equal size; 1 group: no group limit
    int pair_groups;          // rank a group by its two best choices instead of the best one
    float factor;
    const float *bias; // [experts] added for the choice only, or null
    float *work;       // [rows, 3, padded]
    long padded;       // experts, rounded up to whole vectors
    int64_t *ids;      // [rows, top_k]
    float *weights;    // [rows, top_k]
};

// out[t] (+)= the weighted sum of t's experts in order of their ids. Each of `ranges` equal ranges of ids (a power of
// two) has its own sum, and these are added as a binary tree, so that a rank with half of the experts computes a
// whole subtree.
struct CombineCall {
    const float *y; // one row per position
    long width, rows, top_k;
    const int32_t *where;  // [rows, top_k] positions, rising with the expert's id; kAbsent after those of this rank
    const int32_t *order;  // the pair (t * top_k + j) at a position; null: positions are pairs
    const int64_t *ids;    // [rows, top_k]
    const float *weights;  // [rows, top_k], or null: each is 1
    long range, ranges;    // experts per range
    float *out;
    long out_stride;
    int accumulate;
};

constexpr int32_t kAbsent = 0x7fffffff; // position of a choice that another rank computes

// The slot of this rank that computes each choice, or -1. An expert with copies on several ranks is computed by the one
// with the fewest choices so far, so that all ranks, which see the same ids, decide alike.
struct PlaceCall {
    const int64_t *ids;   // [rows, top_k], each below the number of rows of `table`
    const int32_t *table; // [experts, columns]: the number of an expert's copies, then their slots of all ranks
    long columns, rows, top_k;
    long per_rank, rank; // slots of a rank
    int64_t *loads;      // [experts] choices so far
    int64_t *slots;      // [rows, top_k]
};

// Experts of one layer. Their weights agree in shape, format, groups and activation scheme.
struct ExpertsLayer {
    long experts;
    ActivationSpec activation;
    int plain;                     // no gate: the activation applies to a single product
    int weight_inputs;             // an expert's weight multiplies its input instead of its output
    int partial;                   // ids may be -1: choices that another rank computes
    int own_inputs;                // each expert rounds its inputs in its own way, so tokens are not staged once for all
    long ranges;                   // ranges of ids with sums of their own; see CombineCall
    const PackedLinear **gate_up;  // [experts], each [2 * inner, hidden], or [inner, hidden] where plain
    const PackedLinear **down;     // [experts], each [hidden, inner]
};

struct ExpertsCall {
    const ExpertsLayer *layer;
    const float *x; // [rows, hidden]
    long x_stride, rows, top_k;
    const int64_t *ids;   // [rows, top_k], each below layer->experts
    const float *weights; // [rows, top_k]
    float *out;           // [rows, hidden], or [rows, top_k, hidden] where apart
    long out_stride;
    int accumulate;
    int apart; // write the output of each choice by itself, unweighted, and zeros for absent ones
};

// Log-probabilities of the chosen token and the most likely ones; see logprobs.inc.h.
struct LogprobsCall {
    const float *logits; // [*, vocab]
    long stride, vocab, rows, width;
    // [rows] rows of logits, their tokens, number of most likely tokens (< width).
    const int64_t *which, *chosen, *counts;
    int64_t *ids;                           // [rows, width], the chosen token first
    double *values;                         // [rows, width]
    int64_t *ranks;                         // [rows] rank of the chosen token
};

constexpr long kRankLanes = 16;        // ranks side by side in a panel of A
constexpr long kLowRankRows = 512;     // rows per pass: limits the memory for A x

// One update of an adapter: y = gain * (y + scale * B h) + shift, for y = out[first, first + n), h = (A x)[offset, + rank).
// B, gain and shift begin at the layer's panel of 32 outputs that holds the first one, and end with a whole panel.
struct LowRankPart {
    int64_t first, n, offset, rank;
    const uint8_t *b;   // by panel: f32, f16 [rank][32]; bf16 [ceil(rank / 2)][32][2]
    const float *gain;  // or null
    const float *shift; // or null
    double scale;
};

// An adapter's updates of one layer. The A's of its parts stand on each other, so that x is read once for all of them.
struct LowRankUpdate {
    const uint8_t *a; // panels of 16 ranks: f32, f16 [k][16]; bf16 [ceil(k / 2)][16][2]
    int64_t panels;   // of A
    int64_t num_parts;
    LowRankPart parts[1]; // as many as there are
};

struct LowRankCall {
    const float *x; // [rows, k]
    long x_stride, rows;
    float *out; // [rows, outputs]
    long out_stride;
    const int32_t *which;              // [rows] rows of the table, negative: none
    const LowRankUpdate *const *table; // [table_rows], null: an empty row
    long table_rows;
    long outputs;
    long k, segments; // equal parts of k with separate sums; a power of two, each even if there are several
    int format;       // of A and B: kF32, kF16 or kBF16
};

// Some rows of a call with one adapter.
struct LowRankTask {
    const LowRankCall *call;
    const LowRankUpdate *update;
    const int32_t *rows; // [count]
    long count;
    float *inner; // [count, inner_stride] A x
    long inner_stride;
    float *out; // where output 0 of row 0 of the call is
    long out_stride;
};

enum StateOp { kShortConv = 0, kMamba1 = 1, kMamba2 = 2, kGatedDelta = 3, kKda = 4 };
// The last two are mamba1.
enum StateNorm { kNoNorm = 0, kAfterGate = 1, kBeforeGate = 2, kPlainNorm = 3, kWeightedNorm = 4 };
constexpr long kStateTaps = 8;      // maximum kernel width of a convolution
constexpr long kStateChannels = 256; // channels per convolution task
constexpr long kStateRow = 256;     // maximum numbers in a row of a recurrent state
constexpr long kStateRows = 512;    // maximum rows of a head's state; a task of mamba1 takes 64
constexpr long kStateTokens = 16;   // tokens that update a state row in one pass

// A layer with a recurrent state; plugins/executors/core_runtime/models/state_ops and StateSpec define its
// computation. The recurrent state is [heads, rows, length].
struct StateLayer {
    int op;
    int window_element, element; // kCacheF32, kCacheBF16 or kCacheF16: storage of the convolution's inputs, and of the rest
    long channels, kernel;      // of the convolution
    long heads, rows, length;
    long key_heads, groups;     // heads of q and k; groups of B and C
    long rank, gate_rank;       // ranks of mamba1's dt and of kda's decay and gate projections (0: full width)
    int norm;                   // a StateNorm
    long norm_groups;
    float norm_eps, qk_eps, beta_scale, dt_min, dt_max, z_scale, dt_scale;
    float decay_floor;          // 0: none
    const float *taps, *bias;   // [kernel, channels], [channels] or null
    const float *rate;          // -exp(A_log): [heads]; mamba1: [rows, length]
    const float *dt_bias, *skip, *norm_weight, *b_weight, *c_weight;
    const PackedLinear *first, *second; // x_proj and dt_proj; the second halves of kda's decay and gate; or null
};

// One step of a layer with a state. A state is stored in the first blocks of its table row, its bytes running on from
// block to block. It may be read in other blocks than it is written to.
struct StateCall {
    const StateLayer *layer;
    const float *x; // [tokens, inputs]
    long x_stride;
    float *out; // [tokens, outputs]
    long out_stride;
    uint8_t *raw;
    long block_bytes;
    const int32_t *cu_seqlens, *seq_lens; // [batch + 1], [batch]: 0 in padded sequences
    const int32_t *block_table, *sources; // [batch, table_stride]: written, read
    long table_stride, batch;
    float *mixed;                         // [tokens, channels], output of the convolution
    const float *first, *second;          // results of the layer's own products, or null
    long first_stride, second_stride;
    long unit;                            // state rows per task
};

// Some rows of one kv head: of one sequence, or of several sequences that share the spans, one after another. Row r
// of a sequence is its query r / group and head r % group of the kv head's group.
struct AttentionTask {
    int32_t sequence, head_kv; // sequence: the one whose block table is read
    int32_t row, rows;
    int32_t span, spans;    // in units of kSpan keys
    float *partial;         // a record per span and row, or null: merge and finish in this task
    // The sequences of a task over shared spans, which leaves records (see SharedSpans), or null.
    const int32_t *members;
    int32_t num_members;
    int32_t folded; // one record covers all shared spans
};

// The kernels that read or write what a sequence keeps: caches, states, the keys of an index. Their table is a second one because
// the two are compiled at the same time (see setup.py).
struct ContextKernels {
    void (*cache_write)(const CacheWriteCall *, long begin, long end);
    void (*attention)(const AttentionCall *, const AttentionTask *, void *memory); // kAttentionBytes, aligned to 64
    void (*attention_merge)(const AttentionCall *, const AttentionTask *);
    void (*state_convolve)(const StateCall *, long sequence, long channel, long last);
    // Normalizes mamba1's dt, B and C in place.
    void (*state_select)(const StateCall *, float *selected, long begin, long end);
    void (*state_update)(const StateCall *, long sequence, long task, float *memory);
    void (*state_finish)(const StateCall *, long begin, long end); // gates, and norms across all heads
    void (*index_write)(const IndexWriteCall *, long begin, long end);
    void (*index_queries)(const IndexCall *, long row, uint32_t *to);
    void (*index_scores)(const IndexCall *, const IndexTask *);
    void (*index_choose)(const float *scores, long keys, long top_k, uint32_t *spare, int32_t *out); // of more keys than top_k
    void (*index_gather)(const ChosenCall *, long row, long begin, long end); // keys of a row; `begin` is a multiple of 16
    long attention_rows; // most rows of a task whose products are of bfloat16; at least kTaskRows
};

struct KernelTable {
    const char *name;
    // Bytes of one staged row; 0 when rows are read in place.
    size_t (*staged_bytes)(const PackedLinear *);
    void (*stage)(const LinearCall *, long begin, long end);
    long row_block;                           // rows that its widest inner block handles at once
    long (*row_chunk)(const PackedLinear *); // most rows that a tile of a product should have
    bool (*linear)(const LinearCall *, long panel, long begin, long end); // false: out of memory
    void (*norm)(const NormCall *, long begin, long end);
    void (*rotary)(const RotaryCall *, long begin, long end);
    void (*gated)(const RowsCall *, long begin, long end);
    void (*activate)(const RowsCall *, long begin, long end);
    void (*add)(const RowsCall *, long begin, long end);
    void (*open_gate)(const RowsCall *, long begin, long end);
    void (*scale)(const RowsCall *, long begin, long end);
    void (*soft_cap)(const RowsCall *, long begin, long end);
    void (*race)(const RaceCall *, long begin, long end);
    void (*route)(const RouteCall *, long begin, long end);
    void (*combine)(const CombineCall *, long begin, long end);
    void (*logprobs)(const LogprobsCall *, long begin, long end);
    void (*low_rank_inner)(const LowRankTask *, long panel, long segment, long segments); // a subtree of segments
    void (*low_rank_outer)(const LowRankTask *, long panel, long last); // panels of the layer's outputs
    const ContextKernels *context;
};

// One table per file; a table exists only where its file was compiled (see dispatch.cpp).
extern "C" const KernelTable core_kernels_generic;
extern "C" const KernelTable core_kernels_avx2;
extern "C" const KernelTable core_kernels_avx512;
extern "C" const KernelTable core_kernels_avx512_vnni;
extern "C" const KernelTable core_kernels_avx512_vnni_bf16;
extern "C" const KernelTable core_kernels_amx;
extern "C" const KernelTable core_kernels_neon;
extern "C" const KernelTable core_kernels_neon_dot;
extern "C" const KernelTable core_kernels_neon_bf16;

// dispatch.cpp
const KernelTable *kernels_active();
const KernelTable *kernels_at(int index);       // tables that run here, best first; null past the end
const KernelTable *kernels_compiled(int index); // tables in the extension, best first; null past the end
bool kernels_select(const char *name);

// pack.cpp
struct PackSource {
    int format, activation;
    long n, k, group, super;
    int zero, scale_type;
    long segments; // upper limit; fewer where k has too few equal parts of whole groups (plain formats: pairs)
    const void *values, *scale, *minimum;
    const uint8_t *zeros; // [n, groups] (planes: super-groups), or null
    const int32_t *order; // [k], or null
    long input_group;     // 0: the same inputs as share a weight scale
    const void *high, *sub_scale, *sub_minimum; // for planes; null when absent
    const float *codes, *row_scale, *bias; // [16], [n], [n]; or null
    // Prepared_bytes of memory that outlives the weight; null: allocate. Without values it is already packed.
    uint8_t *into;
    int layout;                 // a RowLayout, with `rows`
    const uint8_t *const *rows; // [n] where each row lies as in a file; the tables then only say what there is. Or null
};
// pack_rows.cpp: the lanes of one panel, from `rows` of a RowLayout. False where they do not fit; see `pack_linear`.
bool pack_rows(int layout, const uint8_t *const *rows, const PackedLinear &linear, long lanes, uint8_t *panel);

// Computed from the sizes alone; minimum, zeros and sub-scales only need to be non-null where present.
size_t prepared_bytes(const PackSource *source);
// Null: out of memory. fits: false where the rows have another layout, or scales that are not finite.
PackedLinear *pack_linear(const PackSource *source, bool *fits = nullptr);
void free_linear(PackedLinear *linear);
void unpack_rows(const PackedLinear *linear, const int64_t *ids, long count, float *out, long out_stride);

// ops.cpp: whole operations, over the thread pool
bool run_linear(const LinearRun &run); // false: out of memory
long missing_row(const GatherCall &call); // index of the first id that names no row, or -1
bool run_gather(const GatherCall &call);  // false: an id is out of range
void run_take(const TakeCall &call);
void run_norm(const NormCall &call);
void run_rotary(const RotaryCall &call);
void run_gated(const RowsCall &call);
void run_activate(const RowsCall &call);
void run_add(const RowsCall &call);
void run_open_gate(const RowsCall &call);
void run_scale(const RowsCall &call);
void run_soft_cap(const RowsCall &call);
void run_race(const RaceCall &call);
void run_logprobs(const LogprobsCall &call);

bool run_route(const RouteCall &call); // the caller leaves `work` unset; false: out of memory

// experts.cpp
bool run_experts(const ExpertsCall &call); // false: out of memory
bool run_combine(const CombineCall &call); // the caller leaves `where` and `order` unset; false: out of memory
void run_place(const PlaceCall &call);

// low_rank.cpp; false: out of memory
bool run_low_rank(const LowRankCall &call);

// Rows of A or B to their lanes of panels, which hold zeros elsewhere; see LowRankPart and LowRankUpdate.
struct LowRankPack {
    uint8_t *to;
    const uint8_t *from;       // [rows, k]
    long stride, rows, k;      // stride: bytes from row to row
    long first, lanes, format; // first: the lane of row 0, counted over all panels
};
void pack_low_rank(const LowRankPack &pack);

// A product and the updates after it; both are about the same rows.
struct JoinedRun {
    LinearRun linear;
    LowRankCall updates;
    long rows;
};
bool run_joined(const JoinedRun &run); // ops.cpp

// pages.cpp
// Buffer b of the KV cache begins at starts[b] and has sizes[b] bytes a block; page p is at addresses[p], of block blocks[p].
struct PageCopies {
    const int64_t *starts, *sizes, *blocks, *addresses;
    long buffers, pages;
    bool save; // from blocks to pages; otherwise back
};
void copy_pages(const PageCopies &copies);

// states.cpp
// Working memory of one update.
constexpr size_t kStateFloats = kStateRows * kStateRow + kStateTokens * (3 * kStateRow + 3 * kStateRows);
bool run_state(const StateCall &call); // false: out of memory

// attention.cpp
void run_cache_write(const CacheWriteCall &call);
bool run_attention(const AttentionCall &call); // false: out of memory

// index.cpp
bool run_index(const IndexCall &call); // false: out of memory
bool run_index_write(const IndexWriteCall &call);
bool run_index_gather(const ChosenCall &call);

// Attention of which ranks have a part of the keys each: every rank leaves a record for each of its spans and each query, and
// the rank of a query merges the records of all ranks in the order of spans.
//
// Queries of several ranks are computed in one call, one group of heads a rank, so that a span of keys is read once for all of
// them. A group's records are a part of `part` floats: of each sequence, for each of its spans [heads_kv][rows of the sequence]
// records.
#pragma once

#include "native.h"


struct RecordsCall : AttentionCall {
    long groups;            // ranks whose queries these are
    long q_group, pe_group; // floats from one group's queries to the next
    float *records;         // [groups, part]
    long part;
    const int64_t *bases; // [batch] the sequence's place in a part, in floats
};

struct JoinCall : AttentionCall {
    const float *records; // [ranks, part], of this rank's queries, a part from each rank
    long part;
    const int64_t *bases; // [batch]
    long ranks;           // those whose keys these are, in the order of their pieces
    long piece;           // successive spans that a rank has
};

bool run_attention_records(const RecordsCall &call); // false: out of memory
bool run_attention_join(const JoinCall &call);       // false: out of memory

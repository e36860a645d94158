"""FlashMLA, as published at commit 02fe0d02: `flash_mla.flash_mla_with_kvcache`."""

import torch

from tests.attention.libraries.pages import attend, gathered


class FlashMLASchedMeta:
    num_sequences = None


def get_mla_metadata(*args, **kwargs):
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache(
    q,
    k_cache,
    block_table,
    cache_seqlens,
    head_dim_v,
    tile_scheduler_metadata,
    num_splits=None,
    softmax_scale=None,
    causal=False,
    is_fp8_kvcache=False,
    indices=None,
    attn_sink=None,
    extra_k_cache=None,
    extra_indices_in_kvcache=None,
    topk_length=None,
    extra_topk_length=None,
):
    """A schedule belongs to one step: the same sequences with the same lengths."""
    assert isinstance(tile_scheduler_metadata, FlashMLASchedMeta)
    lengths = cache_seqlens.tolist()
    assert tile_scheduler_metadata.num_sequences in (None, lengths)
    tile_scheduler_metadata.num_sequences = lengths
    assert q.dtype == k_cache.dtype == torch.bfloat16 and q.shape[1] == 1 and q.shape[3] == k_cache.shape[3] == 576
    assert k_cache.shape[1:3] == (64, 1) and head_dim_v == 512 and causal
    assert block_table.dtype == cache_seqlens.dtype == torch.int32
    out = torch.full((*q.shape[:3], head_dim_v), torch.nan, dtype=q.dtype)
    for index, length in enumerate(lengths):
        if length:
            keys = gathered(k_cache, block_table[index, : -(-length // 64)], length)
            out[index] = attend(q[index], keys, keys[..., :head_dim_v], scale=softmax_scale, left=-1)
    return out, None

"""FlashAttention 3, as published: `flash_attn_interface.flash_attn_with_kvcache`."""

import torch

from tests.attention.libraries.pages import attend, gathered


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
):
    assert causal and k_cache.stride(-1) == v_cache.stride(-1) == 1
    assert q.dtype == k_cache.dtype in (torch.float16, torch.bfloat16)
    assert cache_seqlens.dtype == page_table.dtype == cu_seqlens_q.dtype == torch.int32
    out = torch.full_like(q, torch.nan)
    for index, length in enumerate(cache_seqlens.tolist()):
        begin, end = cu_seqlens_q[index : index + 2].tolist()
        assert end - begin <= max_seqlen_q
        if end == begin:
            continue
        blocks = page_table[index, : -(-length // k_cache.shape[1])]
        keys, values = gathered(k_cache, blocks, length), gathered(v_cache, blocks, length)
        out[begin:end] = attend(q[begin:end], keys, values, scale=softmax_scale, left=window_size[0], softcap=softcap)
    return out

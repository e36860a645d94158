"""FlashAttention 4, as published in flash-attn-4 4.0.0b36: `flash_attn.cute.flash_attn_varlen_func`."""

import torch

from tests.attention.libraries.pages import attend, gathered


def flash_attn_varlen_func(
    q,
    k,
    v,
    qv=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    min_seqlen_k=None,
    seqused_q=None,
    seqused_k=None,
    gather_kv_indices=None,
    page_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    learnable_sink=None,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    score_mod=None,
    score_mod_bwd=None,
    mask_mod=None,
    block_sparse_tensors=None,
    aux_tensors=None,
    aux_scalars=None,
    return_lse=False,
    scheduler_metadata=None,
    seqlen_k_per_split=None,
    disable_scheduler_metadata=False,
    gather_bwd_recompute_p=False,
    gather_bwd_token_chunk=None,
):
    assert causal and cu_seqlens_k is None and k.shape == v.shape and k.shape[0] > page_table.max()
    assert q.dtype == k.dtype in (torch.float16, torch.bfloat16) and q.stride(-1) == 1
    assert seqused_k.dtype == page_table.dtype == cu_seqlens_q.dtype == torch.int32
    assert learnable_sink is None or (learnable_sink.dtype == torch.bfloat16 and learnable_sink.shape == q.shape[1:2])
    left = -1 if window_size == (None, None) else window_size[0]
    out = torch.full_like(q, torch.nan)
    for index, length in enumerate(seqused_k.tolist()):
        begin, end = cu_seqlens_q[index : index + 2].tolist()
        assert end - begin <= max_seqlen_q and length <= max_seqlen_k
        if end == begin:
            continue
        blocks = page_table[index, : -(-length // k.shape[1])]
        keys, values = gathered(k, blocks, length), gathered(v, blocks, length)
        out[begin:end] = attend(
            q[begin:end],
            keys,
            values,
            scale=softmax_scale,
            left=left,
            softcap=softcap,
            sinks=learnable_sink,
        )
    return out, None

"""FlashAttention 2, as published: `flash_attn.flash_attn_varlen_func`."""

import torch

from tests.attention.libraries.pages import attend, gathered


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    assert causal and block_table is not None and k.shape[1] % 256 == 0
    assert q.dtype == k.dtype in (torch.float16, torch.bfloat16)
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == block_table.dtype == torch.int32
    out = torch.full_like(q, torch.nan)
    for index in range(len(cu_seqlens_q) - 1):
        begin, end = cu_seqlens_q[index : index + 2].tolist()
        length = int(cu_seqlens_k[index + 1] - cu_seqlens_k[index])
        assert end - begin <= max_seqlen_q and length <= max_seqlen_k
        if end == begin:
            continue
        blocks = block_table[index, : -(-length // k.shape[1])]
        keys, values = gathered(k, blocks, length), gathered(v, blocks, length)
        out[begin:end] = attend(
            q[begin:end], keys, values, scale=softmax_scale, left=window_size[0], softcap=softcap, slopes=alibi_slopes
        )
    return out

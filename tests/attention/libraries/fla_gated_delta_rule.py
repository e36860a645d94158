"""flash-linear-attention, as published in fla-core 0.6.0: `fla.ops.gated_delta_rule.chunk_gated_delta_rule`."""

import torch


def chunk_gated_delta_rule(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    state_v_first=False,
    cu_seqlens=None,
    cu_seqlens_cpu=None,
    chunk_indices=None,
    cp_context=None,
    **kwargs,
):
    """One token after the other, in float64."""
    (_, tokens, key_heads, key_size), (heads, value_size) = q.shape, v.shape[2:]
    assert q.shape == k.shape and v.shape[:2] == (1, tokens) and g.shape == beta.shape == (1, tokens, heads)
    assert q.dtype == k.dtype == v.dtype and torch.equal(cu_seqlens.cpu(), cu_seqlens_cpu)
    assert not kwargs and output_final_state and state_v_first
    assert initial_state.shape == (len(cu_seqlens) - 1, heads, value_size, key_size)
    assert initial_state.isfinite().all() and cu_seqlens[-1] == tokens
    scale = key_size**-0.5 if scale is None else scale
    share = heads // key_heads
    q, k = (x[0].double().repeat_interleave(share, 1) for x in (q, k))
    v, decay, beta = v[0].double(), g[0].double().exp(), beta[0].double()
    out, final = torch.zeros_like(v), initial_state.double()
    for index, (begin, end) in enumerate(zip(cu_seqlens_cpu[:-1].tolist(), cu_seqlens_cpu[1:].tolist(), strict=True)):
        assert end > begin, "the library has no empty sequences"
        state = final[index]
        for row in range(begin, end):
            state *= decay[row].view(-1, 1, 1)
            known = torch.einsum("hvk,hk->hv", state, k[row])
            state += torch.einsum("hv,hk->hvk", beta[row].unsqueeze(1) * (v[row] - known), k[row])
            out[row] = torch.einsum("hvk,hk->hv", state, q[row]) * scale
    return out.to(v.dtype).unsqueeze(0), final.float()

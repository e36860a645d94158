"""FlashInfer, as published: `flashinfer.BatchPrefillWithPagedKVCacheWrapper`."""

from types import SimpleNamespace

import torch

from tests.attention.libraries.pages import attend, gathered


class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, backend="auto"):
        assert kv_layout == "NHD" and float_workspace_buffer.dtype == torch.uint8

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
        non_blocking=True,
    ):
        tensors = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert causal and all(tensor.dtype == torch.int32 for tensor in tensors)
        self.step = SimpleNamespace(**{name: value for name, value in locals().items() if name != "self"})

    def run(self, q, paged_kv_cache, *args, out=None, lse=None, return_lse=False):
        step = self.step
        keys, values = paged_kv_cache
        assert q.dtype == keys.dtype == step.q_data_type == step.kv_data_type
        assert q.shape[1:] == (step.num_qo_heads, step.head_dim_qk)
        assert keys.shape[1:] == (step.page_size, step.num_kv_heads, step.head_dim_qk)
        out = torch.full_like(q, torch.nan)
        starts, pages = step.qo_indptr.tolist(), step.paged_kv_indptr.tolist()
        for index, last in enumerate(step.paged_kv_last_page_len.tolist()):
            blocks = step.paged_kv_indices[pages[index] : pages[index + 1]]
            length = (len(blocks) - 1) * step.page_size + last
            rows = slice(starts[index], starts[index + 1])
            out[rows] = attend(
                q[rows],
                gathered(keys, blocks, length),
                gathered(values, blocks, length),
                scale=step.sm_scale,
                left=step.window_left,
                softcap=step.logits_soft_cap,
            )
        return out

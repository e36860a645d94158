"""FlashInfer, as published in flashinfer-python 0.7.2.post1: wrappers that plan on the host, and then run."""

from types import SimpleNamespace

import torch

from tests.attention.libraries.pages import attend, gathered


def into_buffers(buffers, tensors):
    """Plans of a recording lie in memory of the caller, whose number of sequences is fixed."""
    for nth, (buffer, tensor) in enumerate(zip(buffers, tensors, strict=True)):
        assert len(tensor) <= len(buffer) and (nth == 2 or len(tensor) == len(buffer))
        buffer[: len(tensor)] = tensor


class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        paged_kv_indptr_buf=None,
        paged_kv_indices_buf=None,
        paged_kv_last_page_len_buf=None,
        custom_mask_buf=None,
        mask_indptr_buf=None,
        backend="auto",
        jit_args=None,
        jit_kwargs=None,
        variant_owns_mask=False,
    ):
        assert kv_layout == "NHD" and float_workspace_buffer.dtype == torch.uint8
        self.backend = backend
        self.buffers = None
        if use_cuda_graph:
            self.buffers = (qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf, paged_kv_last_page_len_buf)
            assert all(buffer.dtype == torch.int32 for buffer in self.buffers)

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
        o_data_type=None,
        non_blocking=True,
        prefix_len_ptr=None,
        token_pos_in_items_ptr=None,
        token_pos_in_items_len=0,
        max_item_len_ptr=None,
        seq_lens=None,
        seq_lens_q=None,
        block_tables=None,
        max_token_per_sequence=None,
        max_sequence_kv=None,
        fixed_split_size=None,
        disable_split_kv=False,
        uniform_q_len=None,
    ):
        tensors = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert causal and all(tensor.dtype == torch.int32 for tensor in tensors)
        assert fixed_split_size is None or (self.backend == "fa2" and self.buffers is None)
        if self.buffers is not None:
            into_buffers(self.buffers, tensors)
            qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len = self.buffers
        self.step = SimpleNamespace(**{name: value for name, value in locals().items() if name != "self"})

    def run(self, q, paged_kv_cache, *args, out=None, lse=None, return_lse=False):
        step = self.step
        keys, values = paged_kv_cache
        assert q.dtype == keys.dtype == step.q_data_type == step.kv_data_type
        assert q.shape[1:] == (step.num_qo_heads, step.head_dim_qk)
        assert keys.shape[1:] == (step.page_size, step.num_kv_heads, step.head_dim_qk)
        out = torch.full_like(q, torch.nan) if out is None else out
        assert out.dtype == q.dtype and out.is_contiguous()
        starts, pages = step.qo_indptr.tolist(), step.paged_kv_indptr.tolist()
        for index, last in enumerate(step.paged_kv_last_page_len.tolist()):
            blocks = step.paged_kv_indices[pages[index] : pages[index + 1]]
            if not len(blocks):
                continue
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


class BatchDecodeWithPagedKVCacheWrapper:
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
        backend="auto",
        jit_args=None,
    ):
        buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        queries = torch.zeros_like(paged_kv_indptr_buffer) if use_cuda_graph else None
        self.inner = BatchPrefillWithPagedKVCacheWrapper(
            float_workspace_buffer, kv_layout, use_cuda_graph, queries, *buffers
        )

    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        *,
        pos_encoding_mode="NONE",
        window_left=-1,
        window_right=0,
        logits_soft_cap=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        data_type=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        non_blocking=True,
        block_tables=None,
        seq_lens=None,
        fixed_split_size=None,
        disable_split_kv=False,
        q_len_per_req=1,
    ):
        self.inner.plan(
            torch.arange(len(indptr), dtype=torch.int32),
            indptr,
            indices,
            last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim,
            page_size,
            causal=True,
            sm_scale=sm_scale,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
        )

    def run(self, q, paged_kv_cache, *args, out=None, lse=None, return_lse=False):
        assert len(q) == len(self.inner.step.paged_kv_last_page_len)
        return self.inner.run(q, paged_kv_cache, out=out)


class MLAPlanMetadata:
    @classmethod
    def csr(cls, qo_indptr, kv_indptr, kv_indices, kv_len_arr):
        found = cls()
        found.qo_indptr, found.kv_indptr, found.kv_indices, found.kv_len_arr = (
            qo_indptr,
            kv_indptr,
            kv_indices,
            kv_len_arr,
        )
        return found


class BatchMLAPagedAttentionWrapper:
    def __init__(
        self,
        float_workspace_buffer,
        use_cuda_graph=False,
        qo_indptr=None,
        kv_indptr=None,
        kv_indices=None,
        kv_len_arr=None,
        backend="auto",
    ):
        assert float_workspace_buffer.dtype == torch.uint8
        self.buffers = None
        if use_cuda_graph:
            assert backend == "fa2", "others plan once"
            self.buffers = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)

    def plan(
        self,
        *,
        metadata,
        num_heads,
        head_dim_ckv,
        head_dim_kpe,
        page_size,
        causal,
        sm_scale,
        q_data_type,
        kv_data_type,
        use_profiler=False,
        query_layout="packed",
        kv_cache_layout="packed",
        lse_mode="none",
        output_dtype=None,
        output_scale="none",
        scale_mode="default",
        skip_softmax=False,
        enable_pdl=None,
        use_sinks=False,
    ):
        assert causal and query_layout == kv_cache_layout == "split"
        assert q_data_type == kv_data_type and (head_dim_ckv, head_dim_kpe) == (512, 64)
        if self.buffers is not None:
            told = (metadata.qo_indptr, metadata.kv_indptr, metadata.kv_indices, metadata.kv_len_arr)
            into_buffers(self.buffers, told)
            metadata = MLAPlanMetadata.csr(*self.buffers)
        self.step = SimpleNamespace(**{name: value for name, value in locals().items() if name != "self"})

    def run(self, *, query, kv_cache, out=None, lse=None, return_lse=False):
        step, told = self.step, self.step.metadata
        (q_nope, q_pe), (latents, keys) = query, kv_cache
        assert latents.shape[1:] == (step.page_size, 512) and keys.shape[1:] == (step.page_size, 64)
        out = torch.full_like(q_nope, torch.nan) if out is None else out
        starts, pages = told.qo_indptr.tolist(), told.kv_indptr.tolist()
        both = torch.cat([q_nope, q_pe], -1)
        for index, length in enumerate(told.kv_len_arr.tolist()):
            if not length:
                continue
            blocks = told.kv_indices[pages[index] : pages[index + 1]]
            rows = slice(starts[index], starts[index + 1])
            values = gathered(latents, blocks, length).unsqueeze(1)
            seen = torch.cat([values, gathered(keys, blocks, length).unsqueeze(1)], -1)
            out[rows] = attend(both[rows], seen, values, scale=step.sm_scale, left=-1)
        return out


mla = SimpleNamespace(MLAPlanMetadata=MLAPlanMetadata, BatchMLAPagedAttentionWrapper=BatchMLAPagedAttentionWrapper)

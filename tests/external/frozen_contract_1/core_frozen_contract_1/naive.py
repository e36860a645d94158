"""Paged attention, one query token at a time."""

from core.api.specs import KVLayout


class NaiveAttention:
    """The attention contract."""

    name = "frozen_naive"
    numerics = "frozen_naive-1"

    def kv_layout(self, spec, block_size, dtype):
        """K of all tokens, then V of all tokens."""
        return KVLayout(block_size * spec.num_kv_heads * (spec.head_size + spec.head_size_v) * 4)

    def bind(self, spec, block_size, dtype, raw):
        """Views of K [blocks, size, heads, D] and V."""
        import torch

        floats = raw.view(torch.float32)
        split = block_size * spec.num_kv_heads * spec.head_size
        shape = (raw.shape[0], block_size, spec.num_kv_heads)
        k = floats[:, :split].unflatten(1, (*shape[1:], spec.head_size))
        v = floats[:, split:].unflatten(1, (*shape[1:], spec.head_size_v))
        return spec, k, v

    def build(self, view):
        """Where each token goes, and what each query sees."""
        rows = []
        row = 0
        for index, (queries, length) in enumerate(zip(view.query_lens, view.seq_lens_list, strict=True)):
            for query in range(queries):
                rows.append((row, index, length - queries + query + 1))
                row += 1
        return view, rows, view.slot_mapping // view.block_size, view.slot_mapping % view.block_size

    def write(self, handle, k, v, metadata):
        """Store K and V."""
        _, keys, values = handle
        _, _, block, offset = metadata
        keys[block, offset] = k.float()
        values[block, offset] = v.float()

    def forward(self, handle, q, metadata, out):
        """One query after the other."""
        spec, keys, values = handle
        view, rows, _, _ = metadata
        group = spec.num_heads // spec.num_kv_heads
        for row, index, visible in rows:
            blocks = view.block_table[index, : -(-visible // view.block_size)].long()
            first = 0 if spec.window is None else max(0, visible - spec.window)
            k = keys[blocks].flatten(0, 1)[first:visible].repeat_interleave(group, 1)
            v = values[blocks].flatten(0, 1)[first:visible].repeat_interleave(group, 1)
            weights = (k * q[row].float()).sum(-1).mul(spec.scale).softmax(0)
            out[row] = (weights.unsqueeze(-1) * v).sum(0).to(out.dtype)

"""A step of one sequence, made by hand for models that no engine drives."""

from collections.abc import Sequence

import torch

from core_runtime.contracts import BatchView


def view_of(computed: int, count: int, blocks: Sequence[int], block_size: int) -> BatchView:
    """`count` new tokens of a sequence that has `computed` ones, in the blocks `blocks`."""
    positions = list(range(computed, computed + count))
    slots = [blocks[position // block_size] * block_size + position % block_size for position in positions]
    length = computed + count
    return BatchView(
        num_tokens=count,
        num_seqs=1,
        block_size=block_size,
        max_query_len=count,
        max_seq_len=length,
        query_lens=[count],
        seq_lens_list=[length],
        cu_seqlens_q=torch.tensor([0, count], dtype=torch.int32),
        seq_lens=torch.tensor([length], dtype=torch.int32),
        block_table=torch.tensor([list(blocks)], dtype=torch.int32),
        slot_mapping=torch.tensor(slots),
        positions=torch.tensor(positions),
    )

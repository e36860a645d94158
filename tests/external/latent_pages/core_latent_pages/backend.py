"""Softmax page by page: no page is ever copied, and none is read twice in a step for one sequence.

A page holds its tokens as columns, [R + Dr, block_size]: a token's latent and, below it, its rotated key.
"""

from dataclasses import dataclass

import torch

from core.api.specs import KVLayout


@dataclass(slots=True)
class Layer:
    """pages: [blocks, R + Dr, block_size], a view of memory that the core owns."""

    rank: int
    scale: float
    pages: torch.Tensor


class LatentPages:
    """The contract of latent layers."""

    name = "latent_pages"
    numerics = "latent-pages-1"

    def kv_layout(self, spec, block_size, dtype):
        """One column a token."""
        return KVLayout(block_size * (spec.rank + spec.rope_size) * getattr(torch, dtype).itemsize)

    def bind(self, spec, block_size, dtype, raw):
        """See `Layer`."""
        shape = len(raw), spec.rank + spec.rope_size, block_size
        return Layer(spec.rank, spec.scale, raw.view(getattr(torch, dtype)).view(shape))

    def build(self, view):
        """The view has everything."""
        return view

    def write_latent(self, handle, c, k_pe, metadata):
        """A column for each token."""
        page, column = metadata.slot_mapping // metadata.block_size, metadata.slot_mapping % metadata.block_size
        handle.pages[page, :, column] = torch.cat([c, k_pe], -1).to(handle.pages.dtype)

    def forward_latent(self, handle, q_latent, q_pe, metadata, out):
        """out[T, H, R], a sequence at a time."""
        start = 0
        for index, (queries, length) in enumerate(zip(metadata.query_lens, metadata.seq_lens_list, strict=True)):
            mine = slice(start, start + queries)
            query = torch.cat([q_latent[mine], q_pe[mine]], -1).float() * handle.scale
            table = metadata.block_table[index].tolist()
            out[mine] = _walk(query, handle, table, metadata.block_size, length).to(out.dtype)
            start += queries


def _walk(query, layer, table, block_size, length):
    """[Tq, H, R]: the running softmax of query [Tq, H, R + Dr] over a sequence's pages."""
    positions = torch.arange(length - len(query), length).view(-1, 1, 1)
    peak = torch.full((*query.shape[:2], 1), -torch.inf)
    total, sums = torch.zeros_like(peak), query.new_zeros(*query.shape[:2], layer.rank)
    for number in range(-(-length // block_size)):
        first = number * block_size
        page = layer.pages[table[number], :, : length - first].float()
        keys = torch.arange(first, first + page.shape[1])
        scores = (query @ page).masked_fill(keys > positions, -torch.inf)
        higher = torch.maximum(peak, scores.amax(-1, keepdim=True))
        fade, weights = torch.exp(peak - higher), torch.exp(scores - higher)
        total = total * fade + weights.sum(-1, keepdim=True)
        sums = sums * fade + weights @ page[: layer.rank].T
        peak = higher
    return sums / total

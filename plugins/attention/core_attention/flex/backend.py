"""Paged attention through torch's flex_attention.

Owns: the concatenated keys of a step, and the masks over them as functions that torch compiles.
Never does: run in a recorded graph, because a step's keys are counted on the host. Called by: the decoder, through the
attention contract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from core.api.specs import AttentionSpec
from core_attention.paged_heads import PagedHeads, PagedLayer, Places
from core_runtime.contracts import BatchView

Sees = Callable[[Tensor, Tensor], Tensor]
"""Predicate (query position, key position) within one sequence: whether the query sees the key."""


@dataclass(slots=True)
class FlexStep:
    """The metadata of one step with T queries and L keys.

    places: the slots it writes.
    blocks, offsets: int64 [L], locations of the keys.
    query_owner, query_position: int64 [T]; the owner of a padded row is -1.
    key_owner, key_position: int64 [L].
    masks: the attention mask by kind of layer.
    """

    places: Places
    blocks: Tensor
    offsets: Tensor
    query_owner: Tensor
    query_position: Tensor
    key_owner: Tensor
    key_position: Tensor
    masks: dict[tuple[int | None, bool, bool], BlockMask] = field(default_factory=dict)


class FlexAttention(PagedHeads):
    """Implementation of the attention contract.

    numerics: the version of torch.
    compiled: whether torch compiles each kind of layer, once for all row counts.
    """

    name = "flex"

    def __init__(self, numerics: str, compiled: bool) -> None:
        self.numerics = numerics
        self._attend: Any = torch.compile(flex_attention, dynamic=True) if compiled else flex_attention

    def build(self, view: BatchView) -> FlexStep:
        """Number the queries and keys of all sequences consecutively."""
        device = view.positions.device
        query_owner = torch.full((view.num_tokens,), -1, dtype=torch.int64)
        key_owners: list[Tensor] = []
        key_positions: list[Tensor] = []
        begin = 0
        for index, (rows, length) in enumerate(zip(view.query_lens, view.seq_lens_list, strict=True)):
            query_owner[begin : begin + rows] = index
            begin += rows
            key_owners.append(torch.full((length,), index, dtype=torch.int64))
            key_positions.append(torch.arange(length))
        owner = torch.cat(key_owners).to(device)
        position = torch.cat(key_positions).to(device)
        blocks = view.block_table[owner, position // view.block_size].long()
        offsets = position % view.block_size
        asked = query_owner.to(device)
        return FlexStep(Places.of(view), blocks, offsets, asked, view.positions, owner, position)

    def write(self, handle: PagedLayer, k: Tensor, v: Tensor, metadata: FlexStep) -> None:
        """Store k and v [T, Hkv, D] at the step's slots."""
        self.put(handle, k, v, metadata.places)

    def forward(self, handle: PagedLayer, q: Tensor, metadata: FlexStep, out: Tensor) -> None:
        """Compute out[T, Hq, D] in the dtype of q."""
        keys = _side_by_side(handle.keys, metadata, q.dtype)
        values = _side_by_side(handle.values, metadata, q.dtype)
        queries = q.transpose(0, 1).unsqueeze(0)
        found, more = self._attend(
            queries,
            keys,
            values,
            score_mod=_score(handle, metadata),
            block_mask=self._mask(handle.spec, metadata),
            scale=handle.spec.scale,
            enable_gqa=True,
            return_aux=AuxRequest(lse=True),
        )
        if handle.sinks is not None:
            # a sink is one more logit whose value is zero: the other keys' weights shrink by its share
            share = torch.sigmoid(more.lse - handle.sinks.view(1, -1, 1))
            found = found * share.unsqueeze(-1).to(found.dtype)
        out.copy_(found[0].transpose(0, 1))

    def _mask(self, spec: AttentionSpec, step: FlexStep) -> BlockMask:
        """Return the mask of this step for layers of this kind, built for the first of them."""
        key = spec.window, spec.chunked, spec.causal
        mask = step.masks.get(key)
        if mask is None:
            sees = _sees(spec)

            def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
                same = step.query_owner[query] == step.key_owner[key]
                return same & sees(step.query_position[query], step.key_position[key])

            sizes = len(step.query_owner), len(step.key_owner)
            mask = create_block_mask(visible, None, None, *sizes, device=str(step.key_owner.device))
            step.masks[key] = mask
        return mask


def _side_by_side(stored: Tensor, step: FlexStep, dtype: torch.dtype) -> Tensor:
    """Gather K or V as [1, Hkv, L, D]."""
    found = stored[step.blocks, step.offsets].to(dtype)
    return found.transpose(0, 1).unsqueeze(0)


def _sees(spec: AttentionSpec) -> Sees:
    """Return the predicate for a layer: which keys of its sequence a query sees."""
    window = spec.window
    if not spec.causal:
        if window is None:
            return lambda query, key: query >= 0
        reach = window // 2
        return lambda query, key: (key - query).abs() <= reach
    if window is None:
        return lambda query, key: key <= query
    if spec.chunked:
        return lambda query, key: (key <= query) & (key >= query - query % window)
    return lambda query, key: (key <= query) & (key > query - window)


def _score(layer: PagedLayer, step: FlexStep) -> Callable[..., Tensor] | None:
    """Return the modification of scaled scores, or None if there is none."""
    cap = layer.spec.cap
    slopes = layer.slopes
    if cap is None and slopes is None:
        return None

    def changed(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if cap is not None:
            score = torch.tanh(score / cap) * cap
        if slopes is not None:
            distance = step.key_position[key] - step.query_position[query]
            score = score + slopes[head] * distance
        return score

    return changed

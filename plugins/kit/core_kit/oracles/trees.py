"""A tree of drafts as attention sees it, compared with its chains.

Owns: the step with the tree, and the expected output of each row. Never does: judge. Called by: the attention checks.

Two continuations share all tokens but the last ones. In the tree their drafts are stored together after the known
tokens, in their own order, so that some keys are outside the block table's order, also past a block boundary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from core.api.specs import AttentionSpec, LatentSpec
from core_kit.oracles.reference import Conversation, PagedRun, batch_view

KNOWN: Final = 30
"""Known tokens before the tree."""

PLACES: Final = ((1, 0), (0, 0), (1, 1), (0, 1), (0, 2), (1, 2))
"""For each draft slot after the known tokens: its continuation, and the number of that continuation's earlier drafts.
"""

DEPTH: Final = 3
LENGTH: Final = KNOWN + len(PLACES) + 1


def compared_rows(
    backend: Any, spec: AttentionSpec | LatentSpec, block_size: int, dtype: str, random: torch.Generator
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield a label of each row, its output in the tree, and in a chain.

    The last row follows the drafts of one continuation after they were moved to the slots of a chain.
    """
    pair = _continuations(spec, dtype, random)
    chains = [PagedRun(backend, spec, block_size, dtype, [one], random).all(chunk=KNOWN)[0] for one in pair]
    run = PagedRun(backend, spec, block_size, dtype, [pair[0]], random)
    run.step([KNOWN], [KNOWN])
    table = run.tables[0]
    slots = [table[place // block_size] * block_size + place % block_size for place in range(KNOWN, LENGTH)]
    outs = _tree_step(run, pair, slots)
    for out, (owner, nth) in zip(outs, PLACES, strict=True):
        expected = chains[owner][KNOWN + nth]
        yield f"draft {nth + 1} of continuation {owner + 1}", out, expected
    path = [slots[PLACES.index((0, nth))] for nth in range(DEPTH)]
    backend.move(run.handle, torch.tensor(path), torch.tensor(slots[:DEPTH]))
    end = KNOWN + DEPTH + 1
    (behind,) = run.step([1], [end])
    yield "the token behind drafts that were moved", behind[0], chains[0][end - 1]


def _continuations(
    spec: AttentionSpec | LatentSpec, dtype: str, random: torch.Generator
) -> tuple[Conversation, Conversation]:
    """Return two conversations with the same known tokens."""
    first = Conversation.random(LENGTH, spec, dtype, random)
    second = Conversation.random(LENGTH, spec, dtype, random)
    for name in ("q", "k", "v"):
        getattr(second, name)[:KNOWN] = getattr(first, name)[:KNOWN]
    return first, second


def _tree_step(run: PagedRun, pair: tuple[Conversation, Conversation], slots: list[int]) -> Tensor:
    """Return the outputs of all drafts [T, Hq, Dv], each a sequence of one row."""
    lengths = [KNOWN + nth + 1 for _, nth in PLACES]
    count = len(PLACES)
    tails = torch.full((count, DEPTH), -1, dtype=torch.int32)
    for row, (owner, nth) in enumerate(PLACES):
        path = [slots[PLACES.index((owner, before))] for before in range(nth + 1)]
        tails[row, DEPTH - len(path) :] = torch.tensor(path)
    plain = batch_view([1] * count, lengths, run.tables * count, run.block_size)
    view = replace(plain, slot_mapping=torch.tensor(slots[:count]), tails=tails)
    given = []
    for name in ("q", "k", "v"):
        rows = [getattr(pair[owner], name)[KNOWN + nth] for owner, nth in PLACES]
        given.append(torch.stack(rows))
    q, k, v = given
    metadata = run.backend.build(view)
    run.write(k, v, metadata)
    out = torch.full((count, run.spec.num_heads, v.shape[-1]), torch.nan)
    if isinstance(run.spec, LatentSpec):
        latent, rotated = q.split([run.spec.rank, run.spec.rope_size], -1)
        run.backend.forward_latent(run.handle, latent, rotated, metadata, out)
    else:
        run.backend.forward(run.handle, q, metadata, out)
    return out

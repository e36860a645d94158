"""Pages of engines with different numbers of ranks, each made from the same values by what a rank holds of a layer.

Owns: a made-up model of three groups (keys with heads and a latent; keys of a window; states that several pages hold), its
pages in 1, 2, 4 and 8 ranks, and which of their bytes mean something. Never does: use what it tests. Called by: tests of
handoffs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core_kv_connectors.peers.page_shape import GroupShape, PageShape

Bytes = NDArray[np.uint8]
FEW_HEADS, HEADS, LATENT = (2, 12), (4, 6), (1, 10)
"""Heads and the bytes of each: fewer than four ranks have, as many, and a latent, which every rank has."""
CHANNELS, PAST, STATE_HEADS, ALIGNMENT = (4, 8), 2, (8, 5), 4
KEYS, WINDOW, STATES = 0, 1, 2
"""Numbers of the groups. The pages of a state follow: three of them, or two in eight ranks, which share heads of keys."""


def share(items: Bytes, rank: int, ranks: int) -> Bytes:
    """A rank's share of items: an equal part, or one item that successive ranks share."""
    count = len(items)
    return items[rank * count // ranks :][: max(count // ranks, 1)]


class Shaped:
    """The pages of an engine with so many ranks."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._made: dict[int, dict[int, tuple[Bytes, Bytes]]] = {}

    @cached_property
    def buffers(self) -> list[int]:
        """Bytes of a layer with keys in one rank."""
        return [max(count // self.ranks, 1) * size for count, size in (HEADS, FEW_HEADS, LATENT)]

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.ranks * sum(self.buffers)

    @cached_property
    def _state(self) -> list[tuple[int, int]]:
        """Bytes and pieces of the sections of a state."""
        token = [(max(count // self.ranks, 1), min(count, self.ranks)) for count in CHANNELS]
        aligning = -PAST * sum(size for size, _ in token) % ALIGNMENT
        heads, size = STATE_HEADS
        return [*PAST * token, *([(aligning, 0)] if aligning else []), (heads // self.ranks * size, self.ranks)]

    @property
    def num_state_pages(self) -> int:
        """Number of pages that hold a state."""
        return -(-sum(size for size, _ in self._state) // self.buffers[0])

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the pages of a prefix of one block."""
        return KEYS, WINDOW, *self.states

    @property
    def states(self) -> range:
        """Numbers of the pages of a state."""
        return range(STATES + 1, STATES + 1 + self.num_state_pages)

    @cached_property
    def shape(self) -> PageShape:
        """What the engine says about its pages."""
        pieces = [min(count, self.ranks) for count, _ in (HEADS, FEW_HEADS, LATENT)]
        keys = [[(size, number)] for size, number in zip(self.buffers, pieces, strict=True)]
        states = GroupShape.of([self._state, self._state], self.num_state_pages)
        return PageShape.of(self.ranks, self.buffers, [GroupShape.of(keys), GroupShape.of(keys[:1]), states])

    def pages(self, seed: int) -> dict[int, tuple[Bytes, Bytes]]:
        """By number, the page and a mask of the bytes that mean something. Equal seeds: the same values in all engines."""
        if seed not in self._made:
            self._made[seed] = dict(self._pages(seed))
        return self._made[seed]

    def is_right(self, seed: int, number: int, page: Any) -> bool:
        """Whether a page has the values of a seed, wherever it has any."""
        expected, mask = self.pages(seed)[number]
        return page.shape == expected.shape and bool((page == expected)[mask.astype(bool)].all())

    def _pages(self, seed: int) -> Iterator[tuple[int, tuple[Bytes, Bytes]]]:
        dice = np.random.default_rng(seed)
        keys = [dice.integers(0, 256, shape, np.uint8) for shape in (HEADS, FEW_HEADS, LATENT)]
        window = dice.integers(0, 256, HEADS, np.uint8)
        states = [
            ([dice.integers(0, 256, (PAST, count), np.uint8) for count in CHANNELS],
             dice.integers(0, 256, STATE_HEADS, np.uint8))
            for _ in range(2)
        ]  # fmt: skip
        for number, layers in ((KEYS, keys), (WINDOW, [window])):
            yield (
                number,
                self._page([[share(layer, rank, self.ranks) for layer in layers] for rank in range(self.ranks)]),
            )
        values, known = (
            [[self._state_of(*state, rank, is_mask) for state in states] for rank in range(self.ranks)]
            for is_mask in (False, True)
        )
        for index, number in enumerate(self.states):
            yield number, (self._page(self._cut(values, index))[0], self._page(self._cut(known, index))[0])

    def _cut(self, by_rank: list[list[Bytes]], index: int) -> list[list[Bytes]]:
        """The bytes of states that lie in one of their pages."""
        return [
            [state[index * size :][:size] for size, state in zip(self.buffers, layers, strict=False)]
            for layers in by_rank
        ]

    def _state_of(self, channels: list[Bytes], heads: Bytes, rank: int, is_mask: bool) -> Bytes:
        """A rank's bytes of a state: the channels of each earlier token, what aligns, and its heads; or ones for values."""
        tokens = [share(part[past], rank, self.ranks) for past in range(PAST) for part in channels]
        window = np.concatenate(tokens)
        rest = share(heads, rank, self.ranks).reshape(-1)
        aligned = np.zeros(-len(window) % ALIGNMENT, np.uint8)
        if is_mask:
            window, rest = np.ones_like(window), np.ones_like(rest)
        return np.concatenate([window, aligned, rest])

    def _page(self, by_rank: list[list[Bytes]]) -> tuple[Bytes, Bytes]:
        """The page and its mask. by_rank: for each rank the bytes in each buffer, which may have more room."""
        page, mask = np.zeros((2, self.ranks, sum(self.buffers)), np.uint8)
        for rank, layers in enumerate(by_rank):
            start = 0
            for size, layer in zip(self.buffers, layers, strict=False):
                page[rank, start : start + layer.size] = layer.reshape(-1)
                mask[rank, start : start + layer.size] = 1
                start += size
        return page.reshape(-1), mask.reshape(-1)

"""How a page is divided among an engine's ranks, and pages of engines that divide them otherwise.

Owns: `PageShape`, the function that arranges a page of one shape as a page of another, and the fingerprint of engines with any
number of ranks. Never does: send or verify a page. Called by: the agreement of two engines, claims.

A page has the parts of all ranks, one after the other, and in each part the layers. Where a block has its heads one after the
other, a rank's part of a layer is a slice of the whole. Layers that every rank has, such as latents, are taken from one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Annotated, Final

import msgspec
import numpy as np

from core.api.config import EngineConfig
from core.api.kv_transfer import Page
from core.kv.fingerprint import fingerprint

MOST_RANKS: Final = 64
EXECUTOR: Final = "executor"

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 32)]
Arrange = Callable[[Page, Page], None]
"""Function that writes a page of the other engine's shape, its first argument, into one of this engine's."""


class PageShape(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The shape of an engine's pages.

    ranks: number of parts. places: (bytes, count) of successive layers in each part, alike in all; empty: pages are never
    divided otherwise, and `ranks` says nothing.
    """

    ranks: Count = 1
    places: list[tuple[Count, Count]] = []

    @classmethod
    def of(cls, ranks: int, places: list[int]) -> PageShape:
        """Return the shape of parts with so many bytes of each layer."""
        runs: list[tuple[int, int]] = []
        for size in places:
            if runs and runs[-1][0] == size:
                runs[-1] = (size, runs[-1][1] + 1)
            else:
                runs.append((size, 1))
        return cls(ranks, runs)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.ranks * sum(size * count for size, count in self.places)

    def sizes(self) -> list[int]:
        """Return the bytes of each layer in one part."""
        return [size for size, count in self.places for _ in range(count)]

    def why_not(self, other: PageShape) -> str:
        """Return why pages of another engine cannot be arranged for this one, with both values; empty: they can."""
        if self == other:
            return ""
        if self.ranks == other.ranks:
            return f"layers of {other.places} bytes and number instead of {self.places}"
        ranks = f"{other.ranks} ranks instead of {self.ranks}"
        if not (self.places and other.places and 0 < other.ranks <= MOST_RANKS):
            return f"{ranks}: these pages are not divided by heads"
        if min(self.ranks, other.ranks) > 1:
            return f"{ranks}: pages are arranged anew where one of two engines has one rank alone"
        numbers = [sum(count for _, count in shape.places) for shape in (other, self)]
        if numbers[0] != numbers[1]:  # before anything as long as the other end says is made
            return f"pages of {numbers[0]} layers instead of {numbers[1]}"
        whole, part = sorted((self, other), key=lambda shape: shape.ranks)
        for index, (of_whole, of_part) in enumerate(zip(whole.sizes(), part.sizes(), strict=True)):
            if of_part <= 0 or of_whole % of_part or part.ranks % (of_whole // of_part):
                sizes = (of_part, of_whole) if other is part else (of_whole, of_part)
                return (
                    f"{ranks}: layer {index} has {sizes[0]} bytes instead of {sizes[1]}, which divides into no slices"
                )
        return ""


UNDIVIDED: Final = PageShape()
"""The shape of pages that are never divided otherwise."""


def arrangement(theirs: PageShape, ours: PageShape) -> Arrange | None:
    """Return the function that arranges their pages for us, once `why_not` has found nothing; None: they are alike."""
    if theirs == ours:
        return None
    is_divided = theirs.ranks > 1
    whole, part = (ours, theirs) if is_divided else (theirs, ours)
    wholes, parts = whole.sizes(), part.sizes()
    slices = [
        (slice(end - size, end), slice(part_end - of_part, part_end), size // of_part)
        for size, end, of_part, part_end in zip(wholes, accumulate(wholes), parts, accumulate(parts), strict=True)
    ]

    def arrange(source: Page, target: Page) -> None:
        by_rank = (source if is_divided else target).reshape(part.ranks, -1)
        for of_whole, of_part, num_slices in slices:
            # Where there are more ranks than slices, successive ranks have the same one.
            same = part.ranks // num_slices
            if is_divided:
                target[of_whole].reshape(num_slices, -1)[:] = by_rank[::same, of_part]
            else:
                by_rank[:, of_part] = np.repeat(source[of_whole].reshape(num_slices, -1), same, axis=0)

    return arrange


def shared_fingerprint(config: EngineConfig, numerics: str) -> str:
    """Return the fingerprint of an engine, whatever computes its steps and in how many ranks: the shape says the rest."""
    plugins = config.plugins
    own = {name: values for name, values in plugins.arguments.items() if name.partition(".")[0] != EXECUTOR}
    table = tuple(row for row in plugins.table if row.kind != EXECUTOR)
    plugins = msgspec.structs.replace(plugins, table=table, arguments=own)
    return fingerprint(msgspec.structs.replace(config, plugins=plugins), numerics)

"""How a page is divided among an engine's ranks, as two engines tell each other.

Owns: `PageShape`, why pages of two shapes do not fit, and the fingerprint of engines with any number of ranks. Never does: move
a byte (`arrangement` does), send or verify a page. Called by: executors (describe their pages), the agreement of two engines.

A page has the parts of all ranks, one after the other, and in each part the layers of one group, a buffer each. A layer is one
or more sections, and each section of a rank is one of the equal pieces of a whole: the heads of a layer of attention are one
section, a latent is a section of one piece, which every rank has. A state has a section for each part of its convolution's
inputs and each earlier token, then its heads; it lies in as many pages as hold it, so that these are arranged together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from core.api.config import EngineConfig
from core.kv.fingerprint import fingerprint

MOST_RANKS: Final = 64
MOST_SHAPE: Final = 3072
"""Largest description in bytes, which fits into the messages of a handshake."""
EXECUTOR: Final = "executor"

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 32)]
Section = tuple[Count, Annotated[int, msgspec.Meta(ge=0, le=MOST_RANKS)]]
"""Bytes of a section in one rank, and the pieces of the whole; 0 pieces: bytes without meaning, which align what follows."""
Layer = list[Section]
Item = TypeVar("Item")


class Layers(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Successive layers that are alike. sections: of each. count: number of layers."""

    sections: Layer
    count: Count = 1


class GroupShape(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One group of layers. runs: its layers, each in the next buffer. pages: that hold a state; 0: a block has one page."""

    runs: list[Layers]
    pages: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0

    @classmethod
    def of(cls, layers: Sequence[Layer], pages: int = 0) -> GroupShape:
        """Return the shape of these layers."""
        return cls([Layers(layer, count) for layer, count in _runs(layers)], pages)

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return sum(run.count for run in self.runs)

    def layers(self) -> Iterator[Layer]:
        """Yield the sections of each layer."""
        for run in self.runs:
            for _ in range(run.count):
                yield run.sections


class PageShape(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The shape of an engine's pages.

    ranks: number of parts. buffers: (bytes, count) of successive buffers in each part, alike in all. groups: in the order of
    the KV groups; empty: pages are never divided otherwise, and `ranks` says nothing.
    """

    ranks: Count = 1
    buffers: list[tuple[Count, Count]] = []
    groups: list[GroupShape] = []

    @classmethod
    def of(cls, ranks: int, buffers: Sequence[int], groups: Sequence[GroupShape]) -> PageShape:
        """Return the shape of parts with so many bytes in each buffer; undivided where it takes too many words."""
        found = cls(ranks, _runs(buffers), list(groups))
        return found if len(msgspec.msgpack.encode(found)) <= MOST_SHAPE else cls(ranks)

    @property
    def part_bytes(self) -> int:
        """Bytes of one rank's part of a page."""
        return sum(size * count for size, count in self.buffers)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.ranks * self.part_bytes

    @property
    def num_state_pages(self) -> int:
        """Number of pages of a state, in all groups."""
        return sum(group.pages for group in self.groups)

    def sizes(self) -> list[int]:
        """Return the bytes of each buffer in one part."""
        return [size for size, count in self.buffers for _ in range(count)]

    def piece(self, pieces: int, rank: int) -> int:
        """Return which of the equal pieces of a section a rank has; with fewer pieces than ranks, successive ones share one."""
        return rank * pieces // self.ranks

    def why_not(self, other: PageShape) -> str:
        """Return why pages of another engine cannot be arranged for this one, with both values; empty: they can."""
        if self == other:
            return ""
        ranks = "" if other.ranks == self.ranks else f"{other.ranks} ranks instead of {self.ranks}: "
        if not (self.groups and other.groups and other.ranks <= MOST_RANKS):
            return f"{ranks}these pages are not divided by heads"
        # Numbers first, before anything as long as the other end says is made.
        for theirs, ours, what in (
            (sum(count for _, count in other.buffers), sum(count for _, count in self.buffers), "layers"),
            (len(other.groups), len(self.groups), "groups"),
        ):
            if theirs != ours:
                return f"{ranks}pages of {theirs} {what} instead of {ours}"
        if other.page_bytes > MOST_RANKS * self.page_bytes:  # a part has no more than a whole page, which ours has too
            return f"{ranks}pages of {other.page_bytes} bytes instead of {self.page_bytes}"
        for index, (theirs_of, ours_of) in enumerate(zip(other.groups, self.groups, strict=True)):
            why = _why_groups(theirs_of, ours_of) or _why_outside(other, theirs_of)
            if why:
                return f"{ranks}{why} in group {index}"
        return ""


UNDIVIDED: Final = PageShape()
"""The shape of pages that are never divided otherwise."""


def _why_groups(theirs: GroupShape, ours: GroupShape) -> str:
    """Return what differs in two groups beside the division among ranks; empty: nothing."""
    if bool(theirs.pages) != bool(ours.pages) or theirs.pages > MOST_RANKS * ours.pages:
        return f"states of {theirs.pages} pages instead of {ours.pages}"
    if theirs.num_layers != ours.num_layers:
        return f"{theirs.num_layers} layers instead of {ours.num_layers}"
    for index, (their_layer, our_layer) in enumerate(zip(theirs.layers(), ours.layers(), strict=True)):
        wholes = [[size * pieces for size, pieces in layer if pieces] for layer in (their_layer, our_layer)]
        if wholes[0] != wholes[1]:
            return f"layer {index} has {_told(wholes[0])} bytes instead of {_told(wholes[1])}"
    return ""


def _why_outside(shape: PageShape, group: GroupShape) -> str:
    """Return what in another engine's group is in no page of it, or in no rank; empty: nothing. Layers are as many as ours."""
    if group.num_layers > sum(count for _, count in shape.buffers):
        return f"{group.num_layers} layers in fewer buffers"
    for size, layer in zip(shape.sizes(), group.layers(), strict=False):
        held = sum(section for section, _ in layer)
        if held > max(group.pages, 1) * size:
            return f"a layer of {held} bytes in {max(group.pages, 1)} pages with {size}"
        if any(pieces > shape.ranks for _, pieces in layer):
            return f"a layer in more pieces than {shape.ranks} ranks have"
    return ""


def _told(wholes: Sequence[int]) -> str:
    """Return the sizes of the sections of a layer, in words that stay short."""
    return str(wholes[0]) if len(wholes) == 1 else f"{sum(wholes)} in {len(wholes)} sections"


def _runs(items: Iterable[Item]) -> list[tuple[Item, int]]:
    """Return equal successive items once, with their number."""
    runs: list[tuple[Item, int]] = []
    for item in items:
        if runs and runs[-1][0] == item:
            runs[-1] = (item, runs[-1][1] + 1)
        else:
            runs.append((item, 1))
    return runs


def shared_fingerprint(config: EngineConfig, numerics: str) -> str:
    """Return the fingerprint of an engine, whatever computes its steps and in how many ranks: the shape says the rest.

    Where ranks share heads of keys, a block keeps its bytes and a state does not, so that it has fewer pages in more ranks.
    """
    plugins = config.plugins
    own = {name: values for name, values in plugins.arguments.items() if name.partition(".")[0] != EXECUTOR}
    table = tuple(row for row in plugins.table if row.kind != EXECUTOR)
    plugins = msgspec.structs.replace(plugins, table=table, arguments=own)
    groups = tuple(
        msgspec.structs.replace(each, num_state_blocks=0, num_spare_blocks=0) for each in config.cache.groups
    )
    cache = msgspec.structs.replace(config.cache, groups=groups)
    return fingerprint(msgspec.structs.replace(config, plugins=plugins, cache=cache), numerics)

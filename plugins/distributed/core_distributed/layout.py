"""The layout of an engine's ranks, and the groups of them in shared memory.

Owns: `Layout`, which rank does what; `Groups`, one process's ends of the memory. Never does: start a rank, or compute.
Called by: the executors and the other ranks.

Ranks of one stage have successive numbers, and those of the last stage come first: rank 0, which draws tokens, has the logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from core_platforms.cpu.ranks import ALIGNMENT, SharedGroup, group_bytes

LINK_SLOT: Final = 4096
"""Bytes of a slot of two neighbouring ranks, which only use their stream."""


class Layout(msgspec.Struct, frozen=True):
    """How an engine's ranks divide a model.

    tensor: ranks that share each layer. stages: parts of the model's blocks, computed one after the other.
    """

    tensor: int = 1
    stages: int = 1

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.tensor * self.stages

    def stage_of(self, rank: int) -> int:
        """Return a rank's stage."""
        return self.stages - 1 - rank // self.tensor

    def place_of(self, rank: int) -> int:
        """Return a rank's place among those of its stage."""
        return rank % self.tensor

    def previous(self, rank: int) -> int:
        """Return the rank that a rank gets hidden states from."""
        return rank + self.tensor


class _Room(msgspec.Struct, frozen=True):
    """One group's place in the memory. ranks: its members, in the group's order."""

    kind: Literal["world", "stage", "link"]
    ranks: list[int]
    slot_bytes: int
    offset: int


def _rooms(layout: Layout, slot_bytes: int) -> Iterator[_Room]:
    """Yield the group of all ranks, those of each stage, and those of each two neighbours, the sender first."""
    firsts = range(0, layout.size, layout.tensor) if min(layout.stages, layout.tensor) > 1 else ()
    rooms = [
        _Room("world", list(range(layout.size)), slot_bytes, 0),
        *(_Room("stage", list(range(first, first + layout.tensor)), slot_bytes, 0) for first in firsts),
        *(_Room("link", [layout.previous(rank), rank], LINK_SLOT, 0) for rank in range(layout.size - layout.tensor)),
    ]
    offset = 0
    for room in rooms:
        yield msgspec.structs.replace(room, offset=offset)
        nbytes = group_bytes(len(room.ranks), room.slot_bytes)
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT


def layout_bytes(layout: Layout, slot_bytes: int) -> int:
    """Return the size of the memory of all groups."""
    *_, last = _rooms(layout, slot_bytes)
    return last.offset + group_bytes(len(last.ranks), last.slot_bytes)


class Groups:
    """One rank's ends of its groups.

    world: all ranks.
    stage: those that share this rank's layers; None: it has them alone. With one stage it is `world`.
    before, after: this rank and its neighbour in the previous stage, and in the next one; None: there is none.

    Rank 0 has an end of every group, so that it can end all of them.
    """

    def __init__(self, memory: int, rank: int, layout: Layout, slot_bytes: int) -> None:
        self.rank = rank
        self.layout = layout
        self.stage: SharedGroup | None = None
        self.before: SharedGroup | None = None
        self.after: SharedGroup | None = None
        self._all: list[tuple[SharedGroup, list[int]]] = []
        for room in _rooms(layout, slot_bytes):
            if rank not in room.ranks and rank != 0:
                continue
            own = room.ranks.index(rank) if rank in room.ranks else 0
            group = SharedGroup(memory, own, len(room.ranks), room.slot_bytes, room.offset)
            self._all.append((group, room.ranks))
            if room.kind == "world":
                self.world = group
            elif rank not in room.ranks:
                continue
            elif room.kind == "stage":
                self.stage = group
            else:
                group.begin(1)  # the only command of a link: its stream knows no others
                if own == 0:
                    self.after = group
                else:
                    self.before = group
        if layout.stages == 1:
            self.stage = self.world

    def set_patience(self, limit_s: float, spin_microseconds: int) -> None:
        """Set how long to wait for a silent rank, 0 for ever, and how long to look for it before going to sleep."""
        for group, _ in self._all:
            group.set_patience(limit_s, spin_microseconds)

    def end(self) -> None:
        """Break all groups: no rank waits for another one any more."""
        for group, _ in self._all:
            group.end()

    @property
    def late(self) -> int:
        """The rank that this one has waited for in vain."""
        return next((ranks[group.late] for group, ranks in self._all if group.late >= 0), 0)

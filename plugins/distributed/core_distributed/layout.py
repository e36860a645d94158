"""The layout of an engine's ranks, and the groups of them: in shared memory, and over several hosts.

Owns: `Layout`, which rank does what; `Groups`, one process's ends. Never does: start a rank, or compute.
Called by: the executors and the other ranks.

Ranks of one stage have successive numbers, and those of the last stage come first: rank 0, which draws tokens, has the logits.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Final, Literal

import msgspec
import numpy as np
import zmq

from core_distributed.hosts.meeting import Meeting
from core_distributed.hosts.sockets import Sockets
from core_distributed.hosts.spanning import SpanningGroup
from core_distributed.hosts.wire import Wire
from core_platforms.cpu.ranks import ALIGNMENT, SharedGroup, group_bytes

Group = SharedGroup | SpanningGroup

LINK_SLOT: Final = 4096
"""Bytes of a slot of two neighbouring ranks, which only use their stream."""


class Layout(msgspec.Struct, frozen=True):
    """How an engine's ranks divide a model.

    tensor: ranks that share each layer. stages: parts of the model's blocks, computed one after the other.
    hosts: machines, each with successive ranks, equally many.
    """

    tensor: int = 1
    stages: int = 1
    hosts: int = 1

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.tensor * self.stages

    @property
    def of_host(self) -> int:
        """Number of ranks on each host."""
        return self.size // self.hosts

    def host_of(self, rank: int) -> int:
        """Return a rank's host."""
        return rank // self.of_host

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
    """One group's place in the memory of a host.

    ranks: its members, in the group's order. local: those of this host, at least one.
    hosts: the hosts of its members, in their order.
    port: of its first wire, counted from the first wire of all; a group of N hosts has N - 1.
    """

    kind: Literal["world", "stage", "link"]
    ranks: list[int]
    slot_bytes: int
    offset: int = 0
    local: list[int] = []
    hosts: list[int] = []
    port: int = 0


def _rooms(layout: Layout, slot_bytes: int, host: int) -> Iterator[_Room]:
    """Yield the group of all ranks, those of each stage, and those of each two neighbours, the sender first.

    host: whose memory; groups without a rank there are left out.
    """
    firsts = range(0, layout.size, layout.tensor) if min(layout.stages, layout.tensor) > 1 else ()
    rooms = [
        _Room("world", list(range(layout.size)), slot_bytes),
        *(_Room("stage", list(range(first, first + layout.tensor)), slot_bytes) for first in firsts),
        *(_Room("link", [layout.previous(rank), rank], LINK_SLOT) for rank in range(layout.size - layout.tensor)),
    ]
    offset = port = 0
    for room in rooms:
        hosts = list(dict.fromkeys(map(layout.host_of, room.ranks)))
        local = [rank for rank in room.ranks if layout.host_of(rank) == host]
        if local:
            yield msgspec.structs.replace(room, offset=offset, local=local, hosts=hosts, port=port)
            offset += _room_bytes(room, local)
        port += len(hosts) - 1


def _room_bytes(room: _Room, local: list[int]) -> int:
    """Return the bytes of a group in the memory; a group of several hosts has a page of its own behind its numbers."""
    nbytes = -(-group_bytes(len(local), room.slot_bytes) // ALIGNMENT) * ALIGNMENT
    return nbytes + ALIGNMENT * (len(local) < len(room.ranks))


def layout_bytes(layout: Layout, slot_bytes: int, host: int = 0) -> int:
    """Return the size of the memory of all groups on a host."""
    *_, last = _rooms(layout, slot_bytes, host)
    return last.offset + _room_bytes(last, last.local)


def num_wires(layout: Layout) -> int:
    """Return the number of wires between hosts, each of which has a port."""
    return max(
        (room.port + len(room.hosts) - 1 for host in range(layout.hosts) for room in _rooms(layout, LINK_SLOT, host)),
        default=0,
    )


class Groups:
    """One rank's ends of its groups.

    world: all ranks.
    stage: those that share this rank's layers; None: it has them alone. With one stage it is `world`.
    before, after: this rank and its neighbour in the previous stage, and in the next one; None: there is none.

    Rank 0 has an end of every group in its host's memory, so that it can end all of them.
    """

    def __init__(self, memory: int, rank: int, layout: Layout, slot_bytes: int, meeting: Meeting | None = None) -> None:
        self.rank = rank
        self.layout = layout
        self.stage: Group | None = None
        self.before: Group | None = None
        self.after: Group | None = None
        self._all: list[tuple[Group, list[int]]] = []
        self._wires: list[Wire] = []
        self._meeting = meeting
        self._sockets = None if meeting is None else Sockets(meeting.key_file)
        for room in _rooms(layout, slot_bytes, layout.host_of(rank)):
            if rank not in room.local and rank != 0:
                continue
            group = self._open(memory, room)
            if room.kind == "world":
                self.world = group
            elif rank not in room.ranks:
                continue
            elif room.kind == "stage":
                self.stage = group
            else:
                group.begin(1)  # the only command of a link: its stream knows no others
                if room.ranks.index(rank) == 0:
                    self.after = group
                else:
                    self.before = group
        if layout.stages == 1:
            self.stage = self.world

    def _open(self, memory: int, room: _Room) -> Group:
        """Open this rank's end of a group, or of another one's ranks on this host."""
        own = room.local.index(self.rank) if self.rank in room.local else 0
        local = SharedGroup(memory, own, len(room.local), room.slot_bytes, room.offset)
        if self._meeting is None or len(room.local) == len(room.ranks) or self.rank not in room.local:
            self._all.append((local, room.local))
            return local
        page = mmap.mmap(memory, ALIGNMENT, offset=room.offset + _room_bytes(room, room.local) - ALIGNMENT)
        given_up = np.frombuffer(page, np.int64, 1)
        counts = [sum(self.layout.host_of(rank) == host for rank in room.ranks) for host in room.hosts]
        place = room.hosts.index(self.layout.host_of(self.rank))
        wire = None if own else self._wire(room, self._meeting, place, given_up if len(room.local) > 1 else None)
        group = SpanningGroup(local, given_up, wire, counts, place)
        self._all.append((group, room.ranks))
        return group

    def _wire(self, room: _Room, meeting: Meeting, place: int, given_up: np.ndarray | None) -> Wire:
        """Open the wire of a group of several hosts. given_up: see `SpanningGroup`; None: this rank is alone here."""
        assert self._sockets is not None
        hub = meeting.addresses[room.hosts[0]]
        port = meeting.port + room.port  # that of the wire to place 1 is the next one
        if place:
            peers = {0: self._sockets.connect(zmq.DEALER, hub, port + place)}
        else:
            peers = {other: self._sockets.listen(zmq.DEALER, hub, port + other) for other in range(1, len(room.hosts))}
        check = None if given_up is None else lambda command: int(given_up[0]) >= command
        wire = Wire(meeting.session, place, len(room.hosts), peers, check)
        self._wires.append(wire)
        return wire

    def set_patience(self, limit_s: float, spin_microseconds: int) -> None:
        """Set how long to wait for a silent rank, 0 for ever, and how long to look for it before going to sleep."""
        for group, _ in self._all:
            group.set_patience(limit_s, spin_microseconds)

    def end(self) -> None:
        """Break all groups: no rank waits for another one any more."""
        for group, _ in self._all:
            group.end()

    def close(self, linger_s: float) -> None:
        """Close what leads to other hosts. linger_s: seconds that the last commands have to be sent."""
        for wire in self._wires:
            wire.close()
        if self._sockets is not None:
            self._sockets.close(linger_s)

    @property
    def late(self) -> int:
        """The rank that this one has waited for in vain."""
        return next((ranks[group.late] for group, ranks in self._all if group.late >= 0), 0)

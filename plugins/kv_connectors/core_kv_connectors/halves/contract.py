"""The contract of worker halves, which move the bytes of KV blocks between an engine's arena and a place of their own.

Owns: `WorkerHalf`, and the types of its calls. Never does: import torch, copy a block. Called by: plugins (they implement it),
`HalfThread` (calls it), the worker (describes its arena).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable


class BlockName(NamedTuple):
    """The name of a block's page wherever it is stored: two pages with equal names have equal bytes.

    weights: fingerprint of everything besides tokens that values depend on, as 32 hex digits. group: of layers; a page of a
    state has one after those. digest, payload: of the block's `PrefixKey`; compare both.
    """

    weights: str
    group: int
    digest: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a worker half needs to load some blocks.

    names: of the blocks, in the order of the slots. data: what the scheduler's half adds, such as an address.
    """

    names: tuple[BlockName, ...]
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of an arena. A page is the rows of one slot in all buffers, one after the other.

    num_slots: rows of each buffer, of which row 0 is never named. widths: bytes of a row of each buffer. block_size: tokens of
    a block.
    """

    num_slots: int
    widths: tuple[int, ...]
    block_size: int

    @property
    def page_bytes(self) -> int:
        """Bytes of one slot in all buffers."""
        return sum(self.widths)


Arena = tuple[Any, ...]
"""The memory of the KV cache: torch tensors uint8 [num_slots, width], on the engine's device, not always contiguous."""


class Moved(NamedTuple):
    """Slots whose transfer has ended since the last call. failed: the page is not there, or was not stored."""

    done: Sequence[int] = ()
    failed: Sequence[int] = ()


@runtime_checkable
class WorkerHalf(Protocol):
    """The half of a KV connector that runs beside the worker, whose memory it reads and writes while steps are computed.

    All calls come from one thread, which is neither that of the steps nor that of the scheduler, so a call may block and may do
    the whole transfer. Until `poll` names a slot the engine neither uses nor changes it; afterwards the half must not touch it.
    A slot is in one transfer at a time.

    An exception of `load` or `save` fails all slots of that call, of which nothing may touch the arena any more. One of
    `register` or `poll` ends the connector, and its slots stay taken until the engine starts again.
    """

    def register(self, arena: Arena, layout: Layout) -> None:
        """Use this memory from now on. Called before every other call, and again when the cache was allocated anew."""
        ...

    def release(self) -> None:
        """End all transfers and drop every reference to the arena: it is about to be freed. Their slots need no report."""
        ...

    def load(self, ticket: Ticket, slots: Sequence[int]) -> None:
        """Fill slots with the pages that the ticket names, or begin to.

        A page is verified (name, size, checksum of its bytes) before its slot is reported as done: kernels of any stream must
        see its bytes by then. One that is missing or damaged is reported as failed.
        """
        ...

    def save(self, slots: Sequence[int], names: Sequence[BlockName]) -> None:
        """Store the pages in slots under their names, or begin to. No other engine may find a page that is not complete."""
        ...

    def drop(self, names: Sequence[BlockName]) -> None:
        """Never load these pages again, stored or about to be: their values are wrong, or the user has reset the cache."""
        ...

    def poll(self) -> Moved:
        """Return the slots whose transfer has ended. Called after every call above, and each millisecond while any is left."""
        ...

    def close(self) -> None:
        """End all transfers and free what the half owns."""
        ...

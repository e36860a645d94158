"""What KV events have said so far, for subscribers that come late or have missed some.

Owns: `EventHistory`: the newest batches as they were sent, and the blocks that all older ones leave. Never does: send. Called
by: the publisher's thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from core_kv_connectors.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEvent, KVEventBatch

Place = tuple[str | None, int | None]
"""Medium and group."""


class Block(NamedTuple):
    """A block that is available. like: an event of its group, for what all its blocks have in common."""

    parent: BlockHash | None
    token_ids: list[int]
    like: BlockStored


class EventHistory:
    """The batches of one publisher. most: number of batches that are kept as they were sent."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sent: deque[tuple[int, bytes]] = deque()
        self._blocks: dict[Place, dict[BlockHash, Block]] = {}
        self._number = -1

    def add(self, number: int, payload: bytes) -> None:
        """Keep a batch; the oldest one may become part of what all older ones leave."""
        self._sent.append((number, payload))
        while len(self._sent) > self._most:
            self._number, oldest = self._sent.popleft()
            for event in msgspec.msgpack.decode(oldest, type=KVEventBatch).events:
                self._apply(event)

    def since(self, first: int) -> Iterator[tuple[int, bytes]]:
        """Yield number and content of the batches from `first` on.

        Where batches among them are no longer kept, one that clears everything and stores what they left comes first, under
        the number of the last of them.
        """
        if first <= self._number:
            yield self._number, msgspec.msgpack.encode(KVEventBatch(time.time(), list(self._snapshot())))
        for number, payload in self._sent:
            if number >= first:
                yield number, payload

    def _apply(self, event: KVEvent) -> None:
        if isinstance(event, AllBlocksCleared):
            self._blocks.clear()
            return
        place = self._blocks.setdefault((event.medium, event.group_idx), {})
        if isinstance(event, BlockRemoved):
            for removed in event.block_hashes:
                place.pop(removed, None)
            return
        parent, size = event.parent_block_hash, event.block_size
        has_chain = bool(event.token_ids)
        like = msgspec.structs.replace(event, block_hashes=[], token_ids=[], parent_block_hash=None)
        for index, stored in enumerate(event.block_hashes):
            place[stored] = Block(parent, event.token_ids[index * size : (index + 1) * size], like)
            parent = stored if has_chain else None

    def _snapshot(self) -> Iterator[KVEvent]:
        yield AllBlocksCleared()
        for blocks in self._blocks.values():
            last: BlockStored | None = None
            for stored, block in blocks.items():
                follows = last is not None and block.parent == (last.block_hashes[-1] if block.token_ids else None)
                if last is not None and follows:
                    last.block_hashes.append(stored)
                    last.token_ids += block.token_ids
                    continue
                if last is not None:
                    yield last
                last = msgspec.structs.replace(
                    block.like, block_hashes=[stored], parent_block_hash=block.parent, token_ids=list(block.token_ids)
                )
            if last is not None:
                yield last

"""The world in which KV connectors are checked: a KV manager, and a device whose blocks hold bytes derived from their tokens.

Owns: `World`, and the prompts of the checks. Never does: check a connector, but for the bytes of the pages that come back.
Called by: the checks of connectors.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from core.api.kv_load import KVLoad
from core.api.kv_transfer import KVTransfers, Page, PrefixKey
from core.kv.connector import KVConnector
from core.kv.connectors import KVConnectors
from core.kv.manager import KVManager
from core.kv.prefix_hit import PrefixHit
from core.kv.sequence import KVSequence
from core.plugin.hookspecs import LoadContext
from core.plugin.table import load_plugin
from core_kit.case import Failure, Subject
from core_kit.fixtures.kv_context import BLOCK_SIZE, PAGE_BYTES
from core_kv_connectors.halves.connector import SplitConnector
from core_kv_connectors.halves.contract import Arena, Layout
from core_kv_connectors.halves.link import Link
from core_kv_connectors.halves.thread import HalfThread

NUM_BLOCKS = 10
WIDTH = PAGE_BYTES // 4
"""Bytes of a block in the first buffer of an arena; the rest is in the second."""
ONE, TWO, THREE, UNKNOWN = (list(range(start, start + 8 * BLOCK_SIZE + 1)) for start in (0, 100, 200, 300))
PATIENCE_S = 15.0


class Strict(KVConnectors):
    """Wrapper that passes a connector's failure to the check instead of disabling the connector."""

    def _leave_out(self, connector: KVConnector, method: str, error: Exception) -> None:
        raise Failure(f"{method} raised {type(error).__name__}: {error}") from error


class World:
    """A KV manager with one connector, and a device whose blocks hold bytes derived from their tokens."""

    def __init__(self, connector: KVConnector) -> None:
        self.connector = connector
        self.connectors = Strict([connector])
        self.blocks = np.zeros((NUM_BLOCKS, PAGE_BYTES), np.uint8)
        self.start_over()

    def start_over(self) -> None:
        """Replace the pool by a new one with nothing cached."""
        self.kv = KVManager(NUM_BLOCKS, BLOCK_SIZE, connectors=self.connectors, max_step_tokens=64)

    def run(self, tokens: Sequence[int], tenant: str = "") -> int:
        """Compute a sequence and release it; returns the number of its tokens that came from the cache. Raises Failure."""
        sequence = KVSequence(list(tokens), tenant=tenant)
        hit = self.plan(sequence)
        self.kv.check_integrity([sequence])
        if not self.kv.copy_now(self.copy):
            raise AssertionError("copies of the kit do not fail")
        for index, block_id in enumerate(sequence.block_ids[0]):
            chunk = tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
            value = sum(chunk) % 251
            if index * BLOCK_SIZE >= hit.num_tokens:
                self.blocks[block_id] = value
            elif (self.blocks[block_id] != value).any():
                raise Failure(f"the page of block {index} came back with other bytes than it was saved with")
        sequence.num_computed_tokens = len(tokens)
        self.kv.free(sequence)
        self.connectors.after_step(self.kv)
        self._rest()
        return hit.num_tokens

    def plan(self, sequence: KVSequence) -> PrefixHit:
        """Give a sequence its blocks, as a step is planned: look-ups, evictions. Returns what came from the cache."""
        hit = self._look_up(sequence)
        self.kv.attach(sequence, hit)
        self.kv.allocate_slots(sequence, len(sequence.token_ids) - hit.num_tokens)
        return hit

    def save_all(self, seconds: float) -> None:
        """Let the connector save what it lacks, as at the end of an engine."""
        self.connector.save_all(self.kv, self.copy, seconds)

    def fill(self) -> None:
        """Make prompts evict one another, so that their pages are offered to the connector."""
        for tokens in (ONE, TWO, THREE):
            self.run(tokens)

    def keys(self, tokens: Sequence[int]) -> list[PrefixKey]:
        """Return the keys of a prompt's full blocks."""
        sequence = KVSequence(list(tokens))
        return [self.kv.key(sequence, index) for index in range(len(tokens) // BLOCK_SIZE)]

    def copy(self, transfers: KVTransfers) -> list[Page]:
        """Perform the device's part of the transfers."""
        pages = [self.blocks[block_id].copy() for block_id in transfers.saves]
        for block_id, page in transfers.loads:
            if page.shape != (PAGE_BYTES,) or page.dtype != np.uint8:
                raise Failure(f"a page came back as {page.dtype} {page.shape}, expected uint8 ({PAGE_BYTES},)")
            self.blocks[block_id] = page
        return pages

    def connect(self, half: HalfThread) -> None:
        """Connect the worker half of a connector that moves blocks itself, and give it the blocks."""
        assert isinstance(self.connector, SplitConnector), "other connectors have no worker half"
        half.wake = self.connectors.loads.news.set
        arena = arena_of(self.blocks)
        half.register(arena, Layout(NUM_BLOCKS, tuple(part.shape[1] for part in arena), BLOCK_SIZE))
        self.connector.connect(Link(half, self.copy, lambda: None))

    def _rest(self) -> None:
        """Give a connector idle time; one with a worker half gets it until all blocks are free, which the next prompt needs."""
        end = time.monotonic() + PATIENCE_S
        pause = self.connectors.save_idle(self.kv, self.copy)
        while pause is not None and isinstance(self.connector, SplitConnector):
            if time.monotonic() > end:
                raise Failure(
                    f"a worker half has not reported its slots after {PATIENCE_S:g} s; poll names each slot once"
                )
            time.sleep(0.001)
            pause = self.connectors.save_idle(self.kv, self.copy)

    def _look_up(self, sequence: KVSequence) -> PrefixHit:
        found = self.kv.lookup(sequence)
        if isinstance(found, KVLoad):
            for _ in range(int(PATIENCE_S / 0.05)):
                if self.kv.loads.is_over(sequence.load):
                    break
                self.kv.loads.wait(0.05)
                self.connectors.after_step(self.kv)  # an engine's steps go on meanwhile
            else:
                raise Failure(f"a load was not done after {PATIENCE_S:g} s; every load ends with load.finish()")
            found = self.kv.lookup(sequence)
        if isinstance(found, KVLoad):
            raise Failure("a second load began for a sequence whose load was done")
        return found


def arena_of(blocks: np.ndarray) -> Arena:
    """Return blocks, uint8 [slots, PAGE_BYTES], as an arena of two buffers, which are columns of them."""
    import torch

    whole = torch.from_numpy(blocks)
    return whole[:, :WIDTH], whole[:, WIDTH:]


def open_half(subject: Subject, context: LoadContext) -> HalfThread:
    """Open the worker half of a connector. context: that of its other half."""
    options = {**context.options, "half": "worker"}
    return HalfThread(load_plugin(subject.manifest, replace(context, options=options)), subject.name)


def new_world(subject: Subject, context: LoadContext) -> World:
    """Make a world with a new connector, whose halves are connected if it has two."""
    connector: KVConnector = load_plugin(subject.manifest, context)
    world = World(connector)
    if isinstance(connector, SplitConnector):
        world.connect(open_half(subject, context))
    return world


@contextlib.contextmanager
def opened(subject: Subject) -> Iterator[World]:
    """Open a world with a new connector."""
    world = new_world(subject, subject.context())
    try:
        yield world
    finally:
        world.connector.close(1.0)

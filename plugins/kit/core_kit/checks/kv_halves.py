"""Checks of worker halves: every slot is reported, with its own page or as failed, and the arena is let go of.

Owns: the checks. Never does: check the half beside the scheduler; `core_kit.checks.kv_connector` does, with both connected.
Called by: `core_kit.checks.kv_connector`, which lists them.
"""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from core_kit.case import Failure, Skipped, Subject
from core_kit.checks.kv_world import PATIENCE_S, arena_of, open_half, opened
from core_kit.fixtures.kv_context import BLOCK_SIZE, PAGE_BYTES, PRINT
from core_kv_connectors.halves.connector import SplitConnector
from core_kv_connectors.halves.contract import BlockName, Layout, Ticket
from core_kv_connectors.halves.thread import HalfThread

NUM_SLOTS = 8
NAMES = tuple(BlockName(PRINT, 0, bytes([index]) * 32, bytes([index]) * 16) for index in range(4))
OTHERS = {
    "weights": NAMES[0]._replace(weights="0b" * 16),
    "group": NAMES[0]._replace(group=1),
    "digest": NAMES[0]._replace(digest=b"\xff" * 32),
    "payload": NAMES[0]._replace(payload=b"\xff" * 16),
}
"""Names of other blocks, by the part in which each differs from the first of `NAMES`."""


class Bench:
    """A worker half on its thread, with an arena of the kit."""

    def __init__(self, subject: Subject) -> None:
        self.half: HalfThread = open_half(subject, subject.context())
        self.register()

    def register(self) -> None:
        """Give the half a new arena, whose rows hold their numbers."""
        self.blocks = np.repeat(np.arange(NUM_SLOTS, dtype=np.uint8)[:, None], PAGE_BYTES, axis=1)
        arena = arena_of(self.blocks)
        self.half.register(arena, Layout(NUM_SLOTS, tuple(part.shape[1] for part in arena), BLOCK_SIZE))

    def load(self, names: Sequence[BlockName], slots: Sequence[int]) -> dict[int, bool]:
        """Load pages; returns what was reported. Raises Failure."""
        self.half.load(Ticket(tuple(names)), slots)
        return self.reports(slots)

    def save(self, slots: Sequence[int], names: Sequence[BlockName]) -> dict[int, bool]:
        """Save pages; returns what was reported. Raises Failure."""
        self.half.save(slots, names)
        return self.reports(slots)

    def reports(self, slots: Sequence[int]) -> dict[int, bool]:
        """Wait for the reports of slots. Raises Failure."""
        found: dict[int, bool] = {}
        end = time.monotonic() + PATIENCE_S
        while len(found) < len(slots):
            for slot, is_done in self.half.poll():
                found[slot] = is_done
            if time.monotonic() > end:
                missing = sorted(set(slots) - set(found))
                raise Failure(f"slots {missing} were not reported within {PATIENCE_S:g} s; poll names each slot once")
            time.sleep(0.001)
        return found


def a_page_comes_back(subject: Subject) -> None:
    """A saved page is loaded into any slot with the bytes that it had, or reported as failed."""
    with _bench(subject) as bench:
        saved = bench.save((1, 2), NAMES[:2])
        before = bench.blocks.copy()
        loaded = bench.load(NAMES[:2], (5, 4))
        for source, target in ((1, 5), (2, 4)):
            if loaded[target] and not saved[source]:
                raise Failure(f"slot {source} was reported as not saved, and its page was loaded")
            if loaded[target] and (bench.blocks[target] != before[source]).any():
                raise Failure(f"slot {target} was reported as done with other bytes than slot {source} was saved with")
        for slot in set(range(NUM_SLOTS)) - {4, 5}:
            if (bench.blocks[slot] != before[slot]).any():
                raise Failure(f"slot {slot} was changed, although no load named it")


def other_names_fail(subject: Subject) -> None:
    """A page that was never saved, or has another name in any part, is reported as failed."""
    with _bench(subject) as bench:
        bench.save((1,), NAMES[:1])
        for part, name in OTHERS.items():
            if bench.load((name,), (3,))[3]:
                raise Failure(f"a page was loaded under a name with another {part}; compare all parts of names")


def dropped_pages_fail(subject: Subject) -> None:
    """A page that was dropped is reported as failed, and one that was never saved may be dropped."""
    with _bench(subject) as bench:
        bench.half.save((1, 2), NAMES[:2])
        bench.half.drop((NAMES[0], NAMES[3]))
        bench.reports((1, 2))
        if bench.load(NAMES[:1], (3,))[3]:
            raise Failure("a page was loaded after drop, which was called right after its save")


def an_arena_is_let_go_of(subject: Subject) -> None:
    """After release nothing refers to the arena, and the half works with the next one."""
    with _bench(subject) as bench:
        bench.save((1,), NAMES[:1])
        old = weakref.ref(bench.blocks)
        if not bench.half.release():
            raise Failure("release did not return")
        bench.register()
        gc.collect()
        if old() is not None:
            raise Failure("the half refers to the arena after release, so that its memory cannot be freed")
        if bench.load(NAMES[:1], (3,))[3] and (bench.blocks[3] != 1).any():
            raise Failure("a page came back with other bytes after the arena was exchanged")


def ranks_are_refused(subject: Subject) -> None:
    """The manifest declares that there is one rank, so that others are refused before any weight is read."""
    with _bench(subject):
        declared = subject.manifest.spec.constraints
    missing = [name for name in ("tensor_parallel_size", "pipeline_parallel_size") if declared.get(name) != [1]]
    if missing:
        wanted = ", ".join(f'"{name}": [1]' for name in missing)
        raise Failure(f"a worker half serves one rank; add {{{wanted}}} to the constraints of core_spec")


@contextlib.contextmanager
def _bench(subject: Subject) -> Iterator[Bench]:
    with opened(subject) as world:
        if not isinstance(world.connector, SplitConnector):
            raise Skipped("it has no worker half: the engine moves its pages")
    bench = Bench(subject)
    try:
        yield bench
    finally:
        bench.half.close(1.0)


CHECKS: tuple[Callable[[Subject], None], ...] = (
    a_page_comes_back,
    other_names_fail,
    dropped_pages_fail,
    an_arena_is_let_go_of,
    ranks_are_refused,
)

"""Checks of KV connectors under faults: files that are missing, short, damaged or exchanged, a full disk, loads that end early.

Owns: these checks, and the faults. Never does: damage a file outside of the directories that the connector was given.
Called by: `core_kit.checks.kv_connector`, which lists them.

A fault costs hits alone: no page has wrong bytes, nothing raises, and a later prompt is served.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from core.api.kv_load import KVLoad
from core.kv.prefix_needs import PrefixNeeds
from core.kv.sequence import KVSequence
from core_kit.case import Failure, Subject
from core_kit.checks.kv_world import ONE, PATIENCE_S, TWO, UNKNOWN, World, new_world, opened
from core_kit.fixtures.kv_context import BLOCK_SIZE

FULL_AT_BYTES = 16
"""Size at which the simulated disk refuses to let a file grow: smaller than a page."""
FLUSH_S = 2.0
SYSTEM_CALLS = ("stat", "open", "listdir", "scandir", "unlink", "rename", "replace", "mkdir", "utime")

FAULTS: tuple[tuple[str, Callable[[bytes, bytes], bytes | None]], ...] = (
    ("missing", lambda content, other: None),
    ("empty", lambda content, other: b""),
    ("short", lambda content, other: content[: len(content) // 2]),
    ("longer than it was", lambda content, other: content + content),
    ("damaged at its end", lambda content, other: content[:-1] + bytes([content[-1] ^ 1])),
    ("damaged at its start", lambda content, other: bytes([content[0] ^ 1]) + content[1:]),
    ("exchanged with another one", lambda content, other: other),
)
"""What may happen to a file → its content afterwards, from its own and that of another file; None: it is deleted."""


def contains_is_kept(subject: Subject) -> None:
    """What `contains` says is in memory, `get` returns."""
    with opened(subject) as world:
        world.fill()
        for key in world.keys(ONE):
            if world.connector.contains(0, key) and world.connector.get(0, key) is None:
                raise Failure("contains returned True for a page, and get returned None for it right after")


def other_tenants_get_nothing(subject: Subject) -> None:
    """A prompt of another tenant with the same tokens finds no page."""
    with opened(subject) as world:
        world.fill()
        found = world.run(ONE, tenant="another")
        if found:
            raise Failure(f"{found} tokens were taken from pages of another tenant; compare the digest of keys")


def faulty_files_are_computed(subject: Subject) -> None:
    """Pages in files that are missing, short, damaged or exchanged are computed."""
    context = subject.context()
    foreign = _files(subject)
    for title, harm in FAULTS:
        for path in _files(subject, foreign):  # a connector need not replace what a fault before has left
            path.unlink()
        _fill_and_close(subject, context)
        files = [path for path in _files(subject, foreign) if path.stat().st_size]
        contents = [path.read_bytes() for path in files]
        for number, path in enumerate(files):
            harmed = harm(contents[number], contents[number - 1])
            path.unlink() if harmed is None else path.write_bytes(harmed)
        with _reopened(subject, context) as world:
            try:
                world.fill()
            except Failure as failure:
                raise Failure(f"with each file {title}: {failure}") from failure


def a_full_disk_is_borne(subject: Subject) -> None:
    """On a full disk nothing raises, and no page has wrong bytes."""
    with opened(subject) as world:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_AT_BYTES, limits[1]))
        try:
            for _ in range(2):
                world.fill()
            world.save_all(FLUSH_S)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        world.fill()


def every_load_ends(subject: Subject) -> None:
    """A load of pages that were never saved ends without one, and a load may be ended before it is done."""
    with opened(subject) as world:
        world.fill()
        load = _load(world, UNKNOWN)
        world.connector.start_load(load)
        limit = time.monotonic() + PATIENCE_S
        while not world.connector.is_loaded(load):
            if time.monotonic() > limit:
                raise Failure(f"a load was not done after {PATIENCE_S:g} s; every load ends with load.finish()")
            time.sleep(0.001)
        if load.pages:
            raise Failure("a load of a prompt that was never computed has pages")
        world.connector.end_load(load)
        early = _load(world, TWO)
        world.connector.start_load(early)
        world.connector.end_load(early)
        early.finish()
        if world.connector.is_loaded(early) is not True:
            raise Failure("is_loaded does not return True for a load that has ended")


def nothing_is_read_while_planning(subject: Subject) -> None:
    """No method that is called while a step is planned opens, looks up or deletes a file on that thread."""
    with opened(subject) as world:
        world.fill()
        with _watched():
            for tokens in (ONE, TWO, UNKNOWN):
                sequence = KVSequence(list(tokens))
                world.plan(sequence)
                world.kv.free(sequence, keep_cached=False)


def _fill_and_close(subject: Subject, context: Any) -> None:
    with _reopened(subject, context) as world:
        world.fill()
        world.save_all(FLUSH_S)


@contextlib.contextmanager
def _reopened(subject: Subject, context: Any) -> Iterator[World]:
    """Open a world whose connector finds what an earlier one with the same context has left."""
    world = new_world(subject, context)
    try:
        yield world
    finally:
        world.connector.close(FLUSH_S)


def _files(subject: Subject, foreign: Collection[Path] = ()) -> list[Path]:
    """Return the files in the directories that the connector was given, but for the foreign ones, sorted by name."""
    given = [Path(value) for value in subject.arguments.values() if isinstance(value, str) and value]
    roots = [subject.directory, *(path for path in given if path.is_absolute() and path.is_dir())]
    found = {path for root in roots for path in root.rglob("*") if path.is_file() and not path.is_symlink()}
    return sorted(found.difference(foreign))


def _load(world: World, tokens: list[int]) -> KVLoad:
    """Return a load of all blocks of a prompt, none of which is in the pool."""
    keys = world.keys(tokens)
    load = KVLoad(PrefixNeeds(world.kv.growth, BLOCK_SIZE), keys)
    load.in_pool = [bytearray(len(keys))]
    return load


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Have calls of the file system on this thread raise Failure."""
    planner = threading.get_ident()

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == planner:
                raise Failure(f"{name} was called on the thread that plans steps; call it on a thread of the connector")
            return real(*args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for name in SYSTEM_CALLS:
            stack.enter_context(mock.patch.object(os, name, watched(f"os.{name}", getattr(os, name))))
        stack.enter_context(mock.patch.object(builtins, "open", watched("open", builtins.open)))
        yield


CHECKS: tuple[Callable[[Subject], None], ...] = (
    contains_is_kept,
    other_tenants_get_nothing,
    faulty_files_are_computed,
    a_full_disk_is_borne,
    every_load_ends,
    nothing_is_read_while_planning,
)

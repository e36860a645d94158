"""Reading of a journal's content when it is opened.

Owns: `Entry`, and assembling entries from records in any order, some of them damaged or missing. Never does: write, or
decide what becomes of an entry. Called by: the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from core.api.errors import UNREADABLE
from core.api.messages import EngineOutput
from core_apis.journal.records import Accepted, Begun, Ended, FileHead, Frame, Given, Kind, Shown, frames

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class Entry:
    """One request. Exactly one of `ended` and `accepted` is set.

    number:   of the entry, never reused.
    seeds:    of the prompts that had begun, by their places.
    shown:    the prompts whose outputs were shown, one after the other; empty if there is only one.
    steps:    the outputs of each prompt, step by step.
    num_records: count so far; the next record has this number.
    num_bytes: of the live records.
    """

    number: int
    accepted: Accepted | None = None
    ended: Ended | None = None
    seeds: dict[int, int] = field(default_factory=dict)
    steps: dict[int, list[list[EngineOutput]]] = field(default_factory=dict)
    shown: list[int] = field(default_factory=list)
    num_records: int = 0
    num_bytes: int = 0


@dataclass(slots=True)
class Contents:
    """The content of a journal.

    entries: in the order in which they were accepted. head: of the newest file; None: there is none. next_entry: free.
    """

    entries: list[Entry]
    head: FileHead | None
    next_entry: int


def read(paths: Iterable[Path]) -> Contents:
    """Read the combined content of these files, oldest first. Raises OSError."""
    gathered: dict[int, dict[int, Frame]] = {}
    ends: dict[int, Frame] = {}
    dropped: set[int] = set()
    head: FileHead | None = None
    for path in paths:
        for frame in frames(path.read_bytes()):
            if frame.kind is Kind.FILE:
                head = _decoded(frame, FileHead) or head
            elif frame.kind is Kind.DROPPED:
                dropped.add(frame.entry)
            elif frame.kind is Kind.ENDED:
                ends[frame.entry] = frame
            else:
                gathered.setdefault(frame.entry, {})[frame.number] = frame
    numbers = {*gathered, *ends}
    entries: list[Entry] = []
    for number in sorted(numbers - dropped):
        entry = _entry(number, gathered.get(number, {}), ends.get(number))
        if entry is not None:
            entries.append(entry)
    next_entry = max(numbers | dropped, default=0) + 1
    return Contents(entries, head, next_entry)


def _entry(number: int, records: dict[int, Frame], end: Frame | None) -> Entry | None:
    """Assemble an entry from its beginning to the first missing record; None if nothing of it is usable."""
    entry = Entry(number)
    if end is not None:
        entry.ended = _decoded(end, Ended)
        if entry.ended is not None:
            entry.num_bytes = len(end.data)
            return entry
    first = records.get(0)
    entry.accepted = None if first is None else _decoded(first, Accepted)
    if entry.accepted is None:
        logger.error("A request in the journal cannot be read: its first record is damaged. It is lost.")
        return None
    while (frame := records.get(entry.num_records)) is not None:
        if not _take(entry, frame):
            break
        entry.num_records += 1
        entry.num_bytes += len(frame.data)
    return entry


def _take(entry: Entry, frame: Frame) -> bool:
    """Add one record to its entry; return False if it is damaged."""
    if frame.kind is Kind.BEGUN:
        begun = _decoded(frame, Begun)
        if begun is None:
            return False
        entry.seeds[begun.prompt] = begun.seed
    elif frame.kind is Kind.GIVEN:
        given = _decoded(frame, Given)
        if given is None:
            return False
        entry.steps.setdefault(given.prompt, []).append(given.outputs)
    elif frame.kind is Kind.SHOWN:
        shown = _decoded(frame, Shown)
        if shown is None:
            return False
        entry.shown.append(shown.prompt)
    return True


def _decoded(frame: Frame, kind: type[T]) -> T | None:
    """Decode the payload; None if it is not of this version's form, although its checksum is right."""
    try:
        return msgspec.msgpack.decode(frame.payload, type=kind)
    except UNREADABLE:
        logger.error("A record of the journal (%s) has a form that this version does not know.", kind.__name__)
        return None

"""The calls by which clients load, list, pin and unload adapters.

Owns: `Load`, an adapter that a client loads; `AdapterCalls`: names, arguments and results of the calls. Never does: read an
adapter. Called by: the adapters' observer.

Loading takes longer than a call may: `load_adapter` returns a ticket, and `loaded_adapter` says what has become of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from core.api.adapters import AdapterFacts, AdapterSource
from core.api.errors import UNREADABLE, UtilityError, nearest
from core_adapters.sent import SentAdapter
from core_adapters.serving.book import AdapterBook

if TYPE_CHECKING:
    from core_adapters.serving.holder import AdapterHolder
    from core_adapters.serving.observer import AdapterObserver

MOST_LOADS = 256
"""Loads whose outcome nobody has asked for; the oldest ones are forgotten."""


@dataclass(slots=True)
class Load:
    """An adapter that a client loads.

    source:   its path is empty until an adapter that was sent has arrived.
    replaces: whether its name may stand for another adapter already.
    sent:     where it lies in shared memory; None: it lies in files.
    facts:    once it is loaded.
    failure:  why it cannot be used, as a sentence; empty otherwise.
    """

    source: AdapterSource
    replaces: bool
    sent: SentAdapter | None = None
    facts: AdapterFacts | None = None
    failure: str = ""

    def read(self, holder: AdapterHolder) -> AdapterFacts:
        """Read the adapter; called in another thread than that of the steps. Raises UserError, OSError."""
        if self.sent is not None:
            self.source = AdapterSource(self.source.name, holder.sent.receive(self.sent))
        return holder.read(self.source)

    def check_name(self, book: AdapterBook, facts: AdapterFacts, discard: Callable[[str], None]) -> None:
        """Raise UtilityError, and discard what was read, when the name has been taken meanwhile."""
        there = book.named(self.source.name)
        if there is None or self.replaces or there.facts.digest == facts.digest:
            return
        discard(facts.digest)
        raise UtilityError(taken(self.source.name))


class AdapterCalls:
    """The calls of one client."""

    def __init__(self, observer: AdapterObserver) -> None:
        self._observer = observer
        self._book = observer.holder.book

    def by_name(self) -> dict[str, Callable[..., Any]]:
        """Return the calls by name."""
        return {
            "load_adapter": self.load,
            "loaded_adapter": self.loaded,
            "unload_adapter": self.unload,
            "pin_adapter": self.pin,
            "list_adapters": self.list,
        }

    def load(self, name: str, path: str = "", replaces: bool = False, sent: dict[str, Any] | None = None) -> int:
        """Begin to read an adapter; returns a ticket for `loaded_adapter`.

        name: for requests. path: absolute. replaces: whether the name may stand for another adapter already.
        sent: fields of a `SentAdapter`, whose shared memory must stay until the adapter is loaded; instead of `path`.
        """
        observer = self._observer
        if bool(path) == (sent is not None):
            raise UtilityError("An adapter is loaded either from a path or from shared memory; give one of both.")
        if not replaces and self._book.named(name) is not None:
            raise UtilityError(taken(name))
        if observer.holder.is_asleep:
            raise UtilityError("The engine sleeps, so that no adapter can be loaded; wake it up first.")
        ticket = max(observer.loads, default=0) + 1
        load = observer.loads[ticket] = Load(AdapterSource(name, path), replaces, _described(sent))
        while len(observer.loads) > MOST_LOADS:
            del observer.loads[min(observer.loads)]
        observer.load(load)
        return ticket

    def loaded(self, ticket: int) -> dict[str, Any] | None:
        """Return the facts of an adapter once it is loaded; None while it is being read. Raises UtilityError if it failed."""
        observer = self._observer
        observer.advance()
        load = observer.loads.get(ticket)
        if load is None:
            raise UtilityError(f"Ticket {ticket} of a load is unknown; load the adapter again.")
        if load.facts is None and not load.failure:
            return None
        if ticket != max(observer.loads):  # the newest stays, so that its number is not given again
            del observer.loads[ticket]
        if load.facts is None:
            raise UtilityError(load.failure)
        facts: dict[str, Any] = msgspec.to_builtins(load.facts)
        return facts

    def unload(self, name: str) -> None:
        """Let a name stand for nothing. Requests that run go on, and the adapter leaves memory with the last of them."""
        if not self._book.forget_name(name):
            raise UtilityError(self._unknown(name))
        self._observer.holder.changed()
        self._observer.advance()

    def pin(self, name: str) -> None:
        """Keep an adapter in memory while it is unused."""
        kept = self._book.named(name)
        if kept is None:
            raise UtilityError(self._unknown(name))
        kept.pinned = True
        self._observer.holder.store()

    def list(self) -> dict[str, Any]:
        """Return all adapters, and the number of changes of their names so far."""
        holder = self._observer.holder
        return {
            "number": self._book.number,
            "adapters": self._book.rows(self._observer.in_use(), holder.weight_version),
        }

    def _unknown(self, name: str) -> str:
        names = [name for kept in self._book.known.values() for name in kept.names]
        return f"There is no adapter '{name}'.{nearest(name, names)}"


def _described(sent: dict[str, Any] | None) -> SentAdapter | None:
    """Return what a client says of an adapter in shared memory. Raises UtilityError."""
    try:
        return None if sent is None else msgspec.convert(sent, SentAdapter)
    except UNREADABLE as error:
        raise UtilityError(f"The adapter in shared memory is not described as expected: {error}.") from None


def taken(name: str) -> str:
    """Return a sentence about a name that stands for an adapter already."""
    return f"The name '{name}' stands for another adapter already; unload that one, or load in place (load_inplace)."

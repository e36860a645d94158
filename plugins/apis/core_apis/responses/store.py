"""Responses that are stored for a while, in memory.

Owns: the limits of their number, bytes and time, their owners, and the conversations that they form. Never does: run or
write one. Called by: the runs (which add), the routes (which look up).

A response belongs to the key that requested it; for any other key it does not exist, and takes none of that key's
places.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol

from core.api.errors import RequestError
from core_apis.callers.tenant import Tenant
from core_apis.responses.items import KeptItem
from core_apis.responses.shelf import Shelf
from core_apis.responses.stored_response import StoredResponse
from core_formats.server_limits import ServerLimits


class Keeper(Protocol):
    """Storage in which responses outlive the server."""

    def keep(self, entry: StoredResponse) -> None:
        """Store a response that has ended."""
        ...

    def forget(self, entry: StoredResponse) -> None:
        """Forget a response that is no longer stored."""
        ...


class ResponseStore:
    """The stored responses of one server. Each tenant has a fixed share of the places and bytes, and never uses
    another's.

    keeper: None: nothing outlives the server. clock: seconds. num_tenants: number of tenants that share places and
        bytes.
    """

    def __init__(
        self,
        limits: ServerLimits,
        clock: Callable[[], float] = time.monotonic,
        keeper: Keeper | None = None,
        num_tenants: int = 1,
    ) -> None:
        self.limits = limits
        self.keeper = keeper
        self.share = -(-limits.max_stored_responses // num_tenants)
        self.share_bytes = limits.max_stored_response_bytes // num_tenants
        self._clock = clock
        self._shelves: defaultdict[Tenant, Shelf] = defaultdict(Shelf)

    def __len__(self) -> int:
        return sum(len(shelf) for shelf in self._shelves.values())

    @property
    def num_bytes(self) -> int:
        """Return the bytes that all responses take."""
        return sum(shelf.num_bytes for shelf in self._shelves.values())

    @property
    def keeps(self) -> bool:
        """Whether anything is stored at all."""
        return self.limits.max_stored_responses > 0

    def check_background(self, tenant: Tenant) -> None:
        """Raise RequestError (429) if no further response of this tenant may run in the background."""
        count = sum(1 for entry in self._shelves[tenant] if entry.task is not None)
        if count >= self.share:
            raise RequestError(
                f"{count} responses run in the background; at most {self.share} may (--max-stored-responses, divided by the "
                "number of keys).",
                status=429,
                code="too_many_responses",
                retry_after=1,
            )

    def add(self, entry: StoredResponse) -> None:
        """Store a response, and drop older ones that exceed the limits."""
        self._put(entry)

    def update(self, entry: StoredResponse) -> None:
        """Update an entry's size and items, and drop entries that exceed the limits."""
        if self._shelves[entry.tenant].find(entry.id) is entry:
            self._put(entry)

    def get(self, tenant: Tenant, response_id: str) -> StoredResponse:
        """Return a response of this tenant. Raises RequestError (404)."""
        self._make_room()
        shelf = self._shelves[tenant]
        entry = shelf.find(response_id)
        if entry is None:
            raise not_found(response_id)
        shelf.touch(entry, self._clock())
        return entry

    def remove(self, entry: StoredResponse) -> bool:
        """Remove a response. Return whether it was still stored."""
        was_kept = self._shelves[entry.tenant].remove(entry)
        if was_kept and self.keeper is not None:
            self.keeper.forget(entry)
        return was_kept

    def history(self, tenant: Tenant, response_id: str) -> bytes:
        """Return all items up to the end of a response, from the first response on, as a list in JSON.

        Raises RequestError: 404, or 409 while one runs.
        """
        items = self._history(tenant, response_id)
        return b"[" + b",".join(item.data for item in items) + b"]"

    def input_of(self, entry: StoredResponse) -> list[KeptItem]:
        """Return all items that a response was made from. Raises RequestError (404)."""
        earlier = [] if entry.previous is None else self._history(entry.tenant, entry.previous)
        return [*earlier, *entry.items]

    def items(self, tenant: Tenant, names: Iterable[str]) -> dict[str, KeptItem]:
        """Return stored items by id, without those that are not stored."""
        shelf = self._shelves[tenant]
        now = self._clock()
        found: dict[str, KeptItem] = {}
        for name in names:
            known = shelf.item(name)
            if known is not None:
                entry, found[name] = known
                shelf.touch(entry, now)
        return found

    async def until_idle(self) -> None:
        """Wait until nothing runs in the background."""
        while tasks := self._running():
            await asyncio.wait(tasks)

    async def suspend(self) -> None:
        """Stop the responses that a later server will continue."""
        tasks: list[asyncio.Task[None]] = []
        for entry in self._all():
            if entry.task is not None and entry.journaled is not None:
                entry.is_suspended = True
                entry.task.cancel()
                tasks.append(entry.task)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """End everything that runs in the background."""
        tasks = self._running()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _put(self, entry: StoredResponse) -> None:
        shelf = self._shelves[entry.tenant]
        shelf.put(entry)
        shelf.touch(entry, self._clock())
        self._make_room()

    def _all(self) -> list[StoredResponse]:
        return [entry for shelf in self._shelves.values() for entry in shelf]

    def _running(self) -> list[asyncio.Task[None]]:
        """Return the tasks of all responses that run in the background."""
        return [entry.task for entry in self._all() if entry.task is not None]

    def _history(self, tenant: Tenant, response_id: str) -> list[KeptItem]:
        """Return all items up to the end of a response. Raises RequestError."""
        entries: list[StoredResponse] = []
        name: str | None = response_id
        while name is not None:
            entry = self._previous(tenant, name, response_id)
            entries.append(entry)
            name = entry.previous
        found: list[KeptItem] = []
        for entry in reversed(entries):
            found += entry.items
            found += entry.output
        return found

    def _previous(self, tenant: Tenant, name: str, asked: str) -> StoredResponse:
        try:
            entry = self.get(tenant, name)
        except RequestError:
            behind = "" if name == asked else f", on which '{asked}' builds,"
            raise RequestError(
                f"The response '{name}'{behind} is not kept: it was stored with store: false, was deleted, or is older than "
                "what is kept. Send the whole conversation in input instead of previous_response_id.",
                param="previous_response_id",
                status=404,
                code="previous_response_not_found",
            ) from None
        if entry.response is not None:
            raise RequestError(
                f"The response '{name}' has not ended yet; wait for it, or cancel it.",
                param="previous_response_id",
                status=409,
                code="response_in_progress",
            )
        return entry

    def _make_room(self) -> None:
        """Drop the least recently used responses of each tenant that exceed its share."""
        oldest = self._clock() - self.limits.stored_response_lifetime
        for shelf in self._shelves.values():
            for entry in self._surplus(shelf, oldest):
                self.remove(entry)

    def _surplus(self, shelf: Shelf, oldest: float) -> list[StoredResponse]:
        """Return the entries to drop; those that run in the background stay.

        oldest: entries last used before this time have expired.
        """
        count, num_bytes = len(shelf), shelf.num_bytes
        found: list[StoredResponse] = []
        for entry in shelf:
            is_full = count > self.share or num_bytes > self.share_bytes
            if not is_full and entry.used >= oldest:
                break
            if entry.task is None:
                found.append(entry)
                count -= 1
                num_bytes -= entry.num_bytes
        return found


def not_found(response_id: str) -> RequestError:
    """Return the error for a response that is not stored, or is another tenant's."""
    return RequestError(
        f"There is no response '{response_id}': it was never stored, was deleted, or is older than what is kept "
        "(--max-stored-responses, --max-stored-response-bytes, --stored-response-lifetime).",
        param="response_id",
        status=404,
        code="response_not_found",
    )

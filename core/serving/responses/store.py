"""Responses that are kept for a while, in memory.

Owns: the limits of their number, bytes and time, whose they are, and the conversations that they make up. Never does: run or
write one. Called by: the runs (which add), the routes (which look up).

A response belongs to the API key that asked for it; for any other key there is none.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from core.api.config import ServerLimits
from core.api.errors import RequestError
from core.serving.responses.conversation import Item
from core.serving.responses.stored_response import StoredResponse, Tenant

_decode_items = msgspec.json.Decoder(list[Item]).decode


class Keeper(Protocol):
    """Whatever lets responses outlive the server."""

    def keep(self, entry: StoredResponse) -> None:
        """A response that is kept has ended."""
        ...

    def forget(self, entry: StoredResponse) -> None:
        """A response is not kept any more."""
        ...


class ResponseStore:
    """The responses of one server, ordered by their last use.

    keeper: None: nothing outlives the server. clock: seconds.
    """

    def __init__(
        self, limits: ServerLimits, clock: Callable[[], float] = time.monotonic, keeper: Keeper | None = None
    ) -> None:
        self.limits = limits
        self.keeper = keeper
        self.num_bytes = 0
        self._clock = clock
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self.limits.max_stored_responses > 0

    def check_background(self) -> None:
        """Raise RequestError (429) when no response more may run in the background."""
        most = self.limits.max_stored_responses
        count = len(self._running())
        if count >= most:
            raise RequestError(
                f"{count} responses run in the background; at most {most} may (--max-stored-responses).",
                status=429,
                code="too_many_responses",
                retry_after=1,
            )

    def add(self, entry: StoredResponse) -> None:
        """Keep a response."""
        self._entries[entry.id] = entry
        self.update(entry)

    def update(self, entry: StoredResponse) -> None:
        """Take note of an entry's new size and items, and drop what there is no room for."""
        if self._entries.get(entry.id) is not entry:
            return
        self._touch(entry)
        size = entry.measure()
        self.num_bytes += size - entry.num_bytes
        entry.num_bytes = size
        for name in entry.item_ids:
            self._items[name] = entry.id
        self._make_room()

    def get(self, tenant: Tenant, response_id: str) -> StoredResponse:
        """A response of this tenant. Raises RequestError (404)."""
        self._make_room()
        entry = self._entries.get(response_id)
        if entry is None or entry.tenant != tenant:
            raise RequestError(
                f"There is no response '{response_id}': it was never stored, was deleted, or is older than what is kept "
                "(--max-stored-responses, --max-stored-response-bytes, --stored-response-lifetime).",
                param="response_id",
                status=404,
                code="response_not_found",
            )
        self._touch(entry)
        return entry

    def remove(self, entry: StoredResponse) -> None:
        """Forget a response."""
        if self.keeper is not None:
            self.keeper.forget(entry)
        del self._entries[entry.id]
        self.num_bytes -= entry.num_bytes
        for name in entry.item_ids:
            if self._items.get(name) == entry.id:
                del self._items[name]

    def history(self, tenant: Tenant, response_id: str) -> bytes:
        """All items up to the end of a response, from the first response on, as a list in JSON.

        Raises RequestError: 404, or 409 while one runs.
        """
        lists: list[bytes] = []
        name: str | None = response_id
        while name is not None:
            entry = self._previous(tenant, name, response_id)
            lists += (entry.output, entry.items)
            name = entry.previous
        lists.reverse()
        return _joined(lists)

    def input_of(self, entry: StoredResponse) -> list[Item]:
        """All items that a response was made from. Raises RequestError (404)."""
        earlier = b"[]" if entry.previous is None else self.history(entry.tenant, entry.previous)
        return _decode_items(_joined([earlier, entry.items]))

    def items(self, tenant: Tenant, names: Iterable[str]) -> dict[str, Item]:
        """Kept items by their ids; those that are not kept are left out."""
        found: dict[str, Item] = {}
        for name in names:
            entry = self._entries.get(self._items.get(name, ""))
            if name in found or entry is None or entry.tenant != tenant:
                continue
            self._touch(entry)
            for item in _decode_items(_joined([entry.items, entry.output])):
                found[str(item["id"])] = item
        return found

    async def until_idle(self) -> None:
        """Until nothing runs in the background."""
        while tasks := self._running():
            await asyncio.wait(tasks)

    async def suspend(self) -> None:
        """Stop those that a later server goes on with."""
        tasks: list[asyncio.Task[None]] = []
        for entry in self._entries.values():
            if entry.task is not None and entry.journaled is not None:
                entry.is_suspended = True
                entry.task.cancel()
                tasks.append(entry.task)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """End what runs in the background."""
        tasks = self._running()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _running(self) -> list[asyncio.Task[None]]:
        """The tasks of all responses that run in the background."""
        return [entry.task for entry in self._entries.values() if entry.task is not None]

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

    def _touch(self, entry: StoredResponse) -> None:
        entry.used = self._clock()
        self._entries.move_to_end(entry.id)

    def _make_room(self) -> None:
        """Drop the responses that were not used for longest, those that run apart."""
        oldest = self._clock() - self.limits.stored_response_lifetime
        for entry in list(self._entries.values()):
            is_full = (
                len(self._entries) > self.limits.max_stored_responses
                or self.num_bytes > self.limits.max_stored_response_bytes
            )
            if not is_full and entry.used >= oldest:
                return
            if entry.task is None:
                self.remove(entry)


def _joined(lists: Iterable[bytes]) -> bytes:
    """Lists in JSON as one. They are not taken apart: conversations are long."""
    return b"[" + b",".join(each[1:-1] for each in lists if len(each) > 2) + b"]"

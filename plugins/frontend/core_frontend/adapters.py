"""The adapters of an engine, as one of its clients sees them.

Owns: `Adapters`: the names that the engine knows, read again when they have changed, and loading, pinning and unloading.
`set_adapter`: a request uses one, from its invocation on. Never does: read an adapter, or search for one. Called by: the
server, `AsyncLLM`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from core.api.adapters import AdapterFacts
from core.api.errors import EngineStalledError, RequestError
from core.api.messages import EngineRequest

POLL_S: Final = 0.005
"""Seconds between two looks whether an adapter is loaded."""


class LoadedAdapter(msgspec.Struct, frozen=True):
    """An adapter under one of its names, as the engine lists it.

    is_stale: whether the base has other weights than when it was loaded.
    """

    name: str
    path: str
    digest: str
    rank: int
    nbytes: int
    invocation_tokens: tuple[int, ...]
    is_resident: bool
    is_pinned: bool
    is_stale: bool
    num_requests: int

    @property
    def facts(self) -> AdapterFacts:
        """What a request needs to know of it."""
        return AdapterFacts(self.digest, self.rank, self.nbytes, self.invocation_tokens)


class Adapters:
    """The adapters of one engine.

    call:   calls the engine by name, as `EngineControl.call`.
    number: returns how often their names have changed, as the engine last reported.
    """

    def __init__(self, call: Callable[..., Awaitable[Any]], number: Callable[[], int]) -> None:
        self._call = call
        self._number = number
        self._read = -1
        self._names: Mapping[str, LoadedAdapter] = {}

    @property
    def names(self) -> list[str]:
        """The names when they were last read."""
        return list(self._names)

    def known(self, name: str) -> LoadedAdapter | None:
        """Return the adapter that a name stood for when names were last read."""
        return self._names.get(name)

    async def find(self, name: str) -> LoadedAdapter | None:
        """Return the adapter that a name stands for. While the engine is restarted, what it stood for before holds."""
        await self.refresh()
        return self.known(name)

    async def refresh(self) -> list[LoadedAdapter]:
        """Return all adapters, read again if names have changed, unless the engine is being restarted."""
        if self._read != self._number():
            try:
                await self.rows()
            except EngineStalledError:
                if self._read < 0:
                    raise
        return list(self._names.values())

    async def rows(self) -> list[LoadedAdapter]:
        """Return all adapters, read now."""
        answer = await self._call("list_adapters")
        self._names, self._read = names_of(answer), int(answer["number"])
        return list(self._names.values())

    async def load(
        self, name: str, path: str = "", *, sent: dict[str, Any] | None = None, replaces: bool = False
    ) -> LoadedAdapter:
        """Load an adapter, and wait until it is there. Raises RequestError when it cannot be used.

        path: absolute. sent: instead of it, fields of a `core_adapters.sent.SentAdapter`, whose shared memory must stay until
        the adapter is there. replaces: whether the name may stand for another adapter already.
        """
        source = {"path": path} if sent is None else {"sent": sent}
        ticket = await self._call("load_adapter", name=name, replaces=replaces, **source)
        while await self._call("loaded_adapter", ticket=ticket) is None:
            await asyncio.sleep(POLL_S)
        await self.rows()
        found = self.known(name)
        if found is None:
            raise RequestError(f"The adapter '{name}' was unloaded while it was loaded.", status=409)
        return found

    async def unload(self, name: str) -> None:
        """Let a name stand for nothing; requests that run go on. Raises RequestError for an unknown name."""
        await self._call("unload_adapter", name=name)
        await self.rows()

    async def pin(self, name: str) -> None:
        """Keep an adapter in memory while it is unused. Raises RequestError for an unknown name."""
        await self._call("pin_adapter", name=name)


def names_of(answer: Mapping[str, Any]) -> dict[str, LoadedAdapter]:
    """Return the engine's list of adapters by name."""
    rows = msgspec.convert(answer["adapters"], list[LoadedAdapter])
    return {row.name: row for row in rows}


def set_adapter(request: EngineRequest, facts: AdapterFacts | None) -> None:
    """Let a request use an adapter. An activated one that its prompt does not invoke is the base model."""
    if facts is None:
        return
    start = adapter_start(request.prompt_token_ids, facts.invocation_tokens)
    if start is not None:
        request.adapter = facts.digest
        request.adapter_from = start


def adapter_start(token_ids: Sequence[int], invocation: Sequence[int]) -> int | None:
    """Return the first position of a prompt that an adapter computes; None: it computes none.

    invocation: token ids that activate it, as in `AdapterFacts`. Their last occurrence counts.
    """
    if not invocation:
        return 0
    wanted = list(invocation)
    for start in range(len(token_ids) - len(wanted), -1, -1):
        if token_ids[start] == wanted[0] and list(token_ids[start : start + len(wanted)]) == wanted:
            return start
    return None

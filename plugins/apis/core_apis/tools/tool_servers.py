"""The tool servers of the operator: their lists, and calls that always end.

Owns: the thread in which all of them are spoken to, the limits of time and number, and the sentence for a call that fails.
Never does: speak MCP (`core_apis.tools.mcp_server` does), or raise what a tool server did. Called by: `core_apis.app`
(builds it), `core_apis.tools.rounds` (calls), the route of /v1/responses (reads the lists).

The thread has an event loop of its own: reading a result takes time that a tool server sets, which no other request may
wait for.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol

import msgspec

from core_apis.tools.offered import CallResult, ServerTool, ToolServer, label_of, usable

logger = logging.getLogger("core_apis")

CALL_S: Final = 60.0
"""Seconds after which a call has failed."""
LIST_S: Final = 5.0
"""Seconds in which a server lists its tools, while the start waits."""
AGAIN_S: Final = 30.0
"""Seconds between two attempts to reach a server that has not listed its tools."""
MOST_RESULT: Final = 1 << 20
"""Maximum size of a result, in bytes."""
MOST_AT_ONCE: Final = 64
"""Maximum number of calls at the same time; others wait, within their own time."""
LONGEST_REASON: Final = 300
"""Maximum number of characters of an error of a tool server."""


class Connection(Protocol):
    """The way to one server. label: chosen by the operator; None: the server's own name counts. address: for people."""

    label: str | None
    address: str

    async def tools(self) -> tuple[str, list[ServerTool]]:
        """Return the server's own name and its tools. Raises anything."""
        ...

    async def call(self, name: str, arguments: dict[str, Any]) -> CallResult:
        """Call a tool. Raises anything."""
        ...


class ToolServers:
    """The tool servers of one API server."""

    def __init__(self, connections: Sequence[Connection], *, call_s: float = CALL_S, list_s: float = LIST_S) -> None:
        self._connections = connections
        self._call_s = call_s
        self._list_s = list_s
        self._listed: dict[str, tuple[Connection, ToolServer]] = {}
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tool servers", daemon=True)

    @property
    def offered(self) -> list[ToolServer]:
        """Return the servers that have listed their tools."""
        return [server for _, server in list(self._listed.values())]

    def start(self) -> None:
        """List the tools of all servers; one that is not there is tried again every `AGAIN_S` seconds."""
        self._thread.start()
        first = asyncio.run_coroutine_threadsafe(self._list_missing(), self._loop)
        first.result()  # ends after `list_s`
        asyncio.run_coroutine_threadsafe(self._keep_listing(), self._loop)

    async def call(self, label: str, name: str, arguments: str) -> CallResult:
        """Call a tool. arguments: as the model wrote them. A failure is a result too; only cancelling raises."""
        work = asyncio.run_coroutine_threadsafe(self._call(label, name, arguments), self._loop)
        return await asyncio.wrap_future(work)

    async def close(self) -> None:
        """End the thread and everything that runs in it."""
        if self._thread.is_alive():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end_tasks(), self._loop))
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join)
        self._loop.close()

    async def _call(self, label: str, name: str, arguments: str) -> CallResult:
        known = self._listed.get(label)
        if known is None:
            return CallResult(error=f"The tool server '{label}' is not there.")
        try:
            given = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            return CallResult(error=f"The arguments are no JSON object ({str(error)[:LONGEST_REASON]}).")
        try:
            async with asyncio.timeout(self._call_s):
                await self._slots.acquire()
            task = self._begun(known[0].call(name, given))
            task.add_done_callback(lambda _: self._slots.release())
            result = await self._within(task, self._call_s)
        except Exception as error:
            reason = reason_of(error)
            logger.warning("A call of the tool '%s' of the tool server '%s' failed: %s", name, label, reason)
            return checked(CallResult(error=reason))
        return checked(result)

    async def _within(self, task: asyncio.Task[Any], seconds: float) -> Any:
        """Return the result of a task. One that takes longer is cancelled and not waited for: its end may hang too."""
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            raise TimeoutError(f"The tool server did not answer within {seconds:g} s.")
        return task.result()

    async def _list_missing(self) -> None:
        known = {id(connection) for connection, _ in self._listed.values()}
        missing = [connection for connection in self._connections if id(connection) not in known]
        await asyncio.gather(*(self._list(connection) for connection in missing))

    async def _list(self, connection: Connection) -> None:
        try:
            name, tools = await self._within(self._begun(connection.tools()), self._list_s)
        except Exception as error:
            logger.warning("The tool server %s has not listed its tools: %s", connection.address, reason_of(error))
            return
        label = connection.label or label_of(name)
        if not label or label in self._listed:
            logger.warning(
                "The tool server %s is named %r, which is %s; name it otherwise: --tool-server LABEL=%s.",
                connection.address,
                name[:LONGEST_REASON],
                "the label of another one" if label else "no label",
                connection.address,
            )
            return
        kept, problems = usable(tools)
        for problem in problems[:10]:
            logger.warning("The tool server '%s': %s; the tool is left out.", label, problem)
        self._listed[label] = connection, ToolServer(label, tuple(kept))
        logger.info("The tool server '%s' (%s) has %d tools.", label, connection.address, len(kept))

    async def _keep_listing(self) -> None:
        self._tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        while len(self._listed) < len(self._connections):
            await asyncio.sleep(AGAIN_S)
            await self._list_missing()

    def _begun(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)


def checked(result: CallResult) -> CallResult:
    """Return a result, or an error in the place of one that is too large or no Unicode text."""
    try:
        size = len((result.output or result.error or "").encode())
    except UnicodeEncodeError:
        return CallResult(error="The result has a lone surrogate; expected Unicode text.")
    if size <= MOST_RESULT:
        return result
    return CallResult(error=f"The result has {size} bytes; expected at most {MOST_RESULT}.")


def reason_of(error: BaseException) -> str:
    """Return why a call failed, as one short sentence. Of a group of errors, the first one counts."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    told = " ".join(str(error).split())[:LONGEST_REASON]
    return told if isinstance(error, TimeoutError) and told else f"{type(error).__name__}: {told}"

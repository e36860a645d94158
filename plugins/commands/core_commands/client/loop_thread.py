"""An event loop in a thread of its own, for a main thread that waits for a person.

Owns: the thread, and what Ctrl-C does to work that runs there. Never does: know the work. Called by: the terminal.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class LoopThread:
    """Use it as a context manager. What was entered is left at the end, in reverse."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event-loop", daemon=True)
        self._entered: list[AbstractAsyncContextManager[Any]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. When Ctrl-C interrupts it, it is cancelled before KeyboardInterrupt goes on."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            concurrent.futures.wait([future])
            self._settle()
            raise

    def enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Enter an asynchronous context manager until the end of this one."""
        entered = self.run(manager.__aenter__())
        self._entered.append(manager)
        return entered

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for manager in reversed(self._entered):
                self.run(manager.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _settle(self) -> None:
        """Until what was cancelled has ended: the future is done as soon as it is cancelled, its task a moment later."""
        with suppress(KeyboardInterrupt):  # a second Ctrl-C does not wait for that
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), self._loop).result()

"""An event loop in a background thread, for a main thread that waits for user input.

Owns: the thread, and the effect of Ctrl-C on work that runs there. Never does: know the work. Called by: the terminal.
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
    """An event loop in a thread; a context manager. Entered managers are exited at its end, in reverse order."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event-loop", daemon=True)
        self._entered: list[AbstractAsyncContextManager[Any]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` and return its result. When Ctrl-C interrupts it, it is cancelled before KeyboardInterrupt
        propagates.
        """
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
        """Wait until cancelled work has ended: its future is done immediately, its task only a moment later."""
        with suppress(KeyboardInterrupt):  # a second Ctrl-C skips the wait
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), self._loop).result()

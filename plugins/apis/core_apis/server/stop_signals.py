"""SIGINT and SIGTERM from the first moment of `core serve` to its last.

Owns: the effect of the two signals. Never does: end anything itself. Called by: `core serve`, which enters it before it
imports anything slow, and `core_apis.server.lifetime`, whose event loop takes over. Imports next to nothing, for the same
reason.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal requested the end before the event loop listened."""


class StopSignals:
    """The signal handlers: the first signal requests an orderly end, the second an immediate one.

    Until `listen`, the first raises `Stopped` in the main thread, the only one that may enter this. The end of the
    `with` swallows it, or the exception that it has been turned into on its way.

    stopped: whether a signal has come.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._held = False
        self._raised = False
        self._listening = False
        self._before: dict[signal.Signals, Any] = {}
        self._report = sys.unraisablehook

    def __enter__(self) -> StopSignals:
        self._report, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
        self._before = {number: signal.signal(number, self._on_early_signal) for number in NUMBERS}
        return self

    def __exit__(self, *_: object) -> bool:
        """Restore the former handlers.

        Once a signal has come, further ones are ignored: they would only disturb the end.
        """
        sys.unraisablehook = self._report
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self.stopped else handler)
        return self.stopped and not self._listening

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Defer `Stopped`: within the context it is not raised; if a signal comes meanwhile, it is raised at the end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self._raise()

    def listen(self, first: asyncio.Event, second: asyncio.Event) -> None:
        """From now on, have the running event loop set `first`, at once if a signal has come already, and then
        `second`.
        """
        import asyncio

        def on_signal() -> None:
            self.stopped = True
            (second if first.is_set() else first).set()

        for number in NUMBERS:
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        self._listening = True
        if self.stopped:
            first.set()

    def ignore(self) -> None:
        """Ignore further signals: the end has begun."""
        for number in NUMBERS:
            signal.signal(number, signal.SIG_IGN)

    def _on_early_signal(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True
        self._raise()

    def _raise(self) -> None:
        if self.stopped and not (self._held or self._raised):
            self._raised = True
            raise Stopped

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Ignore a `Stopped` raised where it cannot propagate: the next signal raises it again, or `listen` sees
        `stopped`.
        """
        if isinstance(unraisable.exc_value, Stopped):
            self._raised = False
        else:
            self._report(unraisable)

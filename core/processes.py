"""How a process of our own is started, and how it ends with the one that started it.

Owns: the command line, the environment, the line between parent and child. Never does: start anything. Called by: whoever
spawns an engine, a helper or a probe, and these processes themselves.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

ENTRY = Path(__file__).resolve().parents[1] / "core_engine.py"


def python_command(module: str, *arguments: str) -> list[str]:
    """The words that run one of our modules in this environment, whatever folders named `core` there are.

    module: its full name, such as `core.engine.process`. arguments: what it finds in `sys.argv`.
    """
    return [sys.executable, "-P", str(ENTRY), module, *arguments]


def child_environment() -> dict[str, str]:
    """Our environment, with this very `core` importable first: the child neither sees the working directory nor
    another package of the same name. numpy makes no threads of its own there: they would wait where ours compute."""
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
    root = str(Path(__file__).resolve().parents[1])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = root + (os.pathsep + inherited if inherited else "")
    return environment


@contextlib.contextmanager
def lifeline() -> Iterator[int]:
    """A descriptor for a child's standard input, or to pass on: its other end is closed with the block, or with this process
    however that ends."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def leave_signals_to_parent() -> None:
    """What a terminal or the system asks of all processes at once, the parent decides: SIGINT and SIGTERM do nothing here.

    They are handled, not ignored: children would inherit that.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _do_nothing)


def end_with_parent(descriptor: int, tidy: Callable[[], object] | None = None) -> None:
    """From now on this process ends, whatever it is doing, when the other end of a pipe or socket is closed. Signals are
    left to the parent.

    descriptor: never read here.
    tidy: called before.
    """
    leave_signals_to_parent()

    def watch() -> None:
        poller = select.poll()
        poller.register(descriptor, 0)  # which still tells of the end
        poller.poll()
        try:
            if tidy is not None:
                tidy()
        finally:
            os._exit(3)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """A handler."""

"""The start of our own child processes, and their end together with the parent.

Owns: the command line, the environment, the lifeline between parent and child. Never does: start anything. Called by: all
code that spawns an engine, a helper or a probe, and these processes themselves.
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
    """Return the command that runs one of our modules in this environment, even next to a folder named `core`.

    module: full name of the module, such as `core.engine.process`. arguments: its arguments in `sys.argv`.
    """
    return [sys.executable, "-P", str(ENTRY), module, *arguments]


def child_environment() -> dict[str, str]:
    """Return our environment with this `core` first on the path, so that the child imports no other package of that name.

    The working directory is not importable. numpy starts no threads there: they would wait on processors where ours compute.
    """
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
    root = str(Path(__file__).resolve().parents[1])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = root + (os.pathsep + inherited if inherited else "")
    return environment


@contextlib.contextmanager
def lifeline() -> Iterator[int]:
    """Yield a descriptor for a child's standard input, or to pass on, by which the child learns that its parent has ended.

    Its other end is closed at the end of the block, or when this process ends, however it ends.
    """
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def ending(returncode: int, words: bytes) -> str:
    """Describe how a process ended, with the last line of its output."""
    how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
    lines = words.decode(errors="replace").strip().splitlines()
    said = lines[-1] if lines else "without a word"
    return f"process ended with {how}: {said}"


def leave_signals_to_parent() -> None:
    """Make SIGINT and SIGTERM do nothing here: the parent, which receives them too, decides how the processes end.

    They are handled instead of ignored, because children would inherit an ignored signal.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _do_nothing)


def end_with_parent(descriptor: int, tidy: Callable[[], object] | None = None) -> None:
    """End this process, whatever it is doing, when the other end of a pipe or socket is closed; leave signals to the parent.

    descriptor: our end, which is never read here.
    tidy: called before the process ends.
    """
    leave_signals_to_parent()

    def watch() -> None:
        poller = select.poll()
        poller.register(descriptor, 0)  # No events: a hang-up is always reported.
        poller.poll()
        try:
            if tidy is not None:
                tidy()
        finally:
            os._exit(3)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal by ignoring it."""

"""Starts of an engine in processes of their own, with chosen changes bypassed.

Owns: how each change is bypassed, the processes, their time limit and their end. Never does: compare results. Called by: the
diagnosis.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from core.api.errors import CoreError
from core.plugin.kinds import kind_named
from core.plugin.patience import Patience
from core.processes import child_environment, python_command
from core_commands.doctor.nursery import Order
from core_commands.doctor.pace import Times
from core_commands.doctor.trial import Outcome, Task
from core_observers.runs.compare import Change
from core_observers.runs.copies import Copies

LIMIT_S: Final = 300.0
"""Seconds of one start, or of one round, without those in which the process waited for a processor."""
OPTIONAL: Final = frozenset({"policy", "speculative", "logits_processor", "grammar", "kv_connector", "response_format"})
"""Kinds without which an engine starts with a usual plugin, or with none."""

T = TypeVar("T")


@dataclass(frozen=True)
class Bypass:
    """How one change is undone.

    path:    folder with the earlier code, for PYTHONPATH. file: (file, its copy), for a plugin in a single file.
    without: plugins that are left out instead.
    exact:   whether this is the state of the earlier run: earlier code, or no plugin where there was none.
    """

    path: Path | None = None
    file: tuple[str, str] | None = None
    without: tuple[tuple[str, str, str], ...] = ()
    exact: bool = True


def bypass_of(change: Change, copies: Copies) -> Bypass | None:
    """Return how a change can be bypassed; None when it cannot."""
    before, now = change.before, change.now
    copy = None if before is None else copies.find(before)
    if before is not None and copy is not None:
        if before.module.startswith("file:"):
            return Bypass(file=(before.module.removeprefix("file:"), str(copy)))
        return Bypass(path=copy)
    if now is None:
        return None
    rows = []
    for plugin in now.plugins:
        kind, _, name = plugin.partition(".")
        rows.append((kind, name, now.distribution))
        can_go = kind_named(kind).replaceable or kind in OPTIONAL
        if before is not None and not (can_go and not (now.is_own and kind == "platform")):
            return None
    return Bypass(without=tuple(rows), exact=before is None)


class Engine(Protocol):
    """A started engine. outcome: of the canary's probe."""

    outcome: Outcome

    def round(self) -> Times:
        """Run one round, and return its seconds."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Starter(Protocol):
    """Starts engines. number: of starts so far."""

    number: int

    def start(self, bypassed: Collection[Bypass]) -> Engine:
        """Start an engine with these changes bypassed. One that fails has an outcome with an error."""
        ...


class ProcessStarter:
    """Starts engines in processes, forked from one. values: plain engine arguments as the user gave them."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.number = 0
        self._num_requests = 0
        self._values = dict(values)
        self._orders, theirs = socket.socketpair()
        command = python_command("core_commands.doctor.nursery", str(theirs.fileno()))
        self._nursery = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=child_environment()
        )
        theirs.close()

    def start(self, bypassed: Collection[Bypass]) -> EngineProcess:
        """Start an engine, and wait for the results of its probe; its outcome has an error if it does not answer.

        Raises CoreError when no process can be forked any more.
        """
        self.number += 1
        without = tuple(row for each in bypassed for row in each.without)
        files = dict(each.file for each in bypassed if each.file is not None)
        paths = tuple(str(each.path) for each in bypassed if each.path is not None)
        with tempfile.NamedTemporaryFile(prefix="core-doctor-") as file:
            # In a file, since a message is limited and a command line could be read by others.
            file.write(msgspec.json.encode(Task(self._values, without, files)))
            file.flush()
            return EngineProcess(self._fork, Order(file.name, paths), self._settled)

    def close(self) -> None:
        """End the process that forks; it holds nothing."""
        self._orders.close()
        self._nursery.kill()
        self._nursery.wait()

    def _settled(self, suggested: int) -> int:
        """Return the requests of a round, which the first engine settles: longer rounds are quicker for each request."""
        self._num_requests = self._num_requests or suggested
        return self._num_requests

    def _fork(self, order: Order, files: list[int]) -> int:
        """Have a trial forked with these descriptors as its input, output and log; return its process id."""
        try:
            socket.send_fds(self._orders, [msgspec.json.encode(order)], files)
            answer = self._orders.recv(8)
        except OSError as error:
            raise CoreError(f"The process that starts engines is gone: {error}.") from error
        if len(answer) < 8:
            raise CoreError("The process that starts engines is gone.")
        return int.from_bytes(answer, "little")


class EngineProcess:
    """One process with an engine.

    fork: starts it with three descriptors, and returns its process id.
    settled: returns the number of requests of a round, given the one that this engine suggests.
    """

    def __init__(self, fork: Callable[[Order, list[int]], int], order: Order, settled: Callable[[int], int]) -> None:
        self._settled = settled
        self._num_requests = 0
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `close`)
        theirs_in, self._input = os.pipe()
        self._output, theirs_out = os.pipe()
        self._pending = b""
        self._pid = 0
        try:
            self._pid = fork(order, [theirs_in, theirs_out, self._log.fileno()])
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        try:
            self.outcome = self._answer(Outcome)
        except CoreError as error:
            # A plugin that ends or stalls the process is an outcome too.
            self.outcome = Outcome(error=str(error))

    def round(self) -> Times:
        """Have it run one round, after warming it up once. Raises CoreError when it ends or hangs."""
        if not self._num_requests:
            self._num_requests = self._settled(self._asked(0, int))
        prompt, step, processor = self._asked(self._num_requests, list[float])
        return prompt, step, processor

    def close(self) -> None:
        """End the process."""
        os.close(self._input)
        os.close(self._output)
        self._log.close()
        with contextlib.suppress(ProcessLookupError):  # It may have ended by itself.
            os.kill(self._pid, signal.SIGKILL)

    def _asked(self, number: int, kind: type[T]) -> T:
        try:
            os.write(self._input, b"%d\n" % number)
        except OSError as error:
            raise CoreError(f"The engine of a trial is gone: {error}.") from error
        return self._answer(kind)

    def _answer(self, kind: type[T]) -> T:
        patience = Patience(self._pid, LIMIT_S)
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(patience.left()):
                    if patience.left():
                        continue
                    raise CoreError(f"The engine of a trial gave no answer within {LIMIT_S:g} s.")
                data = os.read(self._output, 1 << 16)
                if not data:
                    self._log.seek(0)
                    lines = self._log.read().decode(errors="replace").strip().splitlines()
                    raise CoreError(f"The engine's process ended: {lines[-1] if lines else 'without a word'}")
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return msgspec.json.decode(line, type=kind)

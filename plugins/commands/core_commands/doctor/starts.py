"""Starts of an engine in processes of their own, with chosen changes bypassed.

Owns: how each change is bypassed, the processes, their time limit and their end. Never does: compare results. Called by: the
diagnosis.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

import msgspec

from core.api.errors import CoreError
from core.plugin.kinds import kind_named
from core.plugin.patience import Patience
from core.processes import child_environment, ending, python_command
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

    def round(self) -> tuple[float, float]:
        """Return the seconds of a prompt, and of a generated token."""
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


@dataclass
class ProcessStarter:
    """Starts engines in processes. values: plain engine arguments as the user gave them."""

    values: Mapping[str, Any]
    number: int = field(default=0, init=False)

    def start(self, bypassed: Collection[Bypass]) -> EngineProcess:
        """Start an engine, and wait for the results of its probe. Raises CoreError for one that does not answer."""
        self.number += 1
        without = tuple(row for each in bypassed for row in each.without)
        files = dict(each.file for each in bypassed if each.file is not None)
        paths = [str(each.path) for each in bypassed if each.path is not None]
        return EngineProcess(Task(dict(self.values), without, files), paths)


class EngineProcess:
    """One process with an engine. paths: folders that stand first on its search path."""

    def __init__(self, task: Task, paths: list[str]) -> None:
        environment = child_environment()
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([*paths, *([inherited] if inherited else [])])
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `close`)
        self._pending = b""
        with tempfile.NamedTemporaryFile(prefix="core-doctor-") as file:
            # In a file, since a command line is limited and others may read it.
            file.write(msgspec.json.encode(task))
            file.flush()
            self._child = subprocess.Popen(
                python_command("core_commands.doctor.trial", file.name),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                env=environment,
            )
            try:
                self.outcome = self._start()
            except BaseException:
                self.close()
                raise

    def round(self) -> tuple[float, float]:
        """Have it run one round. Raises CoreError when it ends or hangs."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(b"round\n")
            self._child.stdin.flush()
        except OSError as error:
            raise CoreError(f"The engine of a trial is gone: {error}.") from error
        return self._answer(tuple[float, float])

    def close(self) -> None:
        """End the process, and wait for it."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.communicate()
        self._words.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> Outcome:
        """Return the outcome; that of a plugin which ends the process is an error too."""
        try:
            return self._answer(Outcome)
        except CoreError as error:
            return Outcome(error=str(error))

    def _answer(self, kind: type[T]) -> T:
        assert self._child.stdout is not None
        patience = Patience(self._child.pid, LIMIT_S)
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(patience.left()):
                    if patience.left():
                        continue
                    raise CoreError(f"The engine of a trial gave no answer within {LIMIT_S:g} s.")
                data = os.read(self._child.stdout.fileno(), 1 << 16)
                if not data:
                    code = self._child.wait()
                    self._words.seek(0)
                    raise CoreError(f"The engine's {ending(code, self._words.read())}")
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return msgspec.json.decode(line, type=kind)

"""The commands of a sweep: a server for as long as it is measured, and one measurement after the other.

Owns: these processes, their words and their end. Never does: choose what is run, or read a result. Called by: the sweep.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from core.api.errors import CoreError, UserError
from core.bench.sweep_options import SweepOptions
from core.processes import python_command

STOP_SECONDS = 30.0
NAME = "_benchmark_name"
"""A key of parameters that names them, and is no argument."""

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement. server: which of the servers, from 0. path: of its result."""

    server: int
    serve: Params
    bench: Params
    number: int
    path: Path


class SweepError(CoreError):
    """A server or a measurement failed; the sentence says which."""


def run_all(options: SweepOptions, params: Params, todo: Sequence[Run]) -> None:
    """The runs on one server."""
    command = None if options.serve_cmd is None else [*_split(options.serve_cmd), *words_of(params)]
    with _server(command, dry=options.dry_run) as process:
        for run in todo:
            words = [*_split(options.bench_cmd), *words_of(run.bench), "--save-result"]
            words += ["--result-dir", str(run.path.parent), "--result-filename", run.path.name]
            words += ["--ready-check-timeout-sec", f"{options.server_ready_timeout:g}"]
            print(shlex.join(words), flush=True)
            if not options.dry_run:
                _measure(words, run, process)


def _measure(words: list[str], run: Run, server: subprocess.Popen[bytes] | None) -> None:
    """One measurement. A server that ends while it is waited for ends the measurement too. Raises SweepError."""
    with _started(words, "--bench-cmd") as measuring:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = measuring.wait(0.5)
                    break
                if server is not None and server.poll() is not None:
                    raise SweepError(
                        f"The server ended with code {server.returncode} before {run.path.parent.name} was done."
                    )
        finally:
            if measuring.poll() is None:
                measuring.terminate()
    if code or not run.path.exists():
        raise SweepError(f"{run.path.parent.name}: the measurement ended with code {code}. Mend it and use --resume.")


@contextlib.contextmanager
def _server(command: list[str] | None, *, dry: bool) -> Iterator[subprocess.Popen[bytes] | None]:
    """A server for as long as the block; None without a command."""
    if command is not None:
        print(shlex.join(command), flush=True)
    if command is None or dry:
        yield None
        return
    process = _started(command, "--serve-cmd", start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):  # what it has started, or itself when it hangs
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _started(command: list[str], flag: str, *, start_new_session: bool = False) -> subprocess.Popen[bytes]:
    """A process. Raises UserError for a command that is not there."""
    try:
        return subprocess.Popen(command, start_new_session=start_new_session)
    except OSError as error:
        raise UserError(f"{flag} {command[0]}: cannot be started: {error.strerror}.") from None


def _split(command: str) -> list[str]:
    """A command's words; `core` is this very one. Raises UserError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"{command}: {error}.") from None
    if not words:
        raise UserError("A command is empty; expected one such as 'core bench serve'.")
    return python_command("core", *words[1:]) if words[0] == "core" else words


def words_of(params: Params) -> list[str]:
    """Parameters as words of a command; switches by true and false."""
    words: list[str] = []
    for key, value in params.items():
        if key == NAME:
            continue
        flag = "--" + key.lstrip("-").replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else "--no-" + flag[2:])
            continue
        words.append(flag)
        values = value if isinstance(value, list) else [value]
        words += [v if isinstance(v, str) else msgspec.json.encode(v).decode() for v in values]
    return words

"""The processes of a sweep: a server while it is measured, and one measurement after another.

Owns: the processes, their command lines and their termination. Never does: choose the runs, or read a result. Called
by: the sweep.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from core.api.errors import CoreError, UserError
from core.processes import python_command
from core_commands.bench.report import make_directory
from core_commands.bench.sweep_options import SweepOptions
from core_commands.client.server_process import running

LOOK_SECONDS = 0.5
"""Interval at which the server process is checked."""
NAME = "_benchmark_name"
"""Key that names a parameter set; it is not passed as an argument."""

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement of a sweep.

    server: index of the server, from 0.
    serve, bench: the parameters of both.
    number: repetition with these parameters, from 0.
    path: of its result.
    seed: of its prompts, different for each measurement on a server, because prompts of an earlier one would hit the
        prefix cache.
    """

    server: int
    serve: Params
    bench: Params
    number: int
    path: Path
    seed: int


class SweepError(CoreError):
    """Raised when a server or a measurement failed; the message says which."""


def run_all(options: SweepOptions, params: Params, todo: Sequence[Run]) -> None:
    """Run all measurements on one server."""
    with measuring(options, params, todo[0].server, todo[0].path.parent.parent) as measure:
        for run in todo:
            measure(run)


@contextlib.contextmanager
def measuring(options: SweepOptions, params: Params, server: int, directory: Path) -> Iterator[Callable[[Run], None]]:
    """Run a server inside the context; yield what runs one measurement on it, or prints its command alone.

    server: its number. directory: for its log.
    """
    command = None if options.serve_cmd is None else [*_split(options.serve_cmd), *words_of(params)]
    log = directory / f"server{server}.log"
    with _server(command, log, dry=options.dry_run) as process:

        def measure(run: Run) -> None:
            words = _measurement(options, run)
            print(f"\n{run.path}:\n{shlex.join(words)}", flush=True)
            if not options.dry_run:
                _measure(words, run, process, log)

        yield measure


def _measurement(options: SweepOptions, run: Run) -> list[str]:
    """Return the command line of one measurement."""
    words = [*_split(options.bench_cmd), *words_of(run.bench)]
    has_seed = any(word == "--seed" or word.startswith("--seed=") for word in words)
    if not has_seed:
        words += ["--seed", str(run.seed)]
    words += ["--save-result", "--result-dir", str(run.path.parent), "--result-filename", run.path.name]
    return [*words, "--ready-check-timeout-sec", f"{options.server_ready_timeout:g}"]


def _measure(words: list[str], run: Run, server: subprocess.Popen[bytes] | None, log: Path) -> None:
    """Run one measurement, and stop it if its server exits. Raises SweepError."""
    with _started(words, "--bench-cmd") as measuring:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = measuring.wait(LOOK_SECONDS)
                    break
                if server is not None and server.poll() is not None:
                    raise SweepError(
                        f"The server ended with code {server.returncode} before {run.path.parent.name} was done; its last "
                        f"words are in {log}."
                    )
        finally:
            if measuring.poll() is None:
                measuring.terminate()
    if code or not run.path.exists():
        raise SweepError(f"{run.path.parent.name}: the measurement ended with code {code}. Mend it and use --resume.")


@contextlib.contextmanager
def _server(command: list[str] | None, log: Path, *, dry: bool) -> Iterator[subprocess.Popen[bytes] | None]:
    """Run a server inside the context, with its output in `log`; None without a command."""
    if command is not None:
        print(f"\n{shlex.join(command)}", flush=True)
    if command is None or dry:
        yield None
        return
    with _log_file(log) as output, running(_words(command), output, flag="--serve-cmd") as process:
        yield process


def _log_file(path: Path) -> BinaryIO:
    """Open a file for a server's output. Raises UserError."""
    make_directory(path.parent)
    try:
        return path.open("wb")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}.") from None


def _started(command: list[str], flag: str) -> subprocess.Popen[bytes]:
    """Start a measurement. Raises UserError for an unknown command."""
    try:
        return subprocess.Popen(_words(command))
    except OSError as error:
        raise UserError(f"{flag} {command[0]}: cannot be started: {error.strerror}.") from None


def _words(command: list[str]) -> list[str]:
    """Return the words to run; `core` is this installation."""
    return python_command(*command) if command[0] == "core" else command


def _split(command: str) -> list[str]:
    """Split a command line into words. Raises UserError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"{command}: {error}.") from None
    if not words:
        raise UserError("A command is empty; expected one such as 'core bench serve'.")
    return words


def words_of(params: Params) -> list[str]:
    """Convert parameters to command-line words; booleans become switches."""
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

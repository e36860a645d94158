"""Many measurements: every combination of a server's arguments and a measurement's, some times each.

Owns: the combinations, the commands and their order, the table of all results. Never does: measure itself: each run is a
command of its own, so that any server and any benchmark with these arguments can be used. Called by: `core bench sweep`.
"""

from __future__ import annotations

import contextlib
import csv
import io
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
from core.args.own_files import own_path, write_whole
from core.bench.report import DETAILS
from core.bench.sweep_options import SweepOptions
from core.processes import python_command

STOP_SECONDS = 30.0
NAME = "_benchmark_name"
"""A key of parameters that names them, and is no argument."""
LONGEST_NAME = 120

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


def sweep(options: SweepOptions) -> list[dict[str, Any]]:
    """Run what is wanted; returns a row for each result: the parameters and the figures. Raises UserError, SweepError."""
    if options.output_dir is None:
        raise UserError("core bench sweep: -o DIR is missing.")
    directory = own_path(options.output_dir)
    serve = read_params(options.serve_params, "--serve-params")
    bench = read_params(options.bench_params, "--bench-params")
    if options.serve_params is not None and options.serve_cmd is None:
        raise UserError("--serve-params: there is no server to start; name its command with --serve-cmd.")
    runs = combinations(serve, bench, options.num_runs, directory)
    there = [run.path for run in runs if run.path.exists()]
    if there and not options.resume and not options.dry_run:
        raise UserError(f"{there[0]}: is there already; go on with --resume, or name another directory.")
    for server, params in enumerate(serve):
        todo = [run for run in runs if run.server == server and not run.path.exists()]
        if todo:
            _run_all(options, params, todo)
    return [] if options.dry_run else _table(runs, directory)


def read_params(path: str | None, flag: str) -> list[Params]:
    """The parameters in a file; without one, a single empty set. Raises UserError."""
    if path is None:
        return [{}]
    try:
        found = msgspec.json.decode(own_path(path).read_bytes(), type=list[dict[str, Any]])
    except OSError as error:
        raise UserError(f"{flag} {path}: cannot be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise UserError(f"{flag} {path}: expected a JSON list of objects with arguments: {error}.") from None
    if not found:
        raise UserError(f"{flag} {path}: the list is empty.")
    return list(found)


def combinations(serve: Sequence[Params], bench: Sequence[Params], num_runs: int, directory: Path) -> list[Run]:
    """Every run, servers outermost. Raises UserError for two with one name."""
    runs: list[Run] = []
    for server, given in enumerate(serve):
        for params in bench:
            names = [name for name in (name_of(given), name_of(params)) if name]
            folder = directory / ("--".join(names) or "run")
            for number in range(num_runs):
                runs.append(Run(server, given, params, number, folder / f"run{number}.json"))
    paths = [run.path for run in runs]
    double = next((path for path in paths if paths.count(path) > 1), None)
    if double is not None:
        raise UserError(f"{double.parent.name}: two sets of parameters have this name; give them a '{NAME}' each.")
    return runs


def name_of(params: Params) -> str:
    """What a set of parameters is called: its own name, or its values."""
    given = params.get(NAME) or ",".join(f"{key}={value}" for key, value in params.items())
    return "".join(c if c.isalnum() or c in "=,._-" else "_" for c in str(given))[:LONGEST_NAME]


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


def _run_all(options: SweepOptions, params: Params, todo: Sequence[Run]) -> None:
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


def _table(runs: Sequence[Run], directory: Path) -> list[dict[str, Any]]:
    """All results, also as summary.csv and summary.json."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        result = _result(run.path)
        kept = {name: value for name, value in result.items() if name not in (*DETAILS, "errors")}
        rows.append({**run.serve, **kept, **run.bench, "run_number": run.number})
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, names)
    writer.writeheader()
    writer.writerows(rows)
    write_whole(directory / "summary.json", msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
    write_whole(directory / "summary.csv", table.getvalue().encode())
    return rows


def _result(path: Path) -> dict[str, Any]:
    """The result of one run. Raises UserError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path}: no result of a measurement ({error}); remove it and use --resume.") from None

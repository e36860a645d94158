"""A sweep: every combination of server arguments and benchmark arguments, several times each.

Owns: the combinations and their order, the table of all results. Never does: measure itself; each run is a separate
command (see `sweep_runs`), so that any server and any benchmark with these arguments can be used. Called by: `core
bench sweep`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from core.api.errors import UserError
from core_commands.bench.report import DETAILS
from core_commands.bench.sla import Place, search_all
from core_commands.bench.sweep_options import SweepOptions
from core_commands.bench.sweep_runs import NAME, Params, Run, run_all
from core_commands.cli.own_files import own_path, write_whole

LONGEST_NAME = 120
NOT_IN_TABLE = frozenset({*DETAILS, "errors"})
"""Fields of a result that the table omits: lists with an entry per request."""


def sweep(options: SweepOptions) -> list[dict[str, Any]]:
    """Run the sweep; returns a row per result with its parameters and figures. Raises UserError, SweepError."""
    if options.output_dir is None:
        raise UserError("core bench sweep: -o DIR is missing.")
    directory = own_path(options.output_dir)
    serve = read_params(options.serve_params, "--serve-params")
    bench = read_params(options.bench_params, "--bench-params")
    if options.serve_params is not None and options.serve_cmd is None:
        raise UserError("--serve-params: there is no server to start; name its command with --serve-cmd.")
    runs = combinations(serve, bench, options.num_runs, directory)
    if options.sla:
        return _searched(options, runs, directory)
    there = [run.path for run in runs if run.path.exists()]
    if there and not options.resume and not options.dry_run:
        raise UserError(f"{there[0]}: is there already; go on with --resume, or name another directory.")
    for server, params in enumerate(serve):
        todo = [run for run in runs if run.server == server and not run.path.exists()]
        if todo:
            run_all(options, params, todo)
    return [] if options.dry_run else _table(runs, directory)


def _searched(options: SweepOptions, runs: Sequence[Run], directory: Path) -> list[dict[str, Any]]:
    """Search the highest load of each combination. Raises UserError, SweepError."""
    if options.dry_run:
        raise UserError("--dry-run: the loads that --sla tries follow from results; leave one of the two out.")
    if options.sla_from > options.sla_to:
        raise UserError(f"--sla-from {options.sla_from:g} is more than --sla-to {options.sla_to:g}.")
    firsts = [run for run in runs if run.number == 0]
    for run in firsts:
        if options.sla_variable in {name.lstrip("-").replace("-", "_") for name in run.bench}:
            raise UserError(f"--bench-params: {options.sla_variable} is what --sla searches; leave it out there.")
        if run.path.parent.exists() and not options.resume:
            raise UserError(f"{run.path.parent}: is there already; go on with --resume, or name another directory.")
    places = [Place(run.server, run.serve, run.bench, run.path.parent, run.seed) for run in firsts]
    return _table(search_all(options, places, directory, _result), directory)


def read_params(path: str | None, flag: str) -> list[Params]:
    """Read the parameter sets in a file; without a file, a single empty set. Raises UserError."""
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
    """Return every run, servers outermost. Raises UserError for duplicate names."""
    runs: list[Run] = []
    folders: set[Path] = set()
    for server, given in enumerate(serve):
        for place, params in enumerate(bench):
            names = [name for name in (name_of(given), name_of(params)) if name]
            folder = directory / ("--".join(names) or "run")
            if folder in folders:
                raise UserError(f"{folder.name}: two sets of parameters have this name; give them a '{NAME}' each.")
            folders.add(folder)
            for number in range(num_runs):
                path = folder / f"run{number}.json"
                seed = place * num_runs + number
                runs.append(Run(server, given, params, number, path, seed))
    return runs


def name_of(params: Params) -> str:
    """Return the name of a parameter set: its own name, or its values."""
    given = params.get(NAME) or ",".join(f"{key}={value}" for key, value in params.items())
    letters = [letter if letter.isalnum() or letter in "=,._-" else "_" for letter in str(given)]
    return "".join(letters[:LONGEST_NAME])


def _table(runs: Sequence[Run], directory: Path) -> list[dict[str, Any]]:
    """Return all results, and write them as summary.csv and summary.json."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        result = _result(run.path)
        figures = {name: value for name, value in result.items() if name not in NOT_IN_TABLE}
        rows.append({**run.serve, **figures, **run.bench, "run_number": run.number})
    as_json = msgspec.json.format(msgspec.json.encode(rows))
    write_whole(directory / "summary.json", as_json + b"\n")
    write_whole(directory / "summary.csv", _as_csv(rows).encode())
    return rows


def _as_csv(rows: Sequence[Params]) -> str:
    """Format rows as CSV, with a column for each name in any row."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, names)
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue()


def _result(path: Path) -> dict[str, Any]:
    """Read the result of one run. Raises UserError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path}: no result of a measurement ({error}); remove it and use --resume.") from None

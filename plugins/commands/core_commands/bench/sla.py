"""A sweep that searches, for each server and measurement, the highest load whose figures keep to limits.

Owns: the limits, the loads that are tried, and the table of what was found. Never does: measure itself (`sweep_runs` does).
Called by: the sweep.

The load is doubled until a limit is broken, then halved in between. Of several runs of a load the median of each figure counts.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from core.api.errors import UserError, nearest
from core_commands.bench.sweep_options import SweepOptions
from core_commands.bench.sweep_runs import Params, Run, measuring
from core_commands.cli.own_files import write_whole

CLOSE: Final = 1.05
"""Quotient of a load that is too high and one that is not at which the search ends."""
LIMIT: Final = re.compile(r"\s*([A-Za-z0-9_]+)\s*(<=|<|>=|>)\s*([0-9.eE+-]+)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of one figure, such as `p99_ttft_ms<=500`."""

    field: str
    sign: str
    number: float

    @classmethod
    def read(cls, text: str) -> Limit:
        """Read a limit as it is written. Raises UserError."""
        match = LIMIT.fullmatch(text)
        try:
            if match is not None:
                return cls(match[1], match[2], float(match[3]))
        except ValueError:
            pass
        raise UserError(f"--sla {text}: expected a field, a sign and a number, such as p99_ttft_ms<=500.")

    def is_kept(self, value: float) -> bool:
        """Whether a figure keeps to it."""
        if self.sign[0] == "<":
            return value < self.number or (value == self.number and self.sign == "<=")
        return value > self.number or (value == self.number and self.sign == ">=")


@dataclass(frozen=True, slots=True)
class Place:
    """One server and measurement whose load is searched. folder: of its results. seed: of its first run."""

    server: int
    serve: Params
    bench: Params
    folder: Path
    seed: int


class Search:
    """The search of one place. measure: runs one measurement. read: reads its result."""

    def __init__(
        self,
        options: SweepOptions,
        place: Place,
        measure: Callable[[Run], None],
        read: Callable[[Path], dict[str, Any]],
    ) -> None:
        self._options = options
        self._place = place
        self._measure = measure
        self._read = read
        self._limits = [Limit.read(text) for text in options.sla or ()]
        self.runs: list[Run] = []

    def highest(self) -> float | None:
        """Return the highest load that keeps to all limits; None: the lowest one does not."""
        good: float | None = None
        load, most = self._options.sla_from, self._options.sla_to
        while self._keeps(load):
            good = load
            if load >= most:
                return good
            load = min(load * 2, most)
        if good is None:
            return None
        bad = load
        while (middle := self._between(good, bad)) is not None:
            if self._keeps(middle):
                good = middle
            else:
                bad = middle
        return good

    def _between(self, good: float, bad: float) -> float | None:
        """Return the next load to try; None where they are close enough."""
        if self._options.sla_variable == "max_concurrency":
            middle = (int(good) + int(bad)) // 2
            return None if middle <= good else float(middle)
        return None if bad <= good * CLOSE else round((good + bad) / 2, 3)

    def _keeps(self, load: float) -> bool:
        runs = [self._run(load, number) for number in range(self._options.num_runs)]
        self.runs += runs
        results: list[dict[str, Any]] = []
        for run in runs:
            if not run.path.exists():
                self._measure(run)
            results.append(self._read(run.path))
        return all(limit.is_kept(_median(results, limit.field, runs[0].path)) for limit in self._limits)

    def _run(self, load: float, number: int) -> Run:
        place, name = self._place, self._options.sla_variable
        value = int(load) if load == int(load) else load
        path = place.folder / f"{name}={value}" / f"run{number}.json"
        seed = place.seed + len(self.runs) + number
        return Run(place.server, place.serve, {**place.bench, name: value}, number, path, seed)


def _median(results: Sequence[dict[str, Any]], field: str, path: Path) -> float:
    """Return the median of a figure. Raises UserError if a result has none."""
    values = [result.get(field) for result in results]
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        raise UserError(f"--sla: {path} has no number '{field}'.{nearest(field, results[0])}")
    return statistics.median(numbers)


def search_all(
    options: SweepOptions, places: Sequence[Place], directory: Path, read: Callable[[Path], dict[str, Any]]
) -> list[Run]:
    """Search all places, writing `sla.json`; return the runs. Raises UserError, SweepError."""
    runs: list[Run] = []
    found: list[dict[str, Any]] = []
    for server in dict.fromkeys(place.server for place in places):
        own = [place for place in places if place.server == server]
        with measuring(options, own[0].serve, server, directory) as measure:
            for place in own:
                search = Search(options, place, measure, read)
                highest = search.highest()
                runs += search.runs
                found.append({**place.serve, **place.bench, options.sla_variable: highest, "sla": options.sla})
                print(f"\n{place.folder.name}: {_said(options, highest)}", flush=True)
    write_whole(directory / "sla.json", msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    return runs


def _said(options: SweepOptions, highest: float | None) -> str:
    limits = ", ".join(options.sla or ())
    if highest is None:
        return f"{options.sla_variable} {options.sla_from:g} does not keep to {limits}; try less (--sla-from)"
    return f"{options.sla_variable} {highest:g} is the highest that keeps to {limits}"

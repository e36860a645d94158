"""The figures of all runs: a file with one JSON object a line, so that runs of parts add up.

Owns: the file, medians, ratios. Never does: measure. Called by: the command, the report.

A line: {"run", "date", "commit", "read GB/s", "model", "form", "layers", "row", "engine", "figures": {name: number}}, with
`error` in place of `figures` where there are none, "waiting" (see `pressure`), and "note" where one was given. Lines with
equal `run` were measured one after the other and may be divided.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """What two figures must share to be compared. form: of ours; each line has its own engine's form."""

    model: str
    form: str
    layers: int


class Results:
    """Lines of `path`; new ones are appended at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        if path.exists():
            self.lines = [json.loads(text) for text in path.read_text().splitlines() if text.strip()]

    def add(self, line: Line) -> None:
        """Append one line to the file."""
        self.lines.append(line)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def cases(self) -> list[Case]:
        """Every model, form and number of layers, in the order of their first line."""
        return list(dict.fromkeys(case_of(line) for line in self.lines))

    def rows(self, case: Case) -> list[str]:
        """Names of the measured rows."""
        return list(dict.fromkeys(line["row"] for line in self.of(case)))

    def engines(self, case: Case) -> list[str]:
        """Names of the engines that took part, or could not."""
        return list(dict.fromkeys(line["engine"] for line in self.of(case)))

    def of(self, case: Case) -> list[Line]:
        """Lines of one case."""
        return [line for line in self.lines if case_of(line) == case]

    def values(self, case: Case, row: str | None, engine: str, figure: str) -> dict[str, float]:
        """{run: figure}, of the row or of any row; of several lines of a run the median."""
        by_run: dict[str, list[float]] = {}
        for line in self.of(case):
            wanted = line["engine"] == engine and (row is None or line["row"] == row)
            if wanted and figure in line.get("figures", {}):
                by_run.setdefault(line["run"], []).append(line["figures"][figure])
        return {run: statistics.median(values) for run, values in by_run.items()}

    def median(self, case: Case, row: str | None, engine: str, figure: str) -> float | None:
        """The median over runs; None without a figure."""
        values = self.values(case, row, engine, figure)
        return statistics.median(values.values()) if values else None

    def ratio(self, case: Case, row: str | None, peer: str, figure: str) -> float | None:
        """The median over runs of ours divided by the peer's in the same run; None where no run has both."""
        ours, theirs = self.values(case, row, "core", figure), self.values(case, row, peer, figure)
        ratios = [ours[run] / theirs[run] for run in ours if theirs.get(run)]
        return statistics.median(ratios) if ratios else None

    def errors(self, case: Case) -> dict[str, str]:
        """{engine: why it could not}, of engines without any figure, and of rows that an engine could not run."""
        return dict(_errors(self.of(case)))


def case_of(line: Line) -> Case:
    return Case(line["model"], line["form"], line["layers"])


def _errors(lines: Iterable[Line]) -> Iterable[tuple[str, str]]:
    for line in lines:
        if "error" in line:
            yield f"{line['engine']} {line['row']}", line["error"]

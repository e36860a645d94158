"""Figures of S1 to S5 over versions, as a page and a plot.

    python -m benchmarks.history keep FILE.json      # of `benchmarks.run --json` or `benchmarks.peers`: adds a line
    python -m benchmarks.history page                # writes docs/history.md and docs/history.svg

Owns: docs/history.jsonl, which has a line for each measured version and machine, and what is made of it. Never does: measure.
Figures of different processors are never compared: each machine has a table and a line of its own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peer.machine import describe
from core import __version__
from core_commands.bench.plot import svg

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "history.jsonl"
PAGE = ROOT / "docs" / "history.md"
PLOT = ROOT / "docs" / "history.svg"
OURS = "core bf16"
"""Contender of the comparison with peers whose figures are kept."""
SHOWN = {
    "s1 decode tok/s": "one stream, tokens/s",
    "s2 prompt tok/s": "prompt of 1,024, tokens/s",
    "s3 output tok/s": "64 requests, tokens/s",
    "s5 output tok/s": "64 streams over HTTP, tokens/s",
    "s5 TTFT p50 ms": "first token over HTTP, median ms",
    "s6 start s": "start, s",
}
"""{figure: its heading} of the tables, in their order."""
DRAWN = ("s1 decode tok/s", "s3 output tok/s", "s5 TTFT p50 ms")
MISSING = "–"

INTRO = """# Figures over versions

Written by `python -m benchmarks.history page` from `docs/history.jsonl`. After a measurement,
`python -m benchmarks.history keep FILE.json` adds its line: FILE is what `python -m benchmarks.run --json FILE.json` or
`python -m benchmarks.peers` wrote. [performance.md](performance.md) says what S1 to S5 are.

Rows of one table were measured on one kind of machine with one model, and may be compared as far as its state at the time
allows (`bad`: others took memory bandwidth meanwhile).

![Figures over versions](history.svg)
"""


class Measured(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One line of the file.

    figures: medians by scenario and name. state: of the machine, as the measurement judged it; empty when it did not.
    """

    version: str
    commit: str
    date: str
    processor: str
    cores: str
    model: str
    state: str = ""
    figures: dict[str, float]

    @property
    def machine(self) -> str:
        """What figures must have in common to be compared."""
        return f"{self.processor}, {self.cores} cores, {self.model}"

    @property
    def what(self) -> tuple[str, str, str]:
        """What a line is the only one of."""
        return self.version, self.commit, self.machine


def read(path: Path = KEPT) -> list[Measured]:
    """Return all lines, the oldest first. Raises msgspec.ValidationError for a line of another form."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return sorted((msgspec.json.decode(line, type=Measured) for line in lines), key=lambda row: row.date)


def keep(row: Measured, path: Path = KEPT) -> None:
    """Add a line; one of the same version, commit and machine is replaced."""
    rows = [other for other in read(path) if other.what != row.what] + [row]
    rows.sort(key=lambda other: other.date)
    part = path.with_suffix(".part")
    part.write_bytes(b"".join(msgspec.json.encode(other) + b"\n" for other in rows))
    part.rename(path)


def of_peers(data: Mapping[str, Any]) -> Measured:
    """Return the line of a file of `benchmarks.peers`. Raises KeyError for a file without our figures."""
    machine, blocks = data["machine"], data["blocks"]
    figures = {
        f"{scenario} {name}": statistics.median(row[name] for row in block["rows"][OURS] if name in row)
        for scenario, block in blocks.items()
        if block["rows"].get(OURS)
        for name in block["rows"][OURS][0]
    }
    states = sorted({block["state"] for block in blocks.values()})
    return Measured(
        version=data["engines"][OURS]["version"],
        commit=machine["commit"],
        date=max(block["date"] for block in blocks.values())[:10],
        processor=processor(machine),
        cores=machine["cores"],
        model=f"{data['model']} as bfloat16",
        state=", ".join(states),
        figures=figures,
    )


def of_run(data: Mapping[str, Any], version: str, machine: Mapping[str, str], date: str) -> Measured:
    """Return the line of a file of `benchmarks.run`. machine: what `benchmarks.peer.machine` says of this one."""
    figures = {
        f"{scenario.split()[0]} {name}": float(value)
        for scenario, values in data.items()
        if scenario.split()[0] in ("s1", "s2", "s3", "s4", "s5")
        for name, value in values.items()
        if isinstance(value, int | float)
    }
    if "start" in data:
        figures["s6 start s"] = float(data["start"]["seconds"])
    return Measured(
        version=version,
        commit=machine["commit"],
        date=date,
        processor=processor(machine),
        cores=machine["cores"],
        model="the embedded model",
        figures=figures,
    )


def processor(machine: Mapping[str, str]) -> str:
    """Return a machine's processor with the instruction sets that matter."""
    return f"{machine['processor']} ({machine['instruction sets']})"


def page(rows: Sequence[Measured]) -> str:
    """Return the text of the page."""
    parts = [INTRO]
    for machine in dict.fromkeys(row.machine for row in rows):
        own = [row for row in rows if row.machine == machine]
        shown = [name for name in SHOWN if any(name in row.figures for row in own)]
        heads = ["version", "commit", "date", "state", *(SHOWN[name] for name in shown)]
        lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
        for row in own:
            cells = [row.version, f"`{row.commit}`", row.date, row.state or MISSING]
            cells += [_number(row.figures.get(name)) for name in shown]
            lines.append(f"| {' | '.join(cells)} |")
        parts.append(f"## {machine}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def plot(rows: Sequence[Measured]) -> str:
    """Return the plot: a chart for each figure of `DRAWN`, a line for each machine, a point for each of its rows."""
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name in DRAWN:
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if name in row.figures:
                points = lines.setdefault(row.machine, [])
                points.append((float(len(points) + 1), row.figures[name]))
        if lines:
            charts[SHOWN[name]] = lines
    return svg(charts, "measurement, oldest first")


def _number(value: float | None) -> str:
    """Return a figure with three digits or more."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    """Keep a measurement, or write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("keep", "page"))
    parser.add_argument("file", type=Path, nargs="?", help="what was measured, with `keep`")
    options = parser.parse_args()
    if options.command == "keep":
        if options.file is None:
            parser.error("keep needs the file of a measurement")
        data = json.loads(options.file.read_text())
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        keep(of_peers(data) if "blocks" in data else of_run(data, __version__, describe(), today))
    rows = read()
    PAGE.write_text(page(rows), encoding="utf-8")
    PLOT.write_text(plot(rows), encoding="utf-8")


if __name__ == "__main__":
    main()

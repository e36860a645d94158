"""The figures of a run, as one JSON file that grows block by block, and what follows from them.

Owns: the file, medians, ratios. Never does: measure. Called by: the session, the report, the plot.

Format: {"model": name, "machine": {...}, "engines": {contender: {...}}, "blocks": {scenario: block}}. A block holds
`date`, `quick`, `repeats`, `before` and `after` (limits), `state`, `rows` {contender: [figures a repetition]},
`failures` {contender: reason} and `outputs` {contender: verdict}.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

Block = dict[str, Any]
Figures = dict[str, float]


class Results:
    """Figures by scenario, kept in `path`; an existing file is continued."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        self.data: dict[str, Any] = {"model": "", "machine": {}, "engines": {}, "blocks": {}}
        if path.exists() and not fresh:
            self.data |= json.loads(path.read_text())

    @property
    def blocks(self) -> dict[str, Block]:
        """By scenario."""
        blocks: dict[str, Block] = self.data["blocks"]
        return blocks

    def save(self) -> None:
        """Write the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.data, indent=1, sort_keys=False) + "\n")
        part.rename(self.path)

    def is_complete(self, scenario: str, contenders: list[str], *, quick: bool) -> bool:
        """Whether the scenario was measured in this length, with figures or a failure for each of `contenders`."""
        block = self.blocks.get(scenario)
        if block is None or block["quick"] != quick:
            return False
        return all(block["rows"].get(name) or name in block["failures"] for name in contenders)

    def medians(self, scenario: str) -> dict[str, Figures]:
        """{contender: median of each figure}."""
        block = self.blocks.get(scenario)
        return {} if block is None else {name: medians(rows) for name, rows in block["rows"].items() if rows}

    def value(self, scenario: str, contender: str, figure: str) -> float | None:
        """One median, or None when it was not measured."""
        return self.medians(scenario).get(contender, {}).get(figure)

    def ratio(self, ours: tuple[str, str], theirs: tuple[str, str], figure: str) -> float | None:
        """Ours over theirs, each (scenario, contender). Within one scenario the median of the ratios of each repetition,
        because those ran one after the other; else the ratio of the medians."""
        mine, other = self._rows(*ours, figure), self._rows(*theirs, figure)
        if not mine or not other:
            return None
        if ours[0] == theirs[0] and len(mine) == len(other):
            return statistics.median(a / b for a, b in zip(mine, other, strict=True)) if all(other) else None
        divisor = statistics.median(other)
        return statistics.median(mine) / divisor if divisor else None

    def _rows(self, scenario: str, contender: str, figure: str) -> list[float]:
        block = self.blocks.get(scenario, {"rows": {}})
        return [row[figure] for row in block["rows"].get(contender, []) if figure in row]


def medians(rows: list[Figures]) -> Figures:
    """Each figure's median over the rows that have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: statistics.median(row[name] for row in rows if name in row) for name in names}

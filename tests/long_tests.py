"""Which tests `make test` leaves to `make test-long`, so that it stays under a quarter of an hour on two processors.

`long.toml` names functions: 0 leaves all cases of one out, N leaves out all but every N-th. The command
`python -m tests.long_tests test-report.xml` writes that table anew from the report that `make test-whole` leaves; what
`chosen` names is copied. Called by conftest.py while tests are collected.
"""

from __future__ import annotations

import collections
import math
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    import pytest

TABLE = Path(__file__).with_name("long.toml")
MOST_SECONDS = 1.0
"""A function whose cases take longer together than this is in the table."""


def every_of_functions(path: Path = TABLE) -> dict[str, int]:
    """Return, for each function (`tests/FILE.py::NAME`) or file of the table, which cases `make test` runs: every N-th."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return {**table["long"], **table["chosen"]}


def mark_long(items: Iterable[pytest.Item], rows: Mapping[str, int], others: set[str]) -> None:
    """Mark what `make test` leaves out as `long`.

    others: marks of tests that have a target of their own, and keep it.
    """
    seen: collections.Counter[str] = collections.Counter()
    for item in items:
        name = item.nodeid.split("[")[0]
        every = rows.get(name, rows.get(name.split("::")[0]))
        if every is None or others & {mark.name for mark in item.iter_markers()}:
            continue
        if every == 0 or seen[name] % every:
            item.add_marker("long")
        seen[name] += 1


def measured(report: Path) -> dict[str, list[float]]:
    """Return the seconds of each case of each function in a JUnit report of pytest."""
    seconds: dict[str, list[float]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        # A class of tests is written like one more folder.
        folder = case.get("classname", "").split(".")
        classes = [folder.pop()] if folder[-1][:1].isupper() else []
        name = case.get("name", "").split("[")[0]
        seconds.setdefault("::".join(["/".join(folder) + ".py", *classes, name]), []).append(float(case.get("time", 0)))
    return seconds


def rows_for(seconds: Mapping[str, list[float]]) -> dict[str, int]:
    """Return the rows of functions that take too long: every N-th case where these are short, else none."""
    rows = {}
    for name, cases in seconds.items():
        whole = sum(cases)
        if whole > MOST_SECONDS:
            every = next_prime(math.ceil(whole / MOST_SECONDS))
            rows[name] = every if every <= len(cases) else 0
    return rows


def next_prime(least: int) -> int:
    """Return the first prime from `least` on: cases are products of lists, whose lengths an N with their divisors would meet
    at the same value each time.
    """
    number = max(least, 2)
    while any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number += 1
    return number


def main(*reports: str) -> None:
    """Write the table from reports; a later one counts for the functions that it has. Rows that a person wrote under `chosen`
    are copied with their comments.
    """
    head, _, _ = TABLE.read_text(encoding="utf-8").partition("[long]\n")
    chosen = tomllib.loads(head)["chosen"]
    seconds: dict[str, list[float]] = {}
    for report in reports:
        seconds |= measured(Path(report))
    rows = rows_for(seconds)
    lines = [
        f'"{name}" = {every}' for name, every in sorted(rows.items()) if not {name, name.split("::")[0]} & chosen.keys()
    ]
    TABLE.write_text(f"{head}[long]\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The state of every documented feature of engines of this kind: `python -m tests.docs.features --audit`.

Owns: the rows in `documented/`, the search for the tests that they name, and the comparison of refusals with what the
engine says when it is asked. Never does: run a test, or read a weight. Called by: `tests.docs.features`, and the test
of the audit.

A row is `served`, `in part`, `unrun` (written for a device that no test has had), `refused` or `missing`. It names the
tests that show it, the arguments or environment variables whose refusal it cites, and what it lacks.
"""

import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from core.api.errors import ConfigError
from core.plugin.registry import PluginRegistry
from core_config.arguments.environment import unread
from core_config.arguments.parser import Parser
from core_config.arguments.sources import merge
from core_config.resolve import resolve

TESTS = Path(__file__).parents[1]
FOLDER = Path(__file__).with_name("documented")
NUMBERS = range(1, 494)
"""Numbers of the documented features."""


class Refusal(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A request that the engine answers with a sentence.

    asked: arguments as on a command line, or `NAME=VALUE` of an environment variable.
    says: words of the sentence.
    """

    asked: str
    says: str


class Documented(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A row of a file.

    tests: `PATH::NAME` of a function or class, the path under `tests/`.
    lacks: for `in part` and `missing`: what is not there.
    """

    number: int
    name: str
    state: Literal["served", "in part", "unrun", "refused", "missing"]
    tests: list[str] = []
    refusals: list[Refusal] = []
    lacks: str = ""


class _Area(msgspec.Struct, forbid_unknown_fields=True):
    area: str
    row: list[Documented]


class Asked:
    """The engine's answers to arguments. One registry serves all requests, because discovery takes most of the time."""

    def __init__(self) -> None:
        self._registry = PluginRegistry()
        self._found: dict[Refusal, str] = {}

    def sentence(self, refusal: Refusal) -> str:
        """The sentence with the words of `refusal`; empty when the engine does not say them."""
        if refusal not in self._found:
            answers = (sentence for sentences in self._answers(refusal.asked) for sentence in sentences)
            self._found[refusal] = next((sentence for sentence in answers if refusal.says in sentence), "")
        return self._found[refusal]

    def _answers(self, asked: str) -> Iterator[list[str]]:
        """Sentences of the parser, which take a millisecond, then those of the whole resolution, which take a hundred."""
        if not asked.startswith("-"):
            yield unread([asked.partition("=")[0]], [])
            return
        parsed = Parser().parse(shlex.split(asked))
        merged = merge(parsed.values, {})
        yield [*parsed.problems, *parsed.warnings, *merged.problems, *merged.warnings]
        try:
            done = resolve(
                parsed.values, context="serve", registry=self._registry, environ={}, problems=parsed.problems
            )
        except ConfigError as error:
            yield list(error.problems)
        else:
            yield list(done.warnings)


@cache
def areas() -> dict[str, list[Documented]]:
    """Rows by area. Raises msgspec.ValidationError for a row with another field or state."""
    files = [msgspec.convert(tomllib.loads(path.read_text("utf-8")), _Area) for path in sorted(FOLDER.glob("*.toml"))]
    files.sort(key=lambda file: file.row[0].number)
    return {file.area: file.row for file in files}


def documented() -> list[Documented]:
    """All rows in the order of their numbers."""
    return [row for rows in areas().values() for row in rows]


def faults(row: Documented, asked: Asked) -> list[str]:
    """What is wrong with a row: a state without evidence, a test that is not there, a sentence that nobody says."""
    found = [f"{test}: there is no such test" for test in row.tests if not _exists(test)]
    found += [
        f"{refusal.asked}: the engine does not say {refusal.says!r}"
        for refusal in row.refusals
        if not asked.sentence(refusal)
    ]
    if row.state in ("served", "in part", "unrun") and not row.tests:
        found.append(f"{row.state}, and no test shows it")
    if row.state == "refused" and not row.tests and not row.refusals:
        found.append("refused, and neither a test nor a sentence shows it")
    if row.state == "missing" and (row.tests or row.refusals):
        found.append("missing, and something shows it")
    if (row.state in ("in part", "missing")) != bool(row.lacks):
        found.append(f"{row.state}, and `lacks` is {row.lacks!r}")
    return [f"{row.number} {row.name}: {fault}" for fault in found]


def numbering(rows: Iterable[Documented]) -> list[str]:
    """Numbers that have no row, several rows, or a row in the wrong place."""
    numbers = [row.number for row in rows]
    return [] if numbers == list(NUMBERS) else [f"the rows are not numbered from 1 to {NUMBERS[-1]} without a gap"]


def report(rows: Iterable[Documented], asked: Asked) -> Iterator[str]:
    """Lines for people: a number, a state, a name, then the tests, the sentences and what is lacking."""
    for row in rows:
        yield f"{row.number:3} {row.state:8}{row.name}"
        yield from (f"      shown by tests/{test}" for test in row.tests)
        yield from (f"      {asked.sentence(refusal) or refusal.asked}" for refusal in row.refusals)
        if row.lacks:
            yield f"      lacks: {row.lacks}"


def audit() -> int:
    """Print every row, then the counts, the missing rows and the faults. Returns 1 when there are any of those two."""
    asked = Asked()
    for area, rows in areas().items():
        print(f"{area}\n" + "\n".join(report(rows, asked)), end="\n\n")
    rows = documented()
    states = list(dict.fromkeys(row.state for row in rows))
    print(", ".join(f"{sum(row.state == state for row in rows)} {state}" for state in sorted(states)))
    missing = [row for row in rows if row.state == "missing"]
    for row in missing:
        print(f"missing: {row.number} {row.name}")
    wrong = numbering(rows) + [fault for row in rows for fault in faults(row, asked)]
    for fault in wrong:
        print(f"wrong: {fault}")
    return 1 if missing or wrong else 0


def _exists(test: str) -> bool:
    path, _, name = test.partition("::")
    return name in _names(TESTS / path)


@cache
def _names(path: Path) -> frozenset[str]:
    """Names of the functions and classes in a file of tests. A state machine's class is assigned to its name."""
    if not path.is_file():
        return frozenset()
    return frozenset(
        re.findall(r"^\s*(?:async )?(?:def |class )?([Tt]est\w+)(?:\(| =)", path.read_text("utf-8"), re.MULTILINE)
    )

"""Readable tables: the keywords of JSON Schema, and those that a backend honours.

Owns: the reading of the tables (`keywords.toml` here, `honoured.toml` in each backend's folder). Never does: read a
schema.
Called by: `core_grammars.keywords`, backends' manifests, the generated page.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

MOST_EXPRESSION_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class Keyword:
    """A keyword that asserts something.

    name: as schemas write it.
    value: form of its value, a name of `core_grammars.forms`.
    of: types of the instances that it applies to; empty for all.
    vacuous: a value that demands nothing, or None.
    """

    name: str
    value: str
    of: tuple[str, ...] = ()
    vacuous: Any = None


@dataclass(frozen=True, slots=True)
class Honoured:
    """One row of a backend's table.

    when:  conditions as (name, argument); all of them must hold.
    note:  why they must.
    over:  valid documents that the backend refuses.
    never: why the keyword is not honoured at all; empty where it is.
    """

    when: tuple[tuple[str, str], ...] = ()
    note: str = ""
    over: str = ""
    never: str = ""


@dataclass(frozen=True, slots=True)
class TableLimits:
    """Limits on the specifications that a backend compiles in reasonable time.

    depth: levels of a JSON value.
    nodes: schemas that are reached from the root.
    alternatives: values of one `enum`, choices, properties of one object.
    branches: schemas of one `anyOf`, `oneOf` or `allOf`.
    optional: properties of one object that may be left out.
    expression: states of a regular expression, counts multiplied out.
    """

    depth: int = 100
    nodes: int = 5_000
    alternatives: int = 10_000
    branches: int = 200
    optional: int = 10_000
    expression: int = 10_000


@dataclass(frozen=True, slots=True)
class HonouredTable:
    """Everything that a backend honours.

    rows: by keyword; one that is missing is not honoured.
    limits: see there.
    expressions: parts of regular expressions that are honoured, by place: `pattern` or `regex`.
    """

    rows: dict[str, Honoured]
    limits: TableLimits = TableLimits()
    expressions: dict[str, frozenset[str]] = field(default_factory=dict)


NOT_MEASURED = Honoured(never="nobody has measured it")


@cache
def read_table(path: Path) -> HonouredTable:
    """Read the table in a `honoured.toml`. Raises OSError, tomllib.TOMLDecodeError, and TypeError for an unknown field."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = {name: _row(fields) for name, fields in data["keywords"].items()}
    expressions = {place: frozenset(parts) for place, parts in data.get("expressions", {}).items()}
    return HonouredTable(rows, TableLimits(**data.get("limits", {})), expressions)


def _row(fields: dict[str, Any]) -> Honoured:
    conditions = []
    for condition in fields.get("when", ()):
        name, _, argument = condition.partition(":")
        conditions.append((name, argument.strip()))
    others = {name: value for name, value in fields.items() if name != "when"}
    return Honoured(tuple(conditions), **others)


@cache
def asserting_keywords() -> dict[str, Keyword]:
    """Return the keywords that assert something, by name."""
    rows = _own_tables()["keywords"]
    return {
        name: Keyword(name, row["value"], tuple(row.get("of", ())), row.get("vacuous")) for name, row in rows.items()
    }


@cache
def known_formats() -> frozenset[str]:
    """Return the values of `format` that assert something."""
    return frozenset(_own_tables()["formats"]["known"])


@cache
def _own_tables() -> dict[str, Any]:
    path = Path(__file__).with_name("keywords.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))

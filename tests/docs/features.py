"""What is served, as a table: `python -m tests.docs.features > docs/features.md`.

Owns: the text of docs/features.md, made of the rows of `features.toml`, of the entry points and of the names that are refused.
Never does: write a file. Called by: a person, and the test that the table is current and true.

With `--audit` the state of every documented feature is printed instead (`feature_audit.py`); the exit status is 1 while
one is missing.
"""

import sys
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from core_config.arguments import foreign
from tests.docs import feature_audit
from tests.layout import PROJECTS

ROOT = Path(__file__).parents[2]
ROWS = Path(__file__).with_name("features.toml")

_INTRO = """# What is served

Generated from `tests/docs/features.toml`, the entry points and the table of refused names by
`python -m tests.docs.features`; do not edit. Each row names the page that tells more and the test that shows it.
[arguments.md](arguments.md) has every argument, [requests.md](requests.md) every field of a request."""

_REFUSED = """## What is not served

Each is refused by name, with a sentence, wherever it is asked for; [arguments.md](arguments.md#names-that-are-not-served) has
the names."""


class Row(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A row of the file; its first lines say what the fields are."""

    area: str
    feature: str
    state: str = "served"
    page: str
    test: str
    commands: list[str] = []
    routes: list[str] = []
    plugins: list[str] = []

    @property
    def page_path(self) -> Path:
        """Where it is told."""
        return ROOT / "docs" / self.page

    @property
    def test_path(self) -> Path:
        """What shows it."""
        return ROOT / "tests" / self.test


@cache
def rows() -> list[Row]:
    """All of them, in the order of the file."""
    document = tomllib.loads(ROWS.read_text(encoding="utf-8"))
    return msgspec.convert(document["row"], list[Row])


@cache
def entry_points() -> dict[str, list[str]]:
    """The names of our own plugins by group."""
    found: dict[str, list[str]] = {}
    for project in PROJECTS:
        document: dict[str, Any] = tomllib.loads(project.read_text(encoding="utf-8"))
        for group, names in document["project"].get("entry-points", {}).items():
            found.setdefault(group, []).extend(names)
    return found


def document() -> str:
    """The whole file, with a newline at its end."""
    parts = [_INTRO]
    for area in dict.fromkeys(row.area for row in rows()):
        members = [row for row in rows() if row.area == area]
        cells = [_cells(row) for row in members]
        parts += [f"## {area}", _table(("feature", "state", "told", "shown by"), cells)]
    topics = dict.fromkeys(row.topic for row in foreign.names() if row.kind == "not yet")
    refused = [_topic_cells(topic) for topic in topics]
    parts += [_REFUSED, _table(("what", "names"), refused)]
    return "\n\n".join(parts) + "\n"


def _cells(row: Row) -> tuple[str, str, str, str]:
    feature = row.feature
    names: list[str] = []
    for group in row.plugins:
        names += entry_points().get(group, [])
    if names:
        feature += f" ({', '.join(names)})"
    if row.routes:
        feature += ": " + ", ".join(f"`{route}`" for route in row.routes)
    page = f"[{row.page}]({row.page})"
    test = f"[{row.test}](../tests/{row.test})"
    return feature, row.state, page, test


def _topic_cells(topic: str) -> tuple[str, str]:
    members = [row for row in foreign.names() if row.kind == "not yet" and row.topic == topic]
    shown = ", ".join(f"`{row.flag}`" for row in members[:3])
    more = f" and {len(members) - 3} more" if len(members) > 3 else ""
    return topic, shown + more


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    shown = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for cells in lines:
        shown.append(f"| {' | '.join(cells)} |")
    return "\n".join(shown)


def main(words: Sequence[str]) -> int:
    """Print the page, or with `--audit` every documented feature. Returns the exit status."""
    if words == ["--audit"]:
        return feature_audit.audit()
    if words:
        sys.stderr.write("Usage: python -m tests.docs.features [--audit]\n")
        return 2
    sys.stdout.write(document())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

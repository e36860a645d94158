"""docs/features.md is current, names nothing that is not there, and forgets nothing of what is."""

from __future__ import annotations

import re
from pathlib import Path

from core.commands.known import KNOWN
from core.plugin.kinds import KINDS
from core_apis.openapi import OPERATIONS
from tests.docs.features import ROOT, document, entry_points, rows

PAGE = ROOT / "docs" / "features.md"
README = ROOT / "README.md"
COMMANDS = {name.partition(".")[0] for name in KNOWN}


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), "run: python -m tests.docs.features > docs/features.md"


def test_every_row_is_told_and_shown() -> None:
    for row in rows():
        assert row.page_path.is_file(), row
        assert row.test_path.is_file() and "\ndef test_" in row.test_path.read_text().replace("async def", "def"), row


def test_every_command_route_and_kind_of_plugin_has_a_row() -> None:
    assert sorted(name for row in rows() for name in row.commands) == sorted(COMMANDS)
    assert sorted(path for row in rows() for path in row.routes) == sorted(OPERATIONS)
    named = {group for row in rows() for group in row.plugins}
    kinds = {kind.group for kind in KINDS} - {"core.commands"}  # each command has its row
    assert named >= kinds & set(entry_points())


def links(page: Path) -> list[Path]:
    """Files that a page links to."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return [page.parent / target for target in targets if "://" not in target]


def test_the_pages_that_people_read_first_link_to_what_is_there() -> None:
    pages = [README, *sorted((ROOT / "docs").glob("*.md"))]
    gone = [f"{page.name}: {target}" for page in pages for target in links(page) if not target.exists()]
    assert gone == []


def test_what_the_readme_types_is_there() -> None:
    """Commands of ours, and targets of make."""
    text = README.read_text(encoding="utf-8")
    commands = set(re.findall(r"^core ([a-z-]+)", text, re.MULTILINE))
    assert commands <= set(COMMANDS)
    targets = set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE))
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets <= known

"""docs/features.md is current, names nothing that is not there, and forgets nothing of what is."""

import re
from functools import cache
from pathlib import Path

import pytest

from core.commands.table import KNOWN
from core.plugin.kinds import KINDS
from core_apis.openapi import OPERATIONS
from tests.docs.features import ROOT, document, entry_points, rows
from tests.layout import PACKAGES

PAGE = ROOT / "docs" / "features.md"
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
MAKEFILE = ROOT / "Makefile"
READ_FIRST = [README, CONTRIBUTING, *(ROOT / "docs" / name for name in ("usage.md", "core.md", "architecture.md"))]
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


def links(page: Path) -> list[tuple[Path, str]]:
    """Files that a page links to, each with the heading, as its anchor; both may be the page's own."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text)
    return [(page.parent / target if target else page, anchor) for target, anchor in targets if "://" not in target]


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings_that_are_there() -> None:
    pages = [README, CONTRIBUTING, *sorted((ROOT / "docs").rglob("*.md"))]
    gone = [
        f"{page.name}: {target.name}#{anchor}"
        for page in pages
        for target, anchor in links(page)
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target))
    ]
    assert gone == []


@pytest.mark.parametrize("page", READ_FIRST, ids=lambda page: page.name)
def test_commands_and_make_targets_are_there(page: Path) -> None:
    """In blocks of shell and between back-ticks, of one word or of two."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    code = [*(re.sub(r"#.*", "", block) for block in blocks), *re.findall(r"`([^`\n]+)`", text)]
    typed = {
        name
        for part in code
        for name in re.findall(r"(?:^|[\s(])core ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)", part, re.MULTILINE)
    }
    unknown = [name for name in typed if name.partition(" ")[0] not in KNOWN and name.replace(" ", ".") not in KNOWN]
    assert unknown == []
    targets = {name for part in code for name in re.findall(r"^make ([a-z-]+)", part, re.MULTILINE)}
    assert targets <= set(re.findall(r"^([a-z-]+):", MAKEFILE.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", READ_FIRST, ids=lambda page: page.name)
def test_paths_between_back_ticks_are_there(page: Path) -> None:
    """From the root of the repository; a bare name of a Python file is that of some file."""
    spans = re.findall(r"`([\w./-]+)`", page.read_text(encoding="utf-8"))
    paths = [span for span in spans if re.fullmatch(r"(core|plugins|tests|docs|benchmarks|examples)/[\w./-]*", span)]
    names = [span for span in spans if re.fullmatch(r"\w+\.py", span)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [name for name in names if name not in python_files() and not (ROOT / name).exists()] == []


@cache
def python_files() -> set[str]:
    """Names of all Python files of the product."""
    return {path.name for folder in PACKAGES.values() for path in folder.rglob("*.py")}

"""docs/core.md cites what is there: paths, lines, names and excerpts of the core, and nothing else."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import core_tour
from tests.docs.core_tour import MAX_EXCERPT, PAGE, ROOT, citations, definitions, excerpts, fixed

TEXT = PAGE.read_text(encoding="utf-8")
MAX_LINES = 300
AGAIN = "run: python -m tests.docs.core_tour --fix"


def test_the_tour_is_short() -> None:
    assert len(TEXT.splitlines()) <= MAX_LINES


def test_each_citation_is_the_place_of_its_name() -> None:
    wrong = []
    for citation in citations(TEXT):
        span = citation.span
        if span is None or not span[0] <= citation.line <= span[1]:
            wrong.append(f"{citation}: the name is in lines {span}")
    assert wrong == [], AGAIN
    assert len(citations(TEXT)) > 50


def test_each_excerpt_is_verbatim_and_short() -> None:
    found = excerpts(TEXT)
    assert [excerpt.code for excerpt in found if not excerpt.is_verbatim] == [], AGAIN
    assert all(2 <= len(excerpt.code.splitlines()) <= MAX_EXCERPT for excerpt in found)
    assert len(found) >= 8


def test_the_tour_stays_in_the_core() -> None:
    """Every path is one of `core/`, every file is cited with its line or named once, and links lead to pages."""
    paths = re.findall(r"`([\w.-]+/[\w./-]*)(?::\d+)?`", TEXT)
    assert {path for path in paths if not path.startswith("core/")} == {"plugins/"}
    assert [path for path in paths if not (ROOT / path).exists()] == []
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT)
    assert [link for link in links if not link.endswith(".md")] == []


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A module in a tree of its own, where the tool looks."""
    monkeypatch.setattr(core_tour, "ROOT", tmp_path)
    definitions.cache_clear()
    (tmp_path / "core").mkdir()
    path = tmp_path / "core" / "a.py"
    path.write_text("X = 1\n\n\nclass A:\n    def f(self):\n        one()\n        two()\n        three()\n")
    yield path
    definitions.cache_clear()


def test_the_fixer_moves_lines_renews_excerpts_and_reports_the_rest(file: Path) -> None:
    page = "`core/a.py:1` (`A.f`) does:\n\n```python\none()\nthree()\n```\n\n`core/a.py:9` (`X`).\n"
    text, problems = fixed(page)
    assert text == "`core/a.py:5` (`A.f`) does:\n\n```python\none()\ntwo()\nthree()\n```\n\n`core/a.py:1` (`X`).\n"
    assert problems == []
    _, problems = fixed("`core/a.py:1` (`A.g`) and `core/a.py:4` (`A`):\n\n```python\none()\nfour()\n```\n")
    assert len(problems) == 2
    assert "there is no `A.g`" in problems[0]
    assert "begins with `one()`" in problems[1]

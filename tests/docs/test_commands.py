"""Every `core serve` that a page shows is a command that the engine takes: no name, key or value of it is a mistake."""

import pytest

from core_commands.cli.options import parse_engine_arguments
from tests.docs.commands import commands_of, pages
from tests.layout import ROOT

PAGES = {path.relative_to(ROOT).as_posix(): list(commands_of(path.read_text())) for path in pages()}
SHOWN = {name: commands for name, commands in PAGES.items() if commands}
OWN = ("--models", "--model-budget")
"""Flags of `core serve` with several models, which come before the engine's own."""


def test_pages_show_commands():
    assert sum(map(len, SHOWN.values())) > 100 and "docs/usage.md" in SHOWN


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_shows_commands_that_the_engine_takes(page):
    for words in SHOWN[page]:
        if any(word.startswith("--help") for word in words):
            continue
        parsed = parse_engine_arguments(words, also=())
        assert not parsed.problems and not parsed.warnings, words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("CORE_API_KEY=secret core serve A --port 1 | tee log", ["A", "--port", "1"]),
        ("core serve --x '{\"a\": 1}'   # why", ["--x", '{"a": 1}']),
        ("cd here && .venv/bin/core serve & echo", []),
    ],
)
def test_commands_are_found(line, words):
    assert list(commands_of(f"```bash\n{line}\n```\n")) == [words]

"""The pages of docs/recipes are what their table makes, and the engine takes every command on them without a complaint."""

import re

import pytest

from tests.docs.recipes import PAGES, commands_of, complaints, index, page, recipes


@pytest.mark.parametrize("name", recipes())
def test_the_engine_takes_every_command(name):
    row = recipes()[name]
    for _, arguments in commands_of(row):
        assert not complaints(row, arguments), arguments
    written = (PAGES / f"{name}.md").read_text()
    assert len(re.findall(r"^core serve ", written, re.MULTILINE)) == len(commands_of(row))


def test_pages_are_those_of_the_table():
    assert (PAGES / "README.md").read_text() == index()
    for name in list(recipes())[::5]:
        assert (PAGES / f"{name}.md").read_text() == page(name, recipes()[name])
    assert {path.stem for path in PAGES.glob("*.md")} == {"README", *recipes()}

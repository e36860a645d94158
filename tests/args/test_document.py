"""docs/arguments.md is what the schema says."""

import itertools
from pathlib import Path

from core.args.schema import schema
from core_config.arguments import foreign
from core_config.arguments.document import document


def test_the_checked_in_file_is_current():
    path = Path(__file__).parents[2] / "docs" / "arguments.md"
    current = path.read_text(encoding="utf-8")
    assert current == document(), "run: python -m core_config.arguments.document > docs/arguments.md"


def test_every_spelling_and_every_foreign_name_is_in_it():
    text = document()
    for field in schema().fields.values():
        for flag in field.flags:
            assert f"`{flag}`" in text
        for key in field.keys:
            assert f"`{key}`" in text
    for row in foreign.names():
        assert f"`{row.flag}`" in text


def test_tables_are_well_formed():
    lines = document().splitlines()
    for above, line in itertools.pairwise(lines):
        if line.startswith("|") and above.startswith("|"):
            assert line.replace("\\|", "").count("|") == above.replace("\\|", "").count("|"), line

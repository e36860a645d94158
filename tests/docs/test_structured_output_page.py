"""The page about structured output is what the tables and figures say."""

from pathlib import Path

from tests.grammars.document import document

PAGE = Path(__file__).parents[2] / "docs" / "structured-output.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == document()

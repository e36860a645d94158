"""The page about quantization is what the checkpoints and figures say."""

from pathlib import Path

from tests.checkpoints.document import document

PAGE = Path(__file__).parents[2] / "docs" / "quantization.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == document()

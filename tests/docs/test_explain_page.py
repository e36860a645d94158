"""docs/explain.md lists every cause in the words of the table."""

from pathlib import Path

from core.api.sequence_record import MISS_CAUSES

PAGE = Path(__file__).parents[2] / "docs" / "explain.md"


def test_the_page_has_a_row_for_each_cause_and_no_other() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert rows == [f"| `{cause}` | {meaning} |" for cause, meaning in MISS_CAUSES.items()]

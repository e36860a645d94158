"""The report of `core diff` in Chromium: hostile text stays text, nothing is loaded, and it fits a phone."""

from pathlib import Path
from typing import Any

import pytest

from core_commands.replay.report import as_html
from core_commands.replay.values import ValueDifference
from tests.page.conftest import WIDTHS
from tests.receipts.test_diff_parts import comparison

pytestmark = pytest.mark.page

HOSTILE = [
    "<script>document.title = 'broken'</script>",
    "<img src=http://127.0.0.1:9/x onerror=\"document.title='broken'\">",
    "</pre></section><style>* { display: none }</style>",
    "&lt;b&gt; \u202e turned \x00 cut \ud800",
    "x" * 600,
]


@pytest.mark.parametrize("width", WIDTHS)
def test_text_of_models_and_clients_is_shown_and_does_nothing(browser: Any, tmp_path: Path, width: str) -> None:
    found = comparison(3)
    for row, text in zip(found.rows * 2, HOSTILE, strict=False):
        row.values.append(ValueDifference("json", "choice 0", "broken", text, text))
    path = tmp_path / "report.html"
    path.write_bytes(as_html(found))
    size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
    context = browser.new_context(viewport=size)
    try:
        page = context.new_page()
        complaints: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        assert page.title() == "core diff"
        assert page.locator("section").count() == 3
        shown = page.locator("body").inner_text()
        for text in HOSTILE[:3]:
            assert text in shown
        assert "speed and memory" in shown
        assert asked == [path.as_uri()] and not complaints
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, "wider than the window"
    finally:
        context.close()

"""The page in a headless Chromium, on the real small model: run with `make test-page`, which keeps pictures of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attack.timing import serving

pytestmark = pytest.mark.page

PICTURES = Path(os.environ.get("PAGE_PICTURES", "page-pictures"))
WIDTHS = {"desktop": (1280, 900), "phone": (390, 800)}
ANSWER_MS = 200_000


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(["--max-model-len", "2048"], keys=()) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=WIDTHS)
def page(request: pytest.FixtureRequest, browser: Any, url: str) -> Iterator[Any]:
    width, height = WIDTHS[request.param]
    page = browser.new_page(viewport={"width": width, "height": height})
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(url)
    page.wait_for_selector(".badge.good")
    yield page
    page.screenshot(path=PICTURES / f"{request.node.originalname}-{request.param}.png")
    assert not complaints
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0, "the page is wider than the window"
    page.close()


def ask(page: Any, text: str, **settings: str) -> None:
    for name, value in settings.items():
        page.evaluate("([id, value]) => { document.getElementById(id).value = value; }", [name, value])
    page.fill("#question", text)
    page.press("#question", "Enter")
    page.wait_for_selector("#send:not([hidden])", timeout=ANSWER_MS)


def test_an_answer_streams_with_the_probability_of_each_token(page: Any) -> None:
    ask(page, "Count to three. <img src=x onerror=document.title='run'>", max_tokens="24", temperature="0")
    assert page.locator("article.assistant .text").inner_text().strip()
    assert page.locator(".strip rect").count() >= 2
    page.locator(".strip rect").first.hover()
    assert page.locator(".alternative").count() == 5
    assert "tokens a second" in page.locator("#usage").inner_text()
    assert page.title() == "core", "text stays text"
    page.click("#again")
    page.wait_for_selector("#send:not([hidden])", timeout=ANSWER_MS)
    assert page.locator("article").count() == 2


def test_the_end_of_a_long_answer_stays_in_view(page: Any) -> None:
    ask(page, "Write the numbers from one to two hundred, each on a line of its own.", max_tokens="120")
    below = page.evaluate("document.documentElement.scrollHeight - innerHeight - scrollY")
    assert below < 5


def test_a_new_chat_forgets_an_answer_that_still_comes(page: Any) -> None:
    page.evaluate("document.getElementById('max_tokens').value = '400'")
    page.fill("#question", "Tell a long story.")
    page.press("#question", "Enter")
    page.wait_for_selector(".strip rect")
    page.click("#clear")
    ask(page, "Hi", max_tokens="4")
    assert page.locator("article").count() == 2
    assert page.locator("article").first.get_attribute("class") == "user"


def test_an_answer_that_was_stopped_is_kept_and_made_again(page: Any) -> None:
    page.evaluate("document.getElementById('max_tokens').value = '400'")
    page.fill("#question", "Tell a long story.")
    page.press("#question", "Enter")
    page.wait_for_selector(".strip rect")
    page.click("#stop")
    page.wait_for_selector("#send:not([hidden])")
    assert page.locator("article.assistant .text").inner_text().strip()
    page.evaluate("document.getElementById('max_tokens').value = '4'")
    page.click("#again")
    page.wait_for_selector("#send:not([hidden])", timeout=ANSWER_MS)
    assert page.locator("article.assistant").count() == 1


def test_an_answer_follows_a_schema(page: Any) -> None:
    number = {"type": "object", "properties": {"n": {"enum": [3, 4]}}, "required": ["n"], "additionalProperties": False}
    ask(page, "How many legs has a dog?", max_tokens="40", schema=json.dumps(number))
    assert json.loads(page.locator("article.assistant .text").inner_text())["n"] in (3, 4)


def test_mistakes_are_told_and_the_chat_goes_on(page: Any) -> None:
    page.evaluate("document.getElementById('schema').value = '{broken'")
    page.fill("#question", "Hi")
    page.press("#question", "Enter")
    assert "Schema of the answer" in page.locator("[role=alert]").inner_text()
    ask(page, "Hi", schema="", max_tokens="4")
    assert page.locator("article.assistant").count() == 1


def test_rates_and_requests_are_live(page: Any) -> None:
    ask(page, "Tell a story.", max_tokens="40")
    page.click("[data-tab=live]")
    page.wait_for_selector(".timeline g")
    page.locator(".spark").nth(7).wait_for()
    assert "prompt tokens" in page.locator(".timeline g title").last.text_content()


def test_values_have_room_on_a_phone(page: Any) -> None:
    page.click("[data-tab=configuration]")
    page.wait_for_selector("#explained td")
    narrowest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('#explained td:nth-child(2)')].map(e => e.clientWidth))"
    )
    assert narrowest > 150


def test_the_configuration_is_explained(page: Any) -> None:
    page.click("[data-tab=configuration]")
    page.wait_for_selector("td")
    page.fill("#filter", "block_size")
    (row,) = page.locator("#explained tbody").first.locator("tr").all_inner_texts()
    assert "platform cpu" in row

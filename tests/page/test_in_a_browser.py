"""The page in a headless Chromium, on the real small model: run with `make test-page`, which keeps pictures of it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.attack.timing import serving
from tests.page.conftest import answer_of, ask, start, wait_for_end

pytestmark = pytest.mark.page


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(["--max-model-len", "2048"], keys=()) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture
def page(opened: Callable[[str], Any], url: str) -> Any:
    return opened(url)


def test_an_answer_streams_with_the_probability_of_each_token(page: Any) -> None:
    ask(page, "Count to three. <img src=x onerror=document.title='run'>", max_tokens="24", temperature="0")
    assert answer_of(page)
    page.click(".sureness summary")
    assert page.locator(".strip rect").count() >= 2
    page.locator(".strip rect").first.hover()
    assert page.locator(".alternative").count() == 5
    assert "tokens a second" in page.locator(".figures").inner_text()
    assert page.title() == "core", "text stays text"
    page.get_by_role("button", name="Retry").click()
    wait_for_end(page)
    assert page.locator("article").count() == 2


def test_tokens_are_looked_at_with_the_keyboard(page: Any) -> None:
    ask(page, "Count to three.", max_tokens="8", temperature="0")
    page.focus(".sureness summary")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    last = page.locator(".around mark").inner_text()
    page.keyboard.press("Home")
    assert page.locator(".around mark").inner_text() != last
    assert page.locator(".alternative").count() == 5


def test_the_end_of_a_long_answer_stays_in_view(page: Any) -> None:
    ask(page, "Write the numbers from one to two hundred, each on a line of its own.", max_tokens="120")
    below = page.evaluate("document.documentElement.scrollHeight - innerHeight - scrollY")
    assert below < 5


def test_a_new_chat_forgets_an_answer_that_still_comes(page: Any) -> None:
    start(page, "Tell a long story.", max_tokens="400")
    page.wait_for_selector("article.assistant .text p")
    page.click("#clear")
    ask(page, "Hi", max_tokens="4")
    assert page.locator("article").count() == 2
    assert page.locator("article").first.get_attribute("class") == "user"


def test_an_answer_that_was_stopped_is_kept_and_made_again(page: Any) -> None:
    start(page, "Tell a long story.", max_tokens="400")
    page.wait_for_selector("article.assistant .text p")
    page.keyboard.press("Escape")
    wait_for_end(page)
    assert answer_of(page)
    assert page.locator(".actions", has_text="stopped").count() == 1
    page.evaluate("document.getElementById('max_tokens').value = '4'")
    page.get_by_role("button", name="Retry").click()
    wait_for_end(page)
    assert page.locator("article.assistant").count() == 1


def test_an_answer_follows_a_schema(page: Any) -> None:
    number = {"type": "object", "properties": {"n": {"enum": [3, 4]}}, "required": ["n"], "additionalProperties": False}
    ask(page, "How many legs has a dog?", max_tokens="40", schema=json.dumps(number))
    assert json.loads(answer_of(page))["n"] in (3, 4)


def test_mistakes_are_told_and_the_chat_goes_on(page: Any) -> None:
    start(page, "Hi", schema="{broken")
    assert "Schema of the answer" in page.locator("#conversation [role=alert]").inner_text()
    page.evaluate(
        "['schema', 'max_tokens'].forEach((id, at) => { document.getElementById(id).value = ['', '4'][at]; })"
    )
    page.get_by_role("button", name="Try again").click()
    wait_for_end(page)
    assert page.locator("article.assistant").count() == 1
    assert page.locator("#conversation [role=alert]").count() == 0


def test_rates_and_requests_are_live(page: Any) -> None:
    ask(page, "Tell a story.", max_tokens="40")
    page.click("[data-tab=live]")
    page.wait_for_selector(".timeline g")
    page.locator(".spark").nth(7).wait_for()
    assert "prompt tokens" in page.locator(".timeline g title").first.text_content()


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

"""Pages in a headless Chromium, at the widths of a desk and of a phone. A page that complains or is too wide fails its test."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PICTURES = Path(os.environ.get("PAGE_PICTURES", "page-pictures"))
WIDTHS = {"desktop": (1440, 900), "phone": (390, 844)}
ANSWER_MS = 200_000


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=WIDTHS)
def opened(request: pytest.FixtureRequest, browser: Any) -> Iterator[Callable[[str], Any]]:
    """Opens an address. Complaints of the browser that a test expects are taken out of `page.complaints`."""
    width, height = WIDTHS[request.param]
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    complaints: list[str] = []
    page.complaints = complaints
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)

    def open_(url: str) -> Any:
        page.goto(url)
        page.wait_for_selector(".badge.good")
        return page

    yield open_
    page.screenshot(path=PICTURES / f"{request.node.originalname}-{request.param}.png")
    assert not complaints
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0, "the page is wider than the window"
    context.close()


def start(page: Any, text: str, **settings: str) -> None:
    """Send a question."""
    for name, value in settings.items():
        page.evaluate("([id, value]) => { document.getElementById(id).value = value; }", [name, value])
    page.fill("#question", text)
    page.press("#question", "Enter")


def ask(page: Any, text: str, **settings: str) -> None:
    """Send a question, and wait until its answer has ended."""
    start(page, text, **settings)
    wait_for_end(page)


def wait_for_end(page: Any) -> None:
    page.wait_for_selector("#send:not([hidden])", timeout=ANSWER_MS)


def answer_of(page: Any) -> str:
    """The text of the last answer."""
    return str(page.locator("article.assistant .text").last.inner_text()).strip()

"""The page with a scripted model: what models write, reasoning, tools, keys, servers that go away."""

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from core_config.served.server_config import ServerConfig
from tests.apis.conftest import run_server
from tests.apis.serving_processes import free_port
from tests.page.conftest import answer_of, ask, start, wait_for_end

pytestmark = pytest.mark.page

ROOT = Path(__file__).parents[2]
FENCE = "```"
FORMS = f"""# A title

Words that are **strong**, *leaning* or `code`; snake_case_name and 2*3*4 stay.

1. one
   - inside
2. two

| Name | Value |
|---|---|
| a | 1 |

{FENCE}python
print("x" * 3)
{FENCE}
"""
RIGHT_TO_LEFT = "مرحبا بالعالم\n\n1. الأول\n2. الثاني\n\nEnglish again."
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def hostile(port: int) -> str:
    """An answer that tries to run, to load and to hide."""
    return f"""<script>document.title = "run"</script> <img src=x onerror="document.title = 'run'">
![pixel](http://127.0.0.1:{port}/pixel.png) [click](javascript:document.title='run') [d](data:text/html,<b>x)
<iframe src="http://127.0.0.1:{port}/frame"></iframe> <style>body {{ display: none }}</style>
[words](http://127.0.0.1:{port}/?"onmouseover="document.title='run')"""


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[tuple[int, list[str]]]:
    """A server that nothing should ask: its port, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port, asked
    server.shutdown()
    server.server_close()


@contextmanager
def scripted(port: int, script: Path) -> Iterator[str]:
    command = [sys.executable, str(ROOT / "tests/clients/serve_scripted.py"), str(port), str(script)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(30)


def wait_for(url: str) -> None:
    client = httpx.Client(transport=httpx.HTTPTransport(retries=8))
    assert client.get(url, timeout=60).status_code == 200


@pytest.fixture(scope="module")
def script(elsewhere: tuple[int, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        ("FORMS", FORMS),
        ("HOSTILE", hostile(elsewhere[0])),
        ("ARABIC", RIGHT_TO_LEFT),
        ("THINK", "<think>\nIt is six plus one.\n</think>\n\nSeven."),
        ("NOTHING", ""),
        ("WEATHER", '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'),
        ("rain in Oslo", "It rains."),
        ("LONG", "\n\n".join(f"Paragraph {number} of many words." for number in range(400))),
        ("CHANGED", "The changed answer."),
    ]
    path = tmp_path_factory.mktemp("script") / "script.json"
    path.write_text(json.dumps(rows))
    return path


@pytest.fixture(scope="module")
def url(script: Path) -> Iterator[str]:
    with scripted(free_port(), script) as url:
        yield url


@pytest.fixture
def page(opened: Callable[[str], Any], url: str) -> Any:
    return opened(url)


def test_forms_that_models_write_are_shown(page: Any) -> None:
    ask(page, "FORMS", max_tokens="2000")
    shown = page.locator("article.assistant .text")
    assert shown.locator("h3").inner_text() == "A title"
    assert shown.locator("strong").inner_text() == "strong"
    assert shown.locator("em").all_inner_texts() == ["leaning"]
    assert shown.locator("ol > li").count() == 2 and shown.locator("ol ul > li").count() == 1
    assert shown.locator("td").all_inner_texts() == ["a", "1"]
    assert shown.locator("pre").inner_text() == 'print("x" * 3)'
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy code").click()
    page.get_by_role("button", name="Copy code").get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == 'print("x" * 3)'


def test_what_a_model_writes_neither_runs_nor_loads(page: Any, elsewhere: tuple[int, list[str]]) -> None:
    ask(page, "HOSTILE", max_tokens="2000")
    text = answer_of(page)
    assert '<script>document.title = "run"</script>' in text and "javascript:" in text
    page.mouse.move(200, 300)
    links = page.locator("article.assistant a").evaluate_all("all => all.map(each => each.href)")
    assert links and all(link.startswith("http://127.0.0.1") for link in links)
    assert page.locator("article.assistant :is(img, script, iframe, style)").count() == 0
    assert page.title() == "core"
    assert elsewhere[1] == []


def test_directions_follow_the_text(page: Any) -> None:
    ask(page, "ARABIC", max_tokens="2000")
    directions = page.locator("article.assistant .text > *").evaluate_all(
        "all => all.map(e => getComputedStyle(e).direction)"
    )
    assert directions == ["rtl", "rtl", "ltr"]


def test_reasoning_is_folded_away_and_can_be_read(page: Any) -> None:
    ask(page, "THINK", max_tokens="2000")
    assert answer_of(page) == "Seven."
    thoughts = page.locator(".reasoning:visible .thoughts")
    assert not thoughts.is_visible()
    page.click(".reasoning:visible summary")
    assert thoughts.inner_text() == "It is six plus one."


def test_the_reader_plays_the_tool(page: Any) -> None:
    ask(page, "WEATHER", max_tokens="2000", tools=json.dumps([TOOL]))
    assert page.locator("pre.call").inner_text() == 'weather({"city": "Oslo"})'
    page.get_by_label("Result of weather").last.fill("rain in Oslo")
    page.get_by_role("button", name="Give results").click()
    page.wait_for_selector("article.tool + article.assistant")
    wait_for_end(page)
    assert answer_of(page) == "It rains."


def test_a_question_is_changed_and_what_came_after_it_goes(page: Any) -> None:
    ask(page, "THINK", max_tokens="2000")
    ask(page, "and again")
    page.get_by_role("button", name="Edit").first.click()
    page.keyboard.press("Escape")
    assert page.locator("article").count() == 4, "left as it was"
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Changed question").fill("CHANGED")
    page.keyboard.press("Enter")
    page.wait_for_selector("article.assistant")
    wait_for_end(page)
    assert page.locator("article").count() == 2
    assert answer_of(page) == "The changed answer."


def test_a_page_that_is_loaded_again_goes_on(page: Any) -> None:
    ask(page, "THINK", max_tokens="2000", system="Be short.")
    page.dispatch_event("#system", "input")
    page.reload()
    page.wait_for_selector(".badge.good")
    assert answer_of(page) == "Seven."
    assert page.input_value("#system") == "Be short."
    ask(page, "CHANGED")
    assert page.locator("article").count() == 4
    other = page.context.new_page()
    other.goto(page.url)
    assert other.locator("#welcome").is_visible(), "another tab has a chat of its own"


def test_an_empty_answer_is_told(page: Any) -> None:
    ask(page, "NOTHING", max_tokens="2000")
    assert page.locator("#conversation [role=alert]").inner_text().startswith("The model wrote nothing.")


def test_a_reader_who_scrolled_up_is_left_there(page: Any) -> None:
    start(page, "LONG", max_tokens="20000")
    page.wait_for_selector("article.assistant .text > :nth-child(100)")
    page.mouse.move(200, 300)
    page.mouse.wheel(0, -300)  # less than one frame brings
    wait_for_end(page)
    below = page.evaluate("document.documentElement.scrollHeight - innerHeight - scrollY")
    assert below > 1000
    page.get_by_role("button", name="To the end").click()
    assert "Paragraph 399" in answer_of(page)
    assert page.evaluate("document.documentElement.scrollHeight - innerHeight - scrollY") < 5


def test_everything_is_reached_with_the_keyboard_and_has_a_name(page: Any) -> None:
    ask(page, "FORMS", max_tokens="2000")
    nameless = page.evaluate(
        """[...document.querySelectorAll('button, input, textarea, select, [tabindex="0"]')].filter(each =>
           !(each.getAttribute('aria-label') || each.getAttribute('aria-labelledby') || each.textContent.trim()
             || each.labels?.length)).map(each => each.outerHTML)"""
    )
    assert nameless == []
    page.focus("#tab_chat")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#live:not([hidden])")
    assert page.evaluate("document.activeElement.id") == "tab_live"
    assert page.locator("#tab_live").get_attribute("aria-selected") == "true"
    page.keyboard.press("ArrowLeft")
    page.focus("#question")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label') || ''") != "Question"


def test_a_server_that_goes_away_and_comes_back(opened: Callable[[str], Any], script: Path) -> None:
    port = free_port()
    with scripted(port, script) as url:
        page = opened(url)
        ask(page, "THINK", max_tokens="2000")
    start(page, "CHANGED")
    page.wait_for_selector("#conversation [role=alert]")
    assert "cannot be reached" in page.locator("#conversation [role=alert]").inner_text()
    page.wait_for_selector(".badge.bad")
    with scripted(port, script):
        page.wait_for_selector(".badge.good")
        page.get_by_role("button", name="Try again").click()
        page.wait_for_selector("article.user + article.assistant >> nth=1")
        wait_for_end(page)
    assert answer_of(page) == "The changed answer."
    assert page.locator("article").count() == 4
    page.complaints[:] = [each for each in page.complaints if "ERR_CONNECTION" not in each]


def test_a_key_is_asked_for_and_told_when_it_is_wrong(opened: Callable[[str], Any]) -> None:
    with run_server(ServerConfig(api_keys=("right",), uvicorn_log_level="warning")) as running:
        page = opened(running.url)
        page.get_by_text("This server asks for an API key.").wait_for()
        assert page.evaluate("document.activeElement.id") == "key"
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.get_by_text("The server does not know this API key.").wait_for()
        page.fill("#key", "right")
        page.get_by_role("button", name="Use key").click()
        page.get_by_text("fake-model", exact=True).first.wait_for()
        ask(page, "Hi", max_tokens="4")
        assert answer_of(page)
        page.complaints[:] = [each for each in page.complaints if "401" not in each]

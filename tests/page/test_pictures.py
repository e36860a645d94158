"""Pictures on the page: picked, pasted and dropped, with a model that sees and with one that does not."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from core_config.served.server_config import ServerConfig
from tests.apis.conftest import run_server
from tests.apis.test_real_server import serving
from tests.media.checkpoints import file_of, picture, save_llava
from tests.page.conftest import ask, wait_for_end

pytestmark = pytest.mark.page

GIVE = """([event, data, name, kind]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const given = new DataTransfer();
  given.items.add(new File([bytes], name, { type: kind }));
  const more = { bubbles: true, cancelable: true };
  const made = event === "paste" ? new ClipboardEvent(event, { ...more, clipboardData: given })
    : new DragEvent(event, { ...more, dataTransfer: given });
  document.getElementById("question").dispatchEvent(made);
}"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("sees")
    model = save_llava(directory / "model")
    with serving(directory / "log", "--model", str(model), "--limit-mm-per-prompt", "image=3") as running:
        yield running.base + "/"


def give(page: Any, event: str, name: str, kind: str = "image/png", data: bytes | None = None) -> None:
    content = file_of(picture(1)) if data is None else data
    page.evaluate(GIVE, [event, base64.b64encode(content).decode(), name, kind])


def test_pictures_are_picked_pasted_and_dropped(opened: Callable[[str], Any], url: str) -> None:
    page = opened(url)
    sent: list[Any] = []
    page.on("request", lambda request: sent.append(request.post_data) if "completions" in request.url else None)
    page.set_input_files("#files", {"name": "picked.png", "mimeType": "image/png", "buffer": file_of(picture(2))})
    give(page, "paste", "pasted.png")
    give(page, "drop", "dropped.png")
    page.wait_for_function("document.querySelectorAll('#attachments img').length === 3")
    page.wait_for_function(
        "[...document.querySelectorAll('#attachments img')].every((each) => each.naturalWidth === 50)"
    )
    page.get_by_role("button", name="Remove dropped.png").click()
    ask(page, "What is this?", max_tokens="4")
    content = json.loads(sent[0])["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["image_url", "image_url", "text"]
    assert base64.b64decode(content[0]["image_url"]["url"].partition(",")[2]) == file_of(picture(2))
    assert page.locator("#attachments img").count() == 0
    assert page.locator("article.user img").count() == 2
    page.reload()
    page.wait_for_selector("article.user img")
    page.get_by_role("button", name="Edit").click()
    page.locator(".edit textarea").fill("And now?")
    page.locator(".edit button[type=submit]").click()
    wait_for_end(page)
    content = json.loads(sent[-1])["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["image_url", "image_url", "text"]
    assert content[-1]["text"] == "And now?"


def test_what_is_no_picture_is_told(opened: Callable[[str], Any], url: str) -> None:
    page = opened(url)
    give(page, "drop", "words.txt", "text/plain", b"words")
    page.wait_for_selector("#picture_error:not([hidden])")
    assert "words.txt is of type text/plain; expected a picture" in page.locator("#picture_error").inner_text()
    give(page, "paste", "damaged.png", data=b"no picture")
    page.wait_for_selector("#attachments img", state="attached")
    page.press("#question", "Enter")
    page.wait_for_selector("#conversation [role=alert]")
    assert "content[0]" in page.locator("#conversation [role=alert]").inner_text()
    page.complaints.clear()  # the browser's own, about the answer 400


def test_a_model_without_eyes_is_shown_nothing(opened: Callable[[str], Any]) -> None:
    with run_server(ServerConfig(uvicorn_log_level="warning")) as running:
        page = opened(running.url)
        page.wait_for_function("document.getElementById('model').dataset.sees")
        assert not page.locator("#attach").is_visible()
        give(page, "paste", "pasted.png")
        page.wait_for_selector("#picture_error:not([hidden])")
        assert "takes text alone" in page.locator("#picture_error").inner_text()
        assert page.locator("#attachments img").count() == 0

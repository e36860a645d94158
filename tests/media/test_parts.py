"""Parts of messages with media, for models that take pictures and for those that do not."""

from typing import Any

import pytest

from core.api.errors import RequestError
from core_apis.responses.conversation import messages_of
from core_media.config import MediaConfig
from core_media.reading.parts import take_media

CONFIG = MediaConfig(model="", model_type="llava", placeholder="<image>", token_id=1, limits={"image": 2})
URL = "data:image/png;base64,AAAA"


def conversation(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_pictures_are_taken_out_in_order() -> None:
    first = {"type": "image_url", "image_url": {"url": URL, "detail": "high"}}
    messages = [{"role": "system", "content": "x"}, *conversation(first, {"type": "text", "text": "y"}, first)]
    sources = take_media(messages, CONFIG, "")
    assert [source.place for source in sources] == ["messages[1].content[0]", "messages[1].content[2]"]
    assert sources[0].data == bytes(3)
    assert sources[0].declared == "image/png"
    assert [part["type"] for part in messages[1]["content"]] == ["image", "text", "image"]


@pytest.mark.parametrize("kind", ["image_url", "input_image", "image", "input_audio", "video_url", "file"])
def test_models_of_text_refuse_each_with_the_reason(kind: str) -> None:
    with pytest.raises(
        RequestError, match=rf"content\[0\] is of type '{kind}'; .* 'text' only \(the model takes text\)"
    ):
        take_media(conversation({"type": kind, "image_url": URL}), None, "the model takes text")


def test_the_place_in_a_body_of_another_api_is_told() -> None:
    item = {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": URL}]}
    messages = messages_of("instruction", [item])
    with pytest.raises(RequestError, match=r"input\[0\].content\[1\] is of type 'input_image'"):
        take_media(messages, None, "")
    assert [source.place for source in take_media(messages, CONFIG, "")] == ["input[0].content[1]"]


def test_the_limit_counts_all_messages() -> None:
    picture = {"type": "image_url", "image_url": URL}
    with pytest.raises(RequestError, match=r"messages\[1\].content\[1\] is picture 3 of the prompt; at most 2"):
        take_media([*conversation(picture), *conversation(picture, picture)], CONFIG, "")

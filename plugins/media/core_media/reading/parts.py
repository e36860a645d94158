"""The parts of messages that hold media, in the forms of the OpenAI APIs.

Owns: taking them out of messages, in order, and the refusal of those that are not served. Never does: decode a picture, or
render a template. Called by: what prepares requests, `LLM.chat`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from core.api.errors import RequestError
from core_media.config import IMAGE, MediaConfig
from core_media.reading.source import MediaSource, source_of

IMAGE_TYPES: Final = ("image_url", "input_image")
OTHERS: Final[Mapping[str, str]] = MappingProxyType({
    "audio_url": "audio", "input_audio": "audio", "video_url": "video", "video": "video", "audio": "audio",
    "input_video": "video", "image_embeds": "embeddings of images", "audio_embeds": "embeddings of sound",
    "file": "files", "input_file": "files",
})  # fmt: skip
"""Types of parts that are not served, with what they hold."""
SHOWN: Final = "image"
"""Type of the part that a chat template reads in place of a picture's."""


class ShownPicture(dict[str, Any]):
    """The part that a chat template reads in place of a picture's. No client can send one."""


class PlacedPicture(dict[str, Any]):
    """A part with a picture that another API's body had at `place`, where its type was `kind`."""

    def __init__(self, url: object, place: str, kind: str) -> None:
        super().__init__(type=IMAGE_TYPES[0], image_url={"url": url})
        self.place = place
        self.kind = kind


def take_media(
    messages: list[dict[str, Any]], config: MediaConfig | None, reason: str, param: str = "messages"
) -> list[MediaSource]:
    """Take all pictures out of messages, whose parts become what templates read. Raises RequestError.

    reason: why the model takes no pictures, where `config` is None.
    """
    sources: list[MediaSource] = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, Sequence) or isinstance(content, str):
            continue
        parts = [_taken(part, f"{param}[{index}].content[{number}]", param, config, reason, sources)
                 for number, part in enumerate(content)]  # fmt: skip
        if parts != list(content):
            messages[index] = {**message, "content": parts}
    return sources


def _taken(
    part: Any, place: str, param: str, config: MediaConfig | None, reason: str, sources: list[MediaSource]
) -> Any:
    """Return what a template reads in place of a part; a picture is added to `sources`. Raises RequestError."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, PlacedPicture):
        place = part.place
    if kind not in IMAGE_TYPES and kind not in OTHERS and kind != SHOWN:
        return part
    if config is None or kind in OTHERS or kind == SHOWN:
        shown = part.kind if isinstance(part, PlacedPicture) else kind
        raise RequestError(f"{place} is of type {shown!r}; {_takes(config, reason)}", param=param)
    check_room(len(sources), config, place, param)
    sources.append(source_of(_url(part, str(kind), place, param), place, param))
    return ShownPicture(type=SHOWN)


def check_room(count: int, config: MediaConfig, place: str, param: str) -> None:
    """Raise RequestError for one picture more than a prompt may have. count: pictures before it."""
    most = config.limits[IMAGE]
    if count >= most:
        raise RequestError(
            f"{place} is picture {count + 1} of the prompt; at most {most} are taken (--limit-mm-per-prompt).",
            param=param,
        )


def _takes(config: MediaConfig | None, reason: str) -> str:
    if config is None:
        because = f" ({reason})" if reason else ""
        return f"this model takes parts of type 'text' only{because}."
    return "this model takes parts of type 'text' and 'image_url' only."


def _url(part: Mapping[str, Any], kind: str, place: str, param: str) -> object:
    if part.get("file_id") is not None:
        raise RequestError(f"{place}.file_id: files are not kept here; send the picture as a data URL.", param=param)
    url = part.get("image_url")
    return url.get("url") if isinstance(url, Mapping) else url

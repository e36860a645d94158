"""One item of a request, before it is read.

Owns: `MediaSource`, and data URLs. Never does: fetch, or decode an item. Called by: the readers of parts, what prepares
requests.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from core.api.errors import RequestError
from core_media.config import IMAGE, NOUNS
from core_media.reading.rows import Given

DATA: Final = "data:"
MOST_CHARACTERS: Final = 256
"""Most characters of an item's id."""


class MediaSource(msgspec.Struct):
    """A picture, sound or video as a request names it: its bytes, or a URL of http, https or file.

    place:    of its part in the request, for errors.
    param:    field of the request.
    declared: type that the client named, such as image/png; empty: none.
    options:  arguments of the image processor.
    embeds:   rows in place of the item; None: there are none.
    frames:   whether `data` are frames that a script gave (`core_media.frames`), and no file.
    uuid:     the client's id of the item; empty: it has none.
    is_name_alone: whether the id stands for an item that the request does not have.
    """

    place: str
    param: str
    data: bytes = b""
    url: str = ""
    declared: str = ""
    options: dict[str, object] = {}
    modality: str = IMAGE
    frames: bool = False
    embeds: Given | None = None
    uuid: str = ""
    is_name_alone: bool = False

    def name(self, uuid: object, *, alone: bool = False) -> MediaSource:
        """Set the id of the item, and return the source. alone: whether the request has the id only. Raises RequestError."""
        if uuid is None:
            return self
        if not isinstance(uuid, str) or not 1 <= len(uuid) <= MOST_CHARACTERS:
            raise self.error(f"the id is {str(uuid)[:80]!r}; expected a text of 1 to {MOST_CHARACTERS} characters")
        if self.embeds is not None:
            raise self.error("rows are known by their digest; leave the id out")
        self.uuid, self.is_name_alone = uuid, alone
        return self

    def error(self, error: RequestError | str) -> RequestError:
        """Return an error about this item, which begins with its place."""
        if isinstance(error, str):
            error = RequestError(error)
        return RequestError(
            f"{self.place}: {error}.",
            param=self.param,
            status=error.status,
            code=error.code,
            retry_after=error.retry_after,
        )


EXAMPLES: Final = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4"}


def source_of(url: object, place: str, param: str, modality: str = IMAGE) -> MediaSource:
    """Return the source that a URL names; data URLs are decoded. Raises RequestError."""
    source = MediaSource(place, param, modality=modality)
    example = f"data:{EXAMPLES[modality]};base64,..."
    if not isinstance(url, str) or not url:
        raise source.error(f"the URL is missing; expected {example}, or a URL of http or https")
    if url[: len(DATA)].lower() != DATA:
        source.url = url
        return source
    head, comma, body = url[len(DATA) :].partition(",")
    if not comma:
        raise source.error(f"the data URL has no comma; expected {example}")
    kind, *flags = head.split(";")
    source.declared = kind.strip()
    is_base64 = any(flag.strip().lower() == "base64" for flag in flags)
    source.data = from_base64(body, source) if is_base64 else unquote_to_bytes(body)
    return source


def from_base64(text: str, source: MediaSource) -> bytes:
    """Decode base64. Raises RequestError."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (ValueError, binascii.Error):
        noun = NOUNS[source.modality]
        raise source.error(f"the data is no base64; expected the bytes of a {noun} in base64") from None

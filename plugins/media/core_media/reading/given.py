"""Pictures that a script gives: those of `multi_modal_data`, as files that the processing process reads.

Owns: their forms. Never does: process them. Called by: `LLM`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from core.api.errors import RequestError
from core_media.config import IMAGE, MediaConfig
from core_media.reading.parts import check_room
from core_media.reading.source import MediaSource

DATA: Final = "multi_modal_data"
UUIDS: Final = "multi_modal_uuids"
OPTIONS: Final = "mm_processor_kwargs"
EXPECTED: Final = "expected a PIL image, an array [height, width, 3] of uint8, the bytes of a file, or its path"
PNG_MODES: Final = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def given_media(prompt: Mapping[str, Any], config: MediaConfig | None, reason: str) -> list[MediaSource]:
    """Return the pictures of a prompt of a script, in order. Raises RequestError.

    reason: why the model takes no pictures, where `config` is None.
    """
    data = prompt.get(DATA) or {}
    options = prompt.get(OPTIONS) or {}
    if not isinstance(data, Mapping):
        raise RequestError(f'{DATA} is a {type(data).__name__}; expected {{"image": picture}}.', param=DATA)
    for name in data:
        if name != IMAGE:
            raise RequestError(f"{DATA} has {name!r}; pictures ('{IMAGE}') alone are served.", param=DATA)
    if (data or options) and config is None:
        raise RequestError(
            f"The prompt has {DATA!r}, but {reason or 'the model takes text'}; leave it out.", param=DATA
        )
    if prompt.get(UUIDS):
        raise RequestError(
            f"{UUIDS} is not served: a picture is known by the digest of its bytes; leave it out.", param=UUIDS
        )
    pictures = data.get(IMAGE, [])
    if not isinstance(pictures, (list, tuple)):
        pictures = [pictures]
    sources = []
    for index, picture in enumerate(pictures):
        place = f"{DATA}['{IMAGE}'][{index}]"
        assert config is not None
        check_room(index, config, place, DATA)
        sources.append(MediaSource(place, DATA, _file(picture, place), options=dict(options)))
    return sources


def _file(picture: Any, place: str) -> bytes:
    """Return a picture as the bytes of a file, without a loss. Raises RequestError."""
    if isinstance(picture, (bytes, bytearray, memoryview)):
        return bytes(picture)
    if isinstance(picture, (str, Path)):
        try:
            return Path(picture).read_bytes()
        except OSError as error:
            raise RequestError(f"{place}: the file cannot be read ({error}).", param=DATA) from None
    from PIL import Image, ImageOps

    try:
        if not isinstance(picture, Image.Image):
            picture = Image.fromarray(picture)
        picture = ImageOps.exif_transpose(picture)
        if picture.mode not in PNG_MODES:
            picture = picture.convert("RGB")
        stream = io.BytesIO()
        picture.save(stream, "PNG", compress_level=1)
    except Exception as error:
        raise RequestError(f"{place} is a {type(picture).__name__} ({error}); {EXPECTED}.", param=DATA) from None
    return stream.getvalue()

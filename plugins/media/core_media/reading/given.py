"""Media that a script gives: those of `multi_modal_data`, as files that the processing process reads.

Owns: their forms. Never does: process them. Called by: `LLM`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from core.api.errors import RequestError
from core_media.config import AUDIO, IMAGE, NOUNS, VIDEO, MediaConfig
from core_media.frames import packed_frames
from core_media.reading.given_sound import sound_file
from core_media.reading.parts import check_room, embeds_source
from core_media.reading.rows import GRID, KINDS, Given
from core_media.reading.source import MediaSource

DATA: Final = "multi_modal_data"
UUIDS: Final = "multi_modal_uuids"
OPTIONS: Final = "mm_processor_kwargs"
EXPECTED: Final = "expected a PIL image, an array [height, width, 3] of uint8, the bytes of a file, or its path"
PNG_MODES: Final = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def given_media(prompt: Mapping[str, Any], config: MediaConfig | None, reason: str) -> list[MediaSource]:
    """Return the media of a prompt of a script, in order. Raises RequestError.

    reason: why the model takes no media, where `config` is None.
    """
    options = prompt.get(OPTIONS) or {}
    _check_prompt(prompt, config, reason)
    data, uuids = prompt.get(DATA) or {}, prompt.get(UUIDS) or {}
    sources: list[MediaSource] = []
    for name in dict.fromkeys([*data, *uuids]):
        assert config is not None
        _check_modality(name, config, options)
        for index, (item, uuid) in enumerate(_with_ids(data.get(name), uuids.get(name), name)):
            place = f"{DATA}['{name}'][{index}]"
            check_room(index, config, place, DATA, name)
            if item is None:
                sources.append(MediaSource(place, DATA, options=dict(options), modality=name).name(uuid, alone=True))
                continue
            rows = _rows(item, place, name)
            if rows is not None and options:
                raise RequestError(f"{OPTIONS} concerns pictures, and {place} has rows; leave it out.", param=OPTIONS)
            if rows is not None:
                sources.append(_of_rows(rows, config, place, name).name(uuid))
                continue
            sources.append(_source(item, place, name, options).name(uuid))
    return sources


def _check_modality(name: str, config: MediaConfig, options: Mapping[str, Any]) -> None:
    """Raise RequestError for a modality that the model does not take, or to which the options do not apply."""
    if name not in config.places:
        taken = " and ".join(f"'{each}'" for each in config.places)
        why = f" ({config.refusals[name]})" if name in config.refusals else ""
        raise RequestError(f"{DATA} has {name!r}; this model takes {taken} only{why}.", param=DATA)
    if options and name != IMAGE:
        raise RequestError(f"{OPTIONS} concerns pictures; leave it out with {NOUNS[name]}s.", param=OPTIONS)


def set_options(sources: list[MediaSource], options: Mapping[str, Any] | None) -> None:
    """Set the arguments of the image processor that a request gives for all of its pictures. Raises RequestError."""
    if not options:
        return
    others = [source for source in sources if source.modality != IMAGE or source.embeds is not None]
    if others or not sources:
        what = f"{NOUNS[others[0].modality]}s" if others else "no pictures"
        if others and others[0].embeds is not None:
            what = f"rows of {what}"
        raise RequestError(f"{OPTIONS} concerns pictures, and the request has {what}; leave it out.", param=OPTIONS)
    for source in sources:
        source.options = dict(options)


def _check_prompt(prompt: Mapping[str, Any], config: MediaConfig | None, reason: str) -> None:
    """Raise RequestError for fields about media that the model or this engine does not take."""
    data, uuids = prompt.get(DATA) or {}, prompt.get(UUIDS) or {}
    if not isinstance(data, Mapping):
        raise RequestError(
            f'{DATA} is a {type(data).__name__}; expected {{"image": picture}}, "audio" or "video".', param=DATA
        )
    if not isinstance(uuids, Mapping):
        raise RequestError(f'{UUIDS} is a {type(uuids).__name__}; expected {{"image": ["an id"]}}.', param=UUIDS)
    if (data or uuids or prompt.get(OPTIONS)) and config is None:
        raise RequestError(
            f"The prompt has {DATA!r}, but {reason or 'the model takes text'}; leave it out.", param=DATA
        )


def _with_ids(given: Any, ids: Any, modality: str) -> list[tuple[Any, Any]]:
    """Return the items of a modality with their ids, None for one without. An item is None where its id stands for it.

    given: one or several items; None: the request has ids alone. Raises RequestError.
    """
    names = [] if ids is None else list(ids) if isinstance(ids, list | tuple) else [ids]
    items = [None] * len(names) if given is None else _items(given, modality)
    if names and len(names) != len(items):
        raise RequestError(
            f"{UUIDS}['{modality}'] has {len(names)} ids for {len(items)} {NOUNS[modality]}s; expected one for each, or None.",
            param=UUIDS,
        )
    found = list(zip(items, names or [None] * len(items), strict=True))
    for index, (item, name) in enumerate(found):
        if item is None and name is None:
            raise RequestError(
                f"{DATA}['{modality}'][{index}] is None and has no id; give a {NOUNS[modality]}, or its id in {UUIDS}.",
                param=DATA,
            )
    return found


def _items(given: Any, modality: str) -> list[Any]:
    """Return one or several items as a list. A tuple is one sound or video, with its samples or frames a second."""
    if _is_rows(given) and len(given.shape) == 3 and modality in KINDS.values():
        return list(given)
    if isinstance(given, list) or (isinstance(given, tuple) and modality == IMAGE):
        return list(given)
    return [given]


def _rows(item: Any, place: str, modality: str) -> Given | None:
    """Return the rows that stand for an item, in the forms of vLLM: an array or a tensor of floats [rows, size], or a
    mapping with it and its grid; None for the item itself. Raises RequestError.
    """
    name = next((kind for kind, of in KINDS.items() if of == modality), "")
    grid = None
    if isinstance(item, Mapping) and name in item:
        unknown = sorted(set(item) - {name, GRID})
        if unknown:
            raise RequestError(f"{place} has the key {unknown[0]!r:.80}; expected '{name}' and '{GRID}'.", param=DATA)
        item, grid = item[name], item.get(GRID)
    if not name or not _is_rows(item):
        return None
    array = item.detach().cpu().float().numpy() if hasattr(item, "detach") else item
    return Given(np.asarray(array, np.float32), grid)


def _of_rows(rows: Given, config: MediaConfig, place: str, modality: str) -> MediaSource:
    """Return the source of rows of a script. Raises RequestError where the engine takes none."""
    return embeds_source(lambda: rows, config, place, DATA, modality)


def _is_rows(given: Any) -> bool:
    """Whether it is an array or a tensor of floats, and no picture, which has three colours."""
    is_floats = hasattr(given, "shape") and "float" in str(getattr(given, "dtype", ""))
    return is_floats and (len(given.shape) == 2 or (len(given.shape) == 3 and given.shape[-1] != 3))


def _source(item: Any, place: str, modality: str, options: Mapping[str, Any]) -> MediaSource:
    """Return the source of an item. Raises RequestError."""
    if modality == IMAGE:
        return MediaSource(place, DATA, _file(item, place), options=dict(options))
    if modality == AUDIO:
        return MediaSource(place, DATA, sound_file(item, place), modality=AUDIO)
    if isinstance(item, (bytes, bytearray, memoryview, str, Path)):
        return MediaSource(place, DATA, _file(item, place), modality=VIDEO)
    frames, fps = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
    return MediaSource(place, DATA, packed_frames(frames, fps, place), modality=VIDEO, frames=True)


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

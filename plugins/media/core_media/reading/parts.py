"""The parts of messages that hold media, in the forms of the OpenAI APIs.

Owns: taking them out of messages, in order, and the refusal of those that are not served. Never does: decode an item, or
render a template. Called by: what prepares requests, `LLM.chat`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from core.api.errors import RequestError
from core_media.config import AUDIO, IMAGE, NOUNS, VIDEO, MediaConfig
from core_media.reading.rows import KINDS, Given, check_served, given_part
from core_media.reading.source import MediaSource, from_base64, source_of

TYPES: Final[Mapping[str, str]] = MappingProxyType({
    "image_url": IMAGE, "input_image": IMAGE, "audio_url": AUDIO, "input_audio": AUDIO, "video_url": VIDEO, **KINDS,
})  # fmt: skip
"""Types of parts, with their modality."""
OTHERS: Final = frozenset({
    "audio", "file", "image", "input_file", "input_video", "video",
})  # fmt: skip
"""Types of parts that no model takes. Those that templates read are among them: no client can send one."""
UUID: Final = "uuid"
"""Key of a part with the client's id of its item."""
SHOWN: Final[Mapping[str, str]] = MappingProxyType({IMAGE: "image_url", AUDIO: "input_audio", VIDEO: "video_url"})
"""The type that a refusal names for each modality that the model takes."""


class ShownPart(dict[str, Any]):
    """The part that a chat template reads in place of an item's. No client can send one."""


class PlacedPart(dict[str, Any]):
    """A part with an item that another API's body had at `place`, where its type was `kind`."""

    def __init__(self, part: Mapping[str, Any], place: str, kind: str) -> None:
        super().__init__(part)
        self.place = place
        self.kind = kind


def placed_picture(url: object, place: str, kind: str) -> PlacedPart:
    """Return the part of a picture that another API's body had."""
    return PlacedPart({"type": SHOWN[IMAGE], "image_url": {"url": url}}, place, kind)


def take_media(
    messages: list[dict[str, Any]], config: MediaConfig | None, reason: str, param: str = "messages"
) -> list[MediaSource]:
    """Take all items out of messages, whose parts become what templates read. Raises RequestError.

    reason: why the model takes no media, where `config` is None.
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
    """Return what a template reads in place of a part; an item is added to `sources`. Raises RequestError."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, PlacedPart):
        place = part.place
    # What neither holds an item nor a text is not for templates, and a model that takes items says which.
    is_unknown = isinstance(kind, str) and config is not None and not isinstance(part.get("text"), str)
    if not isinstance(kind, str) or (kind not in TYPES and kind not in OTHERS and not is_unknown):
        return part
    modality = TYPES.get(kind, "")
    if config is None or modality not in config.places:
        shown = part.kind if isinstance(part, PlacedPart) else kind
        raise RequestError(f"{place} is of type {shown!r}; {_takes(config, reason, modality)}", param=param)
    check_room(Counter(source.modality for source in sources)[modality], config, place, param, modality)
    sources.append(_named(part, kind, place, param, modality, config))
    return ShownPart(type=modality)


def check_room(count: int, config: MediaConfig, place: str, param: str, modality: str = IMAGE) -> None:
    """Raise RequestError for one item more than a prompt may have. count: items of the modality before it."""
    most = config.limits[modality]
    if count >= most:
        raise RequestError(
            f"{place} is {NOUNS[modality]} {count + 1} of the prompt; at most {most} are taken (--limit-mm-per-prompt).",
            param=param,
        )


def embeds_source(read: Callable[[], Given], config: MediaConfig, place: str, param: str, modality: str) -> MediaSource:
    """Return the source of rows that stand for an item. Raises RequestError, also where the server takes none."""
    source = MediaSource(place, param, modality=modality)
    try:
        check_served(config, modality)
        source.embeds = read()
    except RequestError as error:
        raise source.error(error) from None
    return source


def _takes(config: MediaConfig | None, reason: str, modality: str) -> str:
    """Return which parts the model takes, and why not others, as a sentence."""
    if config is None:
        because = f" ({reason})" if reason else ""
        return f"this model takes parts of type 'text' only{because}."
    taken = " and ".join(f"'{SHOWN[name]}'" for name in config.places)
    why = config.refusals.get(modality)
    return f"this model takes parts of type 'text' and {taken} only{f' ({why})' if why else ''}."


def _named(
    part: Mapping[str, Any], kind: str, place: str, param: str, modality: str, config: MediaConfig
) -> MediaSource:
    """Return the source that a part names, with its id if it has one. Raises RequestError."""
    uuid, given = part.get(UUID), part.get("image_url" if modality == IMAGE and kind not in KINDS else kind)
    if uuid is not None and (given is None or (isinstance(given, Mapping) and given.get("url", "") is None)):
        return MediaSource(place, param, modality=modality).name(uuid, alone=True)
    return _source(part, kind, place, param, modality, config).name(uuid)


def _source(
    part: Mapping[str, Any], kind: str, place: str, param: str, modality: str, config: MediaConfig
) -> MediaSource:
    """Return the source that a part names. Raises RequestError."""
    noun = NOUNS[modality]
    if part.get("file_id") is not None:
        raise RequestError(f"{place}.file_id: files are not kept here; send the {noun} as a data URL.", param=param)
    if kind in KINDS:
        return embeds_source(lambda: given_part(part.get(kind), kind), config, place, param, modality)
    given = part.get("image_url" if modality == IMAGE else kind)
    if kind != "input_audio":
        return source_of(given.get("url") if isinstance(given, Mapping) else given, place, param, modality)
    source = MediaSource(place, param, modality=modality)
    if not isinstance(given, Mapping) or not isinstance(given.get("data"), str):
        raise source.error("input_audio has no data; expected the bytes of a sound in base64, and their format")
    source.declared = f"audio/{given.get('format') or '*'}"
    source.data = from_base64(given["data"], source)
    return source

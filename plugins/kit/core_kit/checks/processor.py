"""Checks of processors: any item that can be decoded has features, or is refused with a sentence, and always the same ones.

Owns: the checks. Never does: know what a tower computes from features. Called by: `core_kit.suite`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from core.api.errors import RequestError
from core.plugin.table import load_plugin
from core_kit.case import Failure, Skipped, Subject
from core_media.config import AUDIO, IMAGE, MODALITIES, NOUNS, VIDEO, MediaConfig
from core_media.contract import Features, Item
from core_media.frames import Video
from core_media.processing.worker import WrongFeatures, checked, checked_frames

SIZES: Final = ((40, 60), (60, 40), (1, 1), (1, 2_000), (2_000, 1), (640, 480))
"""Widths and heights of pictures."""
SECONDS: Final = (1.0, 0.1, 7.3)
LENGTHS: Final = ((1, None), (2, 30.0), (48, 24.0), (90_000, 29.97))
"""Numbers of frames of videos, and frames a second."""


def declares_modalities(subject: Subject) -> None:
    """The capability `modalities` lists what it takes, and it has the parts that these need."""
    taken = _declared(subject)
    unknown = sorted(set(taken) - set(MODALITIES))
    if unknown or not taken:
        raise Failure(f"modalities is {taken}; expected some of {', '.join(MODALITIES)}")
    served = _served(subject)
    rate = getattr(subject.loaded, "sampling_rate", None)
    if AUDIO in served and not (isinstance(rate, int) and rate > 0):
        raise Failure(f"sampling_rate is {rate!r}; a processor of sounds says how many samples a second it is given")
    if VIDEO in served and not callable(getattr(subject.loaded, "frames", None)):
        raise Failure("frames is missing; a processor of videos chooses the frames that are decoded")


def has_an_identity(subject: Subject) -> None:
    """The identity is a text, and the same when the processor is built again."""
    identity = subject.loaded.identity
    if not isinstance(identity, str) or not identity:
        raise Failure(f"identity is {identity!r}; expected a text that is not empty")
    again = load_plugin(subject.manifest, subject.context()).identity
    if again != identity:
        raise Failure(f"identity is {identity[:60]!r}, then {again[:60]!r}: no item would be found in a cache again")


def gives_features(subject: Subject) -> None:
    """An item of every size has features, or is refused with a RequestError."""
    for modality in _served(subject):
        good = 0
        for item in _items(subject, modality):
            good += _features(subject, item) is not None
        if not good:
            raise Failure(f"every item of the modality {modality} was refused")


def gives_the_same_twice(subject: Subject) -> None:
    """An item has the same features again, whatever was processed between, and is not changed."""
    for modality in _served(subject):
        items = list(_items(subject, modality))
        before, first = _bytes(items[0]), _features(subject, items[0])
        for other in items[1:]:
            _features(subject, other)
        if _bytes(items[0]) != before:
            raise Failure(f"process changed the content of an item ({modality}); work on a copy")
        again = _features(subject, items[0])
        if (first is None) != (again is None) or (first and again and _plain(first) != _plain(again)):
            raise Failure(f"the same item ({modality}) had other features when it came again")


def chooses_frames(subject: Subject) -> None:
    """Frames of videos are chosen among those that there are, in order."""
    if VIDEO not in _served(subject):
        raise Skipped("it takes no videos here")
    for total, fps in LENGTHS:
        try:
            checked_frames(subject.loaded.frames(total, fps), total)
        except WrongFeatures as error:
            raise Failure(str(error)) from None


CHECKS: tuple[Callable[[Subject], None], ...] = (
    declares_modalities,
    has_an_identity,
    gives_features,
    gives_the_same_twice,
    chooses_frames,
)


def _declared(subject: Subject) -> list[str]:
    return list(subject.manifest.spec.capabilities.get("modalities", [IMAGE]))


def _served(subject: Subject) -> list[str]:
    """Return what it declares, of the modalities that the model takes."""
    media: MediaConfig = subject.context().options["media"]
    taken = [AUDIO] if media.sound is not None else list(media.places)
    return [modality for modality in taken if modality in _declared(subject)]


def _items(subject: Subject, modality: str) -> Iterator[Item]:
    """Yield items of a modality: a plain one first."""
    noise = np.random.default_rng(0)
    if modality == AUDIO:
        for seconds in SECONDS:
            count = int(seconds * subject.loaded.sampling_rate)
            yield Item(AUDIO, noise.uniform(-0.5, 0.5, count).astype(np.float32))
        return
    for width, height in SIZES:
        if modality == VIDEO:
            frames = noise.integers(0, 256, (4, max(height, 28), max(width, 28), 3), np.uint8)
            yield Item(VIDEO, Video(frames, list(range(4)), 4, 2.0))
        else:
            from PIL import Image

            yield Item(IMAGE, Image.fromarray(noise.integers(0, 256, (height, width, 3), np.uint8)))


def _features(subject: Subject, item: Item) -> Features | None:
    """Return the features of an item; None: it is refused. Raises Failure."""
    what = f"a {NOUNS[item.modality]} of {_size(item)}"
    processor = subject.loaded  # outside of the block below: what cannot be built is skipped
    try:
        made = checked(processor.process(item))
    except RequestError:
        return None
    except WrongFeatures as error:
        raise Failure(f"{what}: {error}") from None
    except Exception as error:
        raise Failure(
            f"{what}: process raised {type(error).__name__} ({error}); raise RequestError for an item that cannot be taken"
        ) from error
    media: MediaConfig = subject.context().options["media"]
    if not made.text and media.sound is None:
        raise Failure(f"{what}: its text is empty, so no token stands for its rows")
    return made


def _size(item: Item) -> str:
    if item.modality == IMAGE:
        return "{} × {} pixels".format(*item.content.size)
    return f"shape {list(item.content.shape if item.modality == AUDIO else item.content.frames.shape)}"


def _bytes(item: Item) -> bytes:
    content: Any = item.content.frames if item.modality == VIDEO else item.content
    return bytes(content.tobytes())


def _plain(made: Features) -> tuple[str, dict[str, tuple[str, tuple[int, ...], bytes]]]:
    return made.text, {name: (each.dtype.str, each.shape, each.tobytes()) for name, each in made.arrays.items()}

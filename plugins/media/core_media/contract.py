"""The contract of processors: from a decoded item to the text and the features that stand for it.

Owns: `Processor`, its optional parts, and what passes between a processor and its process. Never does: decode or process.
Called by: plugins of kind `processor` (implement it), the processing process (calls it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:  # every command reads the manifests that import this module, and starts without numpy
    from numpy.typing import NDArray


class Item(NamedTuple):
    """A decoded item.

    modality: `image`, `audio` or `video`.
    content:  a picture is a PIL image in RGB, turned as EXIF says; a sound is samples, float32 [n], at the processor's
              `sampling_rate`; a video is a `core_media.frames.Video`.
    options:  arguments of the request for this item.
    company:  whether the picture is processed as one of several, for models that treat a single picture differently.
    """

    modality: str
    content: Any
    options: Mapping[str, Any] = {}
    company: bool = False


class Features(NamedTuple):
    """A processed item.

    text:   what replaces the item's placeholder. It spells the token whose embeddings are replaced once for each row that
            the tower computes; empty for models that transcribe.
    arrays: arguments of the tower by name, arrays of finite numbers.
    """

    text: str
    arrays: Mapping[str, NDArray[Any]]


class Processor(Protocol):
    """Kind `processor`: processes the items of one model, in a process of its own.

    `core_load` finds in `context.options` `media`, the `MediaConfig` of the model. The capability `modalities` lists what it
    takes; a missing one means `image` alone.

    identity: digest of everything besides the item and its options that features depend on, such as sizes and versions.
    """

    identity: str

    def process(self, item: Item) -> Features:
        """Return the text and the features of one item. Raises RequestError for an item that the model cannot take."""
        ...


class HearsSounds(Protocol):
    """What the processor of sounds has as well.

    sampling_rate: samples a second of the sounds that it is given.
    """

    sampling_rate: int


class SeesVideos(Protocol):
    """What the processor of videos has as well."""

    def frames(self, total: int, fps: float | None) -> Sequence[int]:
        """Return the frames to decode of a video, as rising indices below `total`.

        fps: frames a second; None: the file does not say.
        """
        ...

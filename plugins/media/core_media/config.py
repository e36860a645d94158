"""The settings of media, which the API server and the engine share.

Owns: `MediaConfig`, and reading it from an engine's configuration. Never does: derive a value (`core_config` does). Called by:
everything in this distribution, and what prepares requests.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.api.config import EngineConfig, ResolvedPlugin
from core_media.sound.config import SoundConfig

IMAGE = "image"
AUDIO = "audio"
VIDEO = "video"
MODALITIES = (IMAGE, VIDEO, AUDIO)
NOUNS = {IMAGE: "picture", AUDIO: "sound", VIDEO: "video"}
"""What an item of each modality is called in sentences."""


TRANSFORMERS = ResolvedPlugin(
    kind="processor", name="transformers", target="core_media.processing.transformers_manifest"
)


class Place(msgspec.Struct, frozen=True):
    """What stands for an item in a prompt.

    placeholder: what the model's chat template writes.
    token_id:    token whose embeddings the item's rows replace.
    shown:       what is written where a template takes no parts, if it is more than the placeholder.
    closing:     token behind the item's rows whose embedding the tower computes as well, if there is one.
    """

    placeholder: str
    token_id: int
    shown: str = ""
    closing: int | None = None


class MediaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a model that takes media.

    model:             directory of the checkpoint, which has the processor's files, or the file of a GGUF model.
    projector:         of a GGUF model: `processor`, the contents of the processor's file, and `tokens`, the spellings of its
                       special tokens by name.
    model_type:        of the whole model, a key of `core_media.families.FAMILIES`.
    placeholder:       what its chat template writes for a picture; empty: no pictures are served.
    token_id:          token whose embeddings the rows of a picture replace.
    closing:           of a picture, see `Place`.
    others:            the same of other modalities that are served.
    refusals:          modalities of the model that are not served, with the reason, as the end of a sentence.
    limits:            most items of each modality in a prompt.
    max_image_pixels:  most pixels of a picture, as its header states them.
    max_bytes:         most bytes of a file.
    row_cache_bytes:   bytes of rows that the engine keeps for the same pictures in later prompts.
    processor_cache_bytes: bytes of processed pictures that the server keeps.
    shared_cache:      descriptor of the memory in which API processes share processed media; None: each has its own.
    shares_cache:      whether there is such memory where a server has several API processes.
    max_shared_bytes:  most bytes of an item that is kept there.
    num_workers:       helper processes that process pictures.
    processor_kwargs:  arguments of the image processor in place of the checkpoint's own.
    io_kwargs:         by modality, how files are read: `num_frames` or `fps` of videos.
    max_seconds:       longest sound in a prompt.
    max_frames:        most frames of a video that the model sees.
    pruning:           share of a video's rows that are left out, see `core_media.pruning`; 0: none is.
    domains:           hosts from which media may be fetched; empty: none is.
    row_size:          numbers of a row that a request may give in place of an item; 0: none may.
    row_scale:         factor of such rows, which the language model of Granite Speech applies in transformers.
    around_rows:       modality → text before and behind such rows.
    levels:            blocks that add rows, see `MediaItem`; counted for given rows alone.
    merged:            patches of a side that are one row, for models whose rows have three positions; 0: for others.
    two_sided:         what sees each other in both directions: `rows` of a picture, or the whole `prompt`; empty: nothing does.
    max_span:          most tokens of what does.
    window:            keys that a token of a layer with a window sees, where a whole prompt must fit; 0: no limit.
    local_path:        directory below which files may be read; empty: none is.
    sound:             settings of a model that transcribes sounds and takes nothing else; None: it takes pictures.
    processor:         the plugin that processes items; `processor_arguments`: its own arguments as plain values.
    adapts_tower:      whether adapters change the tower and its connector as well.
    adapters:          modality → name of the adapter of prompts that have it, where a request names none.
    """

    model: str
    model_type: str
    placeholder: str
    token_id: int
    limits: dict[str, int]
    closing: int | None = None
    others: dict[str, Place] = {}
    refusals: dict[str, str] = {}
    max_image_pixels: int = 64_000_000
    max_bytes: int = 64 << 20
    row_cache_bytes: int = 1 << 30
    processor_cache_bytes: int = 1 << 30
    shared_cache: int | None = None
    shares_cache: bool = False
    max_shared_bytes: int = 128 << 20
    num_workers: int = 1
    processor_kwargs: dict[str, Any] = {}
    projector: dict[str, Any] = {}
    io_kwargs: dict[str, dict[str, Any]] = {}
    max_seconds: float = 3600.0
    max_frames: int = 768
    pruning: float = 0.0
    domains: tuple[str, ...] = ()
    row_size: int = 0
    row_scale: float = 1.0
    around_rows: dict[str, tuple[str, str]] = {}
    levels: int = 0
    merged: int = 0
    two_sided: str = ""
    max_span: int = 0
    window: int = 0
    local_path: str = ""
    sound: SoundConfig | None = None
    processor: ResolvedPlugin = TRANSFORMERS
    processor_arguments: dict[str, Any] = {}
    adapts_tower: bool = False
    adapters: dict[str, str] = {}

    @property
    def places(self) -> dict[str, Place]:
        """What stands for an item of each modality that prompts may have."""
        pictures = {IMAGE: Place(self.placeholder, self.token_id, closing=self.closing)} if self.placeholder else {}
        return {**pictures, **self.others}

    @property
    def shown(self) -> dict[str, str]:
        """What is written for an item of each modality where a chat template takes no parts."""
        return {name: place.shown or place.placeholder for name, place in self.places.items()}

    @property
    def modality(self) -> str:
        """The modality of items whose own is not said."""
        return AUDIO if self.sound is not None else next(iter(self.places), IMAGE)


def media_of(config: EngineConfig) -> MediaConfig | None:
    """Return the settings of media; None: prompts carry text."""
    given = config.media
    return given if given is None or isinstance(given, MediaConfig) else msgspec.convert(given, MediaConfig)

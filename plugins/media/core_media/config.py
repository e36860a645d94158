"""The settings of media, which the API server and the engine share.

Owns: `MediaConfig`, and reading it from an engine's configuration. Never does: derive a value (`core_config` does). Called by:
everything in this distribution, and what prepares requests.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.api.config import EngineConfig
from core_media.sound.config import SoundConfig

IMAGE = "image"
AUDIO = "audio"


class MediaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a model that takes media.

    model:             directory of the checkpoint, which has the processor's files.
    model_type:        of the whole model, a key of `core_media.families.FAMILIES`.
    placeholder:       what its chat template writes for a picture.
    token_id:          token whose embeddings the rows of a picture replace.
    limits:            most items of each modality in a prompt.
    max_image_pixels:  most pixels of a picture, as its header states them.
    max_bytes:         most bytes of a file.
    row_cache_bytes:   bytes of rows that the engine keeps for the same pictures in later prompts.
    processor_cache_bytes: bytes of processed pictures that the server keeps.
    num_workers:       helper processes that process pictures.
    processor_kwargs:  arguments of the image processor in place of the checkpoint's own.
    domains:           hosts from which pictures may be fetched; empty: none is.
    two_sided:         what sees each other in both directions: `rows` of a picture, or the whole `prompt`; empty: nothing does.
    max_span:          most tokens of what does.
    window:            keys that a token of a layer with a window sees, where a whole prompt must fit; 0: no limit.
    local_path:        directory below which files may be read; empty: none is.
    sound:             settings of a model that transcribes sounds and takes nothing else; None: it takes pictures.
    """

    model: str
    model_type: str
    placeholder: str
    token_id: int
    limits: dict[str, int]
    max_image_pixels: int = 64_000_000
    max_bytes: int = 64 << 20
    row_cache_bytes: int = 1 << 30
    processor_cache_bytes: int = 1 << 30
    num_workers: int = 1
    processor_kwargs: dict[str, Any] = {}
    domains: tuple[str, ...] = ()
    two_sided: str = ""
    max_span: int = 0
    window: int = 0
    local_path: str = ""
    sound: SoundConfig | None = None

    @property
    def noun(self) -> str:
        """What an item is called in sentences."""
        return "picture" if self.sound is None else "sound"


def media_of(config: EngineConfig) -> MediaConfig | None:
    """Return the settings of media; None: prompts carry text."""
    given = config.media
    return given if given is None or isinstance(given, MediaConfig) else msgspec.convert(given, MediaConfig)

"""The processors of transformers as one plugin: `transformers`, and `gguf` for models with a projector file.

Owns: `TransformersProcessor`, which has a part for each modality that the model takes. Never does: process an item itself.
Called by: the manifests of both plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core_media.config import AUDIO, IMAGE, VIDEO, MediaConfig
from core_media.contract import Features, Item
from core_media.processing.image_processor import ImageProcessor
from core_media.processing.sound_processor import SoundProcessor
from core_media.processing.videos import chosen_frames, processed_video
from core_media.sound.prompts import PromptSounds


class TransformersProcessor:
    """Implements `Processor`, `HearsSounds` and `SeesVideos`. Raises UserError if transformers cannot build a part.

    sampling_rate: 0 for a model that hears nothing.
    """

    def __init__(self, config: MediaConfig) -> None:
        self._parts: dict[str, Callable[[Item], Features]] = {}
        self._options = config.io_kwargs.get(VIDEO, {})
        self.sampling_rate = 0
        identities: list[str] = []
        if IMAGE in config.places or VIDEO in config.places:
            self._pictures = ImageProcessor(config)
            self._parts |= {IMAGE: self._pictures.run, VIDEO: self._video}
            identities += [self._pictures.identity, repr(self._options)]
        if AUDIO in config.places or config.sound is not None:
            shared = self._pictures.processor if IMAGE in self._parts else None
            sounds = PromptSounds(config, shared) if config.sound is None else SoundProcessor(config)
            self._parts[AUDIO] = sounds.run
            self.sampling_rate = sounds.rate
            identities.append(sounds.identity)
        self.identity = " ".join(identities)

    def process(self, item: Item) -> Features:
        """Return the text and the features of one item. Raises RequestError."""
        return self._parts[item.modality](item)

    def frames(self, total: int, fps: float | None) -> Sequence[int]:
        """Return the frames that the checkpoint's video processor chooses."""
        return chosen_frames(self._pictures.processor.video_processor, self._options)(total, fps)

    def _video(self, item: Item) -> Features:
        return processed_video(self._pictures.processor, item.content, self._options)

"""The feature extractor of transformers for one model that transcribes.

Owns: building it, and one call of it. Never does: decode a sound. Called by: the processor `transformers`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from core.api.errors import UserError
from core_media.config import MediaConfig
from core_media.contract import Features, Item
from core_media.processing.fingerprint import fingerprint
from core_media.sound.decoding import Samples


class SoundProcessor:
    """The feature extractor of one checkpoint. Raises UserError if transformers cannot build it.

    identity: digest of everything besides the sound that its features depend on. rate: samples a second that it reads.
    """

    def __init__(self, config: MediaConfig) -> None:
        import torch
        import transformers

        torch.set_num_threads(1)  # one sound at a time, beside an engine that needs the cores
        try:
            self._extractor: Any = transformers.AutoFeatureExtractor.from_pretrained(
                config.model, local_files_only=True
            )
        except Exception as error:
            raise UserError(
                f"transformers {transformers.__version__} builds no feature extractor from '{config.model}' "
                f"({type(error).__name__}: {str(error).strip()[:300]}); complete the checkpoint."
            ) from error
        self.rate = int(self._extractor.sampling_rate)
        self.identity = fingerprint(Path(config.model), transformers.__version__)

    def run(self, item: Item) -> Features:
        """Return a sound's spectrogram, `input_features` [mel, T], and its `seconds`.

        One that fits one window fills it with silence, as transformers has it; a longer one is as long as it is.
        """
        samples: Samples = item.content
        fits = len(samples) <= self._extractor.n_samples
        padding = {"padding": "max_length"} if fits else {"padding": "longest", "truncation": False}
        made = self._extractor(samples, sampling_rate=self.rate, return_tensors="np", **padding)
        seconds = np.array(len(samples) / self.rate)
        return Features("", {"input_features": made["input_features"][0], "seconds": seconds})

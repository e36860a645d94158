"""The processors of transformers for sounds in prompts, reduced to single sounds.

Owns: building them without torchaudio, and one call of them. Never does: decode a sound, or tokenize. Called by: the
processor `transformers`.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from core.api.errors import RequestError, UserError
from core_media.config import AUDIO, MediaConfig
from core_media.contract import Features, Item
from core_media.families import FAMILIES, MOST_SAMPLES
from core_media.processing.fingerprint import fingerprint
from core_media.processing.image_processor import without_video
from core_media.sound.decoding import Samples

VOXTRAL = "voxtral"
CHUNK_FRAMES = 3000
"""Frames of a spectrogram that Voxtral's encoder reads at once."""


class PromptSounds:
    """The processor of one checkpoint whose prompts take sounds. Raises UserError if transformers cannot build it.

    processor: transformers' own, of a model that takes pictures as well.
    identity: digest of everything besides the sound that its features depend on. rate: samples a second that it reads.
    """

    def __init__(self, config: MediaConfig, processor: Any = None) -> None:
        import torch
        import transformers

        torch.set_num_threads(1)  # one sound at a time, beside an engine that needs the cores
        without_torchaudio()
        self._place = config.places[AUDIO]
        # Voxtral's processor needs the package mistral-common for its tokenizer; its features are those of Whisper.
        kind = transformers.AutoFeatureExtractor if config.model_type == VOXTRAL else transformers.AutoProcessor
        backend = {}
        if config.model_type in FAMILIES:
            backend = {"backend": "pil"}
            without_video()
        try:
            self._processor: Any = processor or kind.from_pretrained(config.model, local_files_only=True, **backend)
        except Exception as error:
            raise UserError(
                f"transformers {transformers.__version__} builds no processor from '{config.model}' "
                f"({type(error).__name__}: {str(error).strip()[:300]}); complete the checkpoint, or start with "
                "--language-model-only."
            ) from error
        self._is_voxtral = config.model_type == VOXTRAL
        self._rows = _rows_of_a_chunk(config.model) if self._is_voxtral else 0
        if not self._is_voxtral and self._processor.audio_token != self._place.placeholder:
            raise UserError(
                f"The processor of '{config.model}' marks sounds by {self._processor.audio_token!r}; a model of type "
                f"'{config.model_type}' is expected to mark them by {self._place.placeholder!r}. Start with "
                "--language-model-only."
            )
        self._extractor: Any = self._processor if self._is_voxtral else _extractor(self._processor)
        self.rate = int(self._extractor.sampling_rate)
        self._longest = MOST_SAMPLES.get(config.model_type, getattr(self._extractor, "n_samples", None))
        self._unused = {*getattr(self._processor, "unused_input_names", ())}
        if config.model_type not in MOST_SAMPLES:
            self._unused.add("input_features_mask")  # Granite's tower computes its own
        self.identity = fingerprint(Path(config.model), transformers.__version__, AUDIO)

    def run(self, item: Item) -> Features:
        """Return the text that replaces a sound's placeholder, and its features. Raises RequestError."""
        samples: Samples = item.content
        if self._is_voxtral:
            return self._voxtral(samples)
        longest = self._longest
        if longest is not None and len(samples) > longest:
            raise RequestError(
                f"the sound is {len(samples) / self.rate:.1f} s long; the model hears {longest / self.rate:g} s. Send a "
                "part of it"
            )
        processor = self._processor
        try:
            merged = processor._merge_kwargs(tokenizer_init_kwargs=processor.tokenizer.init_kwargs, return_tensors="np")
            settings = {**merged["audio_kwargs"], "sampling_rate": self.rate, "return_tensors": "np"}
            made, texts = processor._process_audio([samples], **settings)
        except (ValueError, TypeError) as error:
            raise RequestError(f"the model's processor refuses the sound: {error}") from error
        return Features(texts[0], {name: np.asarray(value) for name, value in made.items() if name not in self._unused})

    def _voxtral(self, samples: Samples) -> Features:
        """Return the same for Voxtral, whose processor fills sounds with silence to whole windows of 30 s."""
        from transformers.models.voxtral.processing_voxtral import VoxtralProcessor

        settings = {
            name: value for name, value in VoxtralProcessor.audio_kwargs.items() if name != "max_source_positions"
        }
        bare = SimpleNamespace(feature_extractor=self._extractor)
        features = VoxtralProcessor._retrieve_input_features(bare, [samples], CHUNK_FRAMES, **settings)
        text = self._place.placeholder * (self._rows * len(features))
        return Features(text, {"input_features": features.numpy()})


def _rows_of_a_chunk(model: str) -> int:
    """Return the rows of one of Voxtral's windows: its projector takes several frames of the encoder together."""
    import transformers

    audio = transformers.AutoConfig.from_pretrained(model, local_files_only=True).audio_config
    return int(audio.max_source_positions * audio.hidden_size // audio.intermediate_size)


def _extractor(processor: Any) -> Any:
    return getattr(processor, "feature_extractor", None) or processor.audio_processor


def without_torchaudio() -> None:
    """Let Granite Speech's spectrogram be computed where torchaudio is missing: its own formula, on torch alone."""
    from transformers.models.granite_speech import feature_extraction_granite_speech as module
    from transformers.utils import is_torchaudio_available

    if not is_torchaudio_available():
        module.torchaudio = SimpleNamespace(transforms=SimpleNamespace(MelSpectrogram=MelSpectrogram))
        module.requires_backends = lambda *args: None


class MelSpectrogram:
    """What `torchaudio.transforms.MelSpectrogram` computes with its other settings' defaults, to the bit (2.11)."""

    def __init__(self, sample_rate: int, n_fft: int, win_length: int, hop_length: int, n_mels: int) -> None:
        import torch

        self._sizes = (n_fft, hop_length, win_length)
        frequencies = torch.linspace(0, sample_rate // 2, n_fft // 2 + 1)
        edges = torch.linspace(0.0, 2595.0 * math.log10(1.0 + (sample_rate // 2) / 700.0), n_mels + 2)
        points = 700.0 * (10.0 ** (edges / 2595.0) - 1.0)
        widths = points[1:] - points[:-1]
        slopes = points.unsqueeze(0) - frequencies.unsqueeze(1)
        down, up = (-1.0 * slopes[:, :-2]) / widths[:-1], slopes[:, 2:] / widths[1:]
        self._filters = torch.max(torch.zeros(1), torch.min(down, up))

    def to(self, device: str) -> MelSpectrogram:
        """Return itself: it computes on the processor."""
        return self

    def __call__(self, samples: Any) -> Any:
        """Return the spectrogram [..., mel, T] of samples [..., n]."""
        import torch

        window = torch.hann_window(self._sizes[2])
        made = torch.stft(samples, *self._sizes, window, center=True, pad_mode="reflect", return_complex=True)
        return torch.matmul(made.abs().pow(2).transpose(-1, -2), self._filters).transpose(-1, -2)

"""The decoder of a model that transcribes, once more, for what its heads attend to.

Owns: its construction, and the times of tokens. Never does: write a text. Called by: the encoder.

The engine's own decoder keeps no weights of attention, so times of words need transformers' module with the same tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.api.errors import CheckpointError
from core_media.serving.widened import widen
from core_media.sound.alignment import token_times
from core_media.sound.config import SoundConfig


class Aligner:
    """The decoder of one engine. num_bytes: of its weights. Raises CheckpointError."""

    def __init__(self, settings: Any, tensors: Mapping[str, Tensor], dtype: torch.dtype, sound: SoundConfig) -> None:
        from transformers.models.whisper.modeling_whisper import WhisperDecoder

        settings._attn_implementation = "eager"  # others return no weights
        model: Any = WhisperDecoder(settings)
        try:
            model.load_state_dict(dict(tensors))
        except RuntimeError as error:
            raise CheckpointError(
                f"The checkpoint does not fit the decoder: {str(error).strip()[:300]}. Complete it."
            ) from error
        self._model = model.eval().to(dtype)
        widen(self._model, dtype)
        self._dtype = dtype
        self._sound = sound
        self.num_bytes = sum(each.numel() * each.element_size() for each in model.parameters())

    def times(self, rows: bytes, prompt: Sequence[int], tokens: Sequence[int], frames: int) -> list[int]:
        """Return when each token is said, in steps of two frames. rows: of the encoder. frames: of the window with sound."""
        hidden = torch.from_numpy(np.frombuffer(rows, np.float32).copy()).view(1, self._sound.rows, -1).to(self._dtype)
        with torch.inference_mode():
            made = self._model(
                input_ids=torch.tensor([[*prompt, *tokens]]), encoder_hidden_states=hidden, use_cache=False,
                output_attentions=True,
            )  # fmt: skip
            picked = torch.stack([made.cross_attentions[layer][0, head] for layer, head in self._sound.heads])
            return token_times(picked[:, len(prompt) :, : max(frames // 2, 1)].float(), self._sound.smoothing)

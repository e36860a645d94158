"""The rows of a sound in a prompt, from the modules of transformers.

Owns: where each family has them. Never does: build a module. Called by: the tower.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def sound_rows(model: Any, arrays: Mapping[str, Tensor]) -> Tensor:
    """Return the rows of one sound, [rows, size]. arrays: its features."""
    if hasattr(model, "embed_audio"):
        return _filled(model, arrays) if hasattr(model.embed_audio, "vocab_offset") else _heard(model, arrays)
    if hasattr(model, "get_audio_features"):
        takes = inspect.signature(model.get_audio_features).parameters
        given = {name: each for name, each in arrays.items() if name in takes}
        made: Tensor = model.get_audio_features(**given, return_dict=True).pooler_output
        # Granite's language model scales whatever it is given in place of embeddings; the engine scales its own alone.
        scale = getattr(model.config.get_text_config(), "embedding_multiplier", 1.0)
        return made.reshape(-1, made.shape[-1]) * scale
    return _embedded(model, arrays)


def _filled(model: Any, arrays: Mapping[str, Tensor]) -> Tensor:
    """Return the rows of Gemma 3n, as many for each sound: those without sound are the last token that its tower embeds."""
    made = model.get_audio_features(arrays["input_features"], ~arrays["input_features_mask"], return_dict=True)
    last = torch.tensor([model.embed_audio.vocab_offset + model.embed_audio.vocab_size - 1])
    silence = model.embed_audio(input_ids=last)
    heard = torch.where(made.audio_mel_mask[0].unsqueeze(-1), silence, made.pooler_output[0])
    return torch.cat([heard, silence.expand(model.config.audio_soft_tokens_per_image - len(heard), -1)])


def _heard(model: Any, arrays: Mapping[str, Tensor]) -> Tensor:
    """Return the rows of Gemma 4, without those of the silence that fills its spectrogram to whole 128ths."""
    made = model.get_audio_features(arrays["input_features"], arrays["input_features_mask"], return_dict=True)
    rows: Tensor = made.pooler_output[made.attention_mask.bool()]
    return rows


def _embedded(model: Any, arrays: Mapping[str, Tensor]) -> Tensor:
    """Return what Qwen2-Audio's own forward pass embeds for the tokens of a sound: it has no other way to its rows."""
    lens = arrays["feature_attention_mask"].sum(-1)
    count = int(model.audio_tower._get_feat_extract_output_lengths(lens)[1])
    model.language_model = language = _Listener(model.config.get_text_config().hidden_size)
    model.config.audio_token_id = 0
    try:
        model(input_ids=torch.zeros(1, count, dtype=torch.int64), **arrays)
    except _Heard:
        return language.rows[0]
    raise ValueError("the model embedded no sound")


class _Heard(Exception):
    """The rows are known; nothing else of the forward pass is needed."""


class _Listener(nn.Module):  # type: ignore[misc]
    """Stands for the language model, and keeps what it is given."""

    rows: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(1, size)

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embeddings of tokens, which the rows replace."""
        return self.embed_tokens

    def forward(self, inputs_embeds: Tensor, **kwargs: Any) -> None:
        """Keep the rows, and end the forward pass."""
        self.rows = inputs_embeds
        raise _Heard

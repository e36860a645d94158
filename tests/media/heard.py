"""Tiny models that take sounds in prompts, and sounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForMultimodalLM,
    GraniteSpeechConfig,
    GraniteSpeechProcessor,
    Qwen2AudioConfig,
    Qwen2AudioProcessor,
    VoxtralConfig,
    WhisperFeatureExtractor,
)
from transformers.models.granite_speech.feature_extraction_granite_speech import GraniteSpeechFeatureExtractor

from core_media.processing.sounds import wav_of
from core_media.sound.prompts import without_torchaudio
from tests.media.checkpoints import TEXT, template, tokenizer_with
from tests.media.gemma3n import save_gemma3n

RATE = 16_000


def sound(seed: int = 0, seconds: float = 0.7, rate: int = RATE) -> tuple[np.ndarray[Any, Any], int]:
    """A tone with some noise; the tones of different seeds lie far apart."""
    count = int(seconds * rate)
    noise = np.random.default_rng(seed).normal(0, 0.003, count)
    return (np.sin(np.arange(count) * (0.05 + 0.3 * seed)) * 0.3 + noise).astype(np.float32), rate


def wav(seed: int = 0, seconds: float = 0.7, rate: int = RATE) -> bytes:
    return wav_of(*sound(seed, seconds, rate))


def heard_template(mark: str) -> str:
    return template(mark).replace("'image'", "'audio'")


def save(directory: Path, config: Any) -> None:
    torch.manual_seed(0)
    model = AutoModelForMultimodalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # The first layers count for more, so that what the rows depend on is the sound, and not their places.
            is_first = "conv1" in name or "conv2" in name or "input_linear" in name
            parameter.mul_(0.05 if "embed_positions" in name else 100.0 if is_first else 3.0)
    model.save_pretrained(directory)


def save_qwen2_audio(directory: Path) -> Path:
    """Qwen2-Audio, which hears two seconds."""
    named = {"audio_token": "<|AUDIO|>", "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>"}
    made, tokenizer = tokenizer_with(*named.values(), **named)
    audio = {
        "model_type": "qwen2_audio_encoder", "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2,
        "encoder_ffn_dim": 40, "num_mel_bins": 16, "max_source_positions": 100,
    }  # fmt: skip
    save(directory, Qwen2AudioConfig(
        audio_config=audio, text_config={"model_type": "qwen2", **TEXT}, audio_token_id=made.token_to_id("<|AUDIO|>")
    ))  # fmt: skip
    shown = heard_template("<|audio_bos|><|AUDIO|><|audio_eos|>")
    extractor = WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    Qwen2AudioProcessor(extractor, tokenizer, chat_template=shown).save_pretrained(directory)
    return directory


def save_voxtral(directory: Path) -> Path:
    """Voxtral: 375 rows for each 30 seconds that begin."""
    made, tokenizer = tokenizer_with("[AUDIO]", "[BEGIN_AUDIO]")
    audio = {
        "hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_mel_bins": 16,
    }  # fmt: skip
    save(directory, VoxtralConfig(
        audio_config=audio, text_config={"model_type": "llama", **TEXT}, audio_token_id=made.token_to_id("[AUDIO]")
    ))  # fmt: skip
    tokenizer.chat_template = heard_template("[BEGIN_AUDIO][AUDIO]")
    tokenizer.save_pretrained(directory)
    WhisperFeatureExtractor(feature_size=16).save_pretrained(directory)
    return directory


def save_granite(directory: Path, **more: Any) -> Path:
    """Granite Speech."""
    without_torchaudio()
    made, tokenizer = tokenizer_with("<|audio|>", audio_token="<|audio|>")
    encoder = {
        "input_dim": 160, "num_layers": 2, "hidden_dim": 32, "feedforward_mult": 2, "num_heads": 2, "dim_head": 16,
        "output_dim": 10, "context_size": 20, "max_pos_emb": 32,
    }  # fmt: skip
    projector = {
        "model_type": "blip_2_qformer", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 40, "encoder_hidden_size": 32,
    }  # fmt: skip
    text = {"model_type": "granite", **TEXT, "embedding_multiplier": 3.0, "logits_scaling": 2.0}
    save(directory, GraniteSpeechConfig(
        encoder_config=encoder, projector_config=projector, text_config=text,
        audio_token_id=made.token_to_id("<|audio|>"), **{"has_lora_adapter": False, **more},
    ))  # fmt: skip
    shown = heard_template("<|audio|>")
    GraniteSpeechProcessor(GraniteSpeechFeatureExtractor(), tokenizer, chat_template=shown).save_pretrained(directory)
    return directory


SAVE_HEARD = {
    "gemma3n": save_gemma3n,
    "granite_speech": save_granite,
    "qwen2_audio": save_qwen2_audio,
    "voxtral": save_voxtral,
}

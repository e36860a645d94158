"""Tiny Whisper models with random weights, and sounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

RATE = 16_000
SECONDS = 2
"""Length of a window; real models have 30."""
LANGUAGES = ("en", "de", "fr")
SPECIALS = (
    "<|endoftext|>", "<|startoftranscript|>", *(f"<|{name}|>" for name in LANGUAGES), "<|translate|>", "<|transcribe|>",
    "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
    *(f"<|{0.02 * index:.2f}|>" for index in range(50 * SECONDS + 1)),
)  # fmt: skip


def whisper_tokenizer() -> Tokenizer:
    """One token a byte, then Whisper's special ones."""
    vocab = {token: index for index, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIALS))
    return made


def save_whisper(directory: Path, scale: float = 10.0, seed: int = 0, **changes: Any) -> Path:
    """Write a checkpoint. scale: of its weights; larger ones give tokens that depend more on the sound."""
    torch.manual_seed(seed)
    tokenizer = whisper_tokenizer()
    ids = {name: tokenizer.token_to_id(name) for name in SPECIALS}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    shape = {
        "vocab_size": tokenizer.get_vocab_size(), "d_model": 64, "encoder_layers": 2, "decoder_layers": 3,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96,
        "max_source_positions": 50 * SECONDS, "max_target_positions": 128, "pad_token_id": end, "bos_token_id": end,
        "eos_token_id": end, "decoder_start_token_id": start, "begin_suppress_tokens": None, "suppress_tokens": None,
    }  # fmt: skip
    config = WhisperConfig(**{**shape, **changes})
    model = WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed" not in name and "norm" not in name:
                parameter.mul_(scale)
    never = [ids[f"<|{name}|>"] for name in ("startoflm", "startofprev", "nospeech")]
    model.generation_config = GenerationConfig(
        begin_suppress_tokens=[220, end], suppress_tokens=[1, 2, 7, *never],
        decoder_start_token_id=start, eos_token_id=end, pad_token_id=end, bos_token_id=end, is_multilingual=True,
        lang_to_id={f"<|{name}|>": ids[f"<|{name}|>"] for name in LANGUAGES},
        task_to_id={name: ids[f"<|{name}|>"] for name in ("translate", "transcribe")},
        no_timestamps_token_id=ids["<|notimestamps|>"], prev_sot_token_id=ids["<|startofprev|>"],
        max_initial_timestamp_index=50, max_length=128, return_timestamps=False, alignment_heads=[[1, 0], [1, 2], [0, 3]],
    )  # fmt: skip
    model.save_pretrained(directory)
    WhisperFeatureExtractor(feature_size=config.num_mel_bins, chunk_length=SECONDS).save_pretrained(directory)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(directory)
    return directory


def sound(seconds: float = 1.5, seed: int = 0) -> NDArray[np.float32]:
    """Tones that change, and noise."""
    draw = np.random.default_rng(seed)
    time = np.arange(int(seconds * RATE)) / RATE
    tones = [np.sin(2 * np.pi * draw.uniform(100, 3000) * time + draw.uniform(0, 6)) * (np.sin(time * draw.uniform(1, 9)) > 0)
             for _ in range(4)]  # fmt: skip
    return (0.2 * np.sum(tones, 0) + 0.02 * draw.normal(size=len(time))).astype(np.float32)

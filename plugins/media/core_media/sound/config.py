"""The settings of a model that transcribes (Whisper), from its checkpoint.

Owns: `SoundConfig`, and reading it from a checkpoint's configuration files. Never does: decode a sound, or ask an engine.
Called by: the configuration; everything in `core_media.sound`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

MODEL_TYPE: Final = "whisper"
ENCODER: Final = ("model.encoder.", "encoder.")
"""Beginnings of the names of the encoder's tensors."""
DECODER: Final = ("model.decoder.", "decoder.")
"""Those of the decoder's, but for its head."""
STRIDE: Final = 2
"""Frames of a spectrogram for a row of the encoder."""
HOP_SECONDS: Final = 0.01
"""Seconds from one frame to the next."""
STEP_SECONDS: Final = STRIDE * HOP_SECONDS
"""Seconds between two tokens of times."""
REQUIRED: Final = ("decoder_start_token_id", "eos_token_id", "no_timestamps_token_id")


class SoundConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a model that transcribes.

    rows, size:    of the encoder's output for a window.
    context:       most tokens of a window: of its prompt and of its text together.
    start, end:    tokens that begin and end a transcript.
    no_times:      token after which a transcript has no times; those of times follow it.
    previous:      token that begins the text before the window, or None.
    languages:     code of a language → its token; empty: the model knows one language.
    tasks:         `transcribe` and `translate` → their tokens; empty: the model transcribes alone.
    suppressed, suppressed_first: tokens that are never sampled, and those that are not sampled first.
    latest_first:  most steps of time before the first text of a window, or None.
    max_seconds:   longest sound that is taken.
    heads:         layer and head of those whose attention follows the sound; empty: the checkpoint does not say.
    smoothing:     rows over which their weights are smoothed.
    words:         whether the engine finds the times of words.
    """

    rows: int
    size: int
    context: int
    start: int
    end: int
    no_times: int
    previous: int | None = None
    languages: dict[str, int] = {}
    tasks: dict[str, int] = {}
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    latest_first: int | None = None
    max_seconds: float = 3600.0
    heads: tuple[tuple[int, int], ...] = ()
    smoothing: int = 7
    words: bool = False

    @property
    def frames(self) -> int:
        """Number of frames of a window."""
        return STRIDE * self.rows

    @property
    def first_time(self) -> int:
        """Token of the time 0."""
        return self.no_times + 1

    @property
    def no_speech(self) -> int:
        """Token whose probability at the start says that nobody speaks."""
        return self.no_times - 1


def missing(path: str) -> str:
    """Return what a checkpoint lacks for transcriptions, as the end of a sentence; empty if nothing."""
    if not (Path(path) / "preprocessor_config.json").is_file() and not (Path(path) / "processor_config.json").is_file():
        return "the checkpoint has no files of a processor"
    generation = _generation(path)
    lacking = [name for name in REQUIRED if not isinstance(generation.get(name), int)]
    return f"the checkpoint's generation_config.json has no {' and no '.join(lacking)}" if lacking else ""


def sound_config(
    path: str, hf_config: Mapping[str, Any], max_tokens: int | None, max_seconds: float, *, words: bool = False
) -> SoundConfig:
    """Return the settings of a checkpoint that lacks nothing.

    max_tokens: limit of the context; None: the model's own. words: whether times of words are wanted.
    """
    generation = _generation(path)
    suppressed = tuple(generation.get("suppress_tokens") or ())
    previous = generation.get("prev_sot_token_id")
    # Older checkpoints say it only by its place among the suppressed tokens; transformers reads it there, too.
    if previous is None and len(suppressed) >= 2:
        previous = suppressed[-2]
    positions = int(hf_config.get("max_target_positions", 448))
    languages = generation.get("lang_to_id") or {}
    is_multilingual = bool(generation.get("is_multilingual", bool(languages)))
    return SoundConfig(
        rows=int(hf_config.get("max_source_positions", 1500)),
        size=int(hf_config["d_model"]),
        context=min(positions, max_tokens or positions),
        start=generation["decoder_start_token_id"],
        end=generation["eos_token_id"],
        no_times=generation["no_timestamps_token_id"],
        previous=previous,
        languages={name.strip("<|>"): token for name, token in languages.items()} if is_multilingual else {},
        tasks=dict(generation.get("task_to_id") or {}) if is_multilingual else {},
        suppressed=suppressed,
        suppressed_first=tuple(generation.get("begin_suppress_tokens") or ()),
        latest_first=generation.get("max_initial_timestamp_index"),
        max_seconds=max_seconds,
        heads=(heads := alignment_heads(path)),
        smoothing=int(hf_config.get("median_filter_width") or 7),
        words=words and bool(heads),
    )


def alignment_heads(path: str) -> tuple[tuple[int, int], ...]:
    """Return layer and head of those whose attention follows the sound; empty where the checkpoint does not say."""
    return tuple((int(layer), int(head)) for layer, head in _generation(path).get("alignment_heads") or ())


def _generation(path: str) -> dict[str, Any]:
    file = Path(path) / "generation_config.json"
    found = json.loads(file.read_text()) if file.is_file() else {}
    return found if isinstance(found, dict) else {}

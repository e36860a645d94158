"""A sound's windows, and the segments that the tokens of a window mean.

Owns: what transformers' `_retrieve_segment`, `_prepare_decoder_input_ids` and `_need_fallback` say. Never does: ask an engine.
Called by: `core_media.sound.transcription`.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.api.messages import MediaItem
from core_media.features import pack, unpack
from core_media.processing.processed import Processed
from core_media.sound.config import HOP_SECONDS, STEP_SECONDS, STRIDE, SoundConfig
from core_media.sound.words import Word


@dataclass(slots=True)
class Segment:
    """A part of a transcript.

    start, end: seconds. tokens: of its text and times. seek: first frame of its window. The rest is of the window, but for
    words and times: seconds at which each token is said, where words are wanted.
    """

    start: float
    end: float
    tokens: list[int]
    seek: int = 0
    temperature: float = 0.0
    avg_logprob: float = 0.0
    no_speech_prob: float = 0.0
    text: str = ""
    times: list[float] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)


@dataclass(slots=True)
class Sound:
    """A processed sound. spectrogram: float32 [mel, T]. seconds: its length."""

    digest: str
    seconds: float
    spectrogram: NDArray[np.float32] = field(repr=False)

    @classmethod
    def of(cls, processed: Processed) -> Sound:
        """Read what the processing process made."""
        arrays = unpack(processed.features)
        return cls(processed.digest, float(arrays["seconds"]), arrays["input_features"].astype(np.float32, copy=False))

    @property
    def frames(self) -> int:
        """Number of its frames."""
        return int(self.spectrogram.shape[1])

    def item(self, seek: int, config: SoundConfig) -> MediaItem:
        """Return the window from a frame on; silence follows the sound's end."""
        window = self.spectrogram[:, seek : seek + config.frames]
        rest = config.frames - window.shape[1]
        if rest:
            window = np.pad(window, ((0, 0), (0, rest)))
        digest = hashlib.sha256(f"{self.digest} {seek}".encode()).hexdigest()
        return MediaItem(0, 1, digest, config.start, pack({"input_features": window}))


def segments_of(tokens: Sequence[int], seek: int, num_frames: int, config: SoundConfig) -> tuple[list[Segment], int]:
    """Return the segments of a window's tokens, without the one that ends them, and the frames to go on by.

    A window goes on at its last time where that ends a segment; where text follows it, the rest is heard again.
    num_frames: of the window that are of the sound.
    """
    offset = seek * HOP_SECONDS
    first = config.first_time
    is_time = [token >= first for token in tokens]
    ends_with_time = is_time[-2:] == [False, True]
    cuts = [index + 1 for index in range(len(tokens) - 1) if is_time[index] and is_time[index + 1]]
    if not cuts:
        last = int(num_frames * HOP_SECONDS / STEP_SECONDS)
        times = [token for token in tokens if token >= first]
        if times and times[-1] != first:
            last = times[-1] - first
        return [Segment(offset, offset + last * STEP_SECONDS, list(tokens), seek)], num_frames
    if ends_with_time:
        cuts.append(len(tokens))
    else:
        cuts[-1] += 1  # both times end the last segment
    segments: list[Segment] = []
    begin = 0
    for cut in cuts:
        part = list(tokens[begin:cut])
        end = part[-2] if cut == cuts[-1] and not ends_with_time else part[-1]
        start_s, end_s = ((time - first) * STEP_SECONDS for time in (part[0], end))
        segments.append(Segment(offset + start_s, offset + end_s, part, seek))
        begin = cut
    if ends_with_time:  # nobody speaks after it
        return segments, num_frames
    return segments, (tokens[begin - 2] - first) * STRIDE


def known_before(segments: Sequence[Segment], prompt: Sequence[int], config: SoundConfig) -> list[int]:
    """Return the tokens before a window that continues earlier segments. prompt: tokens of the user's prompt."""
    tokens = list(prompt)
    for segment in segments:
        doubled = len(segment.tokens) > 2 and segment.tokens[-2] >= config.first_time
        tokens += segment.tokens[:-1] if doubled else segment.tokens
    start = [] if config.previous is None else [config.previous]
    return start + tokens[-most_before(config) :]


def most_before(config: SoundConfig) -> int:
    """Return the most tokens of text before a window."""
    return config.context // 2 - 1


def compression(tokens: Sequence[int], vocab_size: int) -> float:
    """Return how much shorter the tokens are when compressed; repeated text is."""
    length = int(math.log2(vocab_size) / 8) + 1
    data = b"".join(token.to_bytes(length, "little") for token in tokens)
    return len(data) / len(zlib.compress(data))

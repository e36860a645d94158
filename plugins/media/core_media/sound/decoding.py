"""Decoding of sounds, with limits that hold while they are decoded.

Owns: the accepted formats, and the form in which a processor reads a sound. Never does: compute a spectrogram. Called by: the
processing process.

The format is found by the file's first bytes and named to FFmpeg, which therefore never tries its readers of playlists:
they open other files and addresses.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.api.errors import RequestError

NAMES: Final = "wav, mp3, flac, ogg, m4a (mp4) or webm"
MIMES: Final = {
    "wav": "wav", "wave": "wav", "vnd.wave": "wav", "mp3": "mp3", "mpeg": "mp3", "mpga": "mp3", "flac": "flac",
    "ogg": "ogg", "oga": "ogg", "opus": "ogg", "mp4": "mp4", "m4a": "mp4", "webm": "matroska",
}  # fmt: skip
"""Names of formats in types such as audio/wav → FFmpeg's."""
LEAST_SECONDS: Final = 0.1
LEAST_RATE: Final = 1_000
MOST_RATE: Final = 768_000
MOST_CHANNELS: Final = 64

Samples = NDArray[np.float32]


def decoded(data: bytes, rate: int, max_seconds: float, declared: str = "") -> Samples:
    """Return a sound's first track, mixed to one channel at `rate`. Raises RequestError.

    declared: the type that the client named, such as audio/wav; empty: none.
    """
    if not data:
        raise RequestError("the file is empty; expected a sound")
    kind = _format_of(data)
    if not kind:
        raise RequestError(f"it is no sound that can be read; expected {NAMES}")
    check_declared(declared, kind, MIMES)
    import av

    try:
        with av.open(io.BytesIO(data), format=kind, metadata_errors="ignore") as container:
            samples = _samples(container, rate, max_seconds)
    except (RequestError, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever a damaged file leads to
        reason = getattr(error, "strerror", None) or error  # PyAV's own text names a file, which has no name
        raise RequestError(
            f"the {kind.partition(',')[0]} file is cut or damaged ({reason}); expected a whole one"
        ) from error
    if len(samples) < LEAST_SECONDS * rate:
        raise RequestError(f"the sound is {len(samples) / rate:g} s long; expected at least {LEAST_SECONDS:g} s")
    return samples


def check_declared(declared: str, found: str, known: Mapping[str, str]) -> None:
    """Raise RequestError for a file of another format than its client said. found: FFmpeg's name. known: see `MIMES`."""
    kind = declared.partition(";")[0].strip().lower()
    name = kind.partition("/")[2].removeprefix("x-")
    if kind not in ("", "application/octet-stream", "binary/octet-stream") and name != "*" and known.get(name) != found:
        raise RequestError(f"it is said to be {kind[:100]}, but holds {found}; name the format that it has")


def _format_of(data: bytes) -> str:
    """Return FFmpeg's name of a file's format; empty for one that is not taken."""
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    if data[4:8] == b"ftyp":
        return "mp4"
    if data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0):
        return "mp3"
    return {b"fLaC": "flac", b"OggS": "ogg", b"\x1aE\xdf\xa3": "matroska"}.get(data[:4], "")


def _samples(container: Any, rate: int, max_seconds: float) -> Samples:
    import av

    tracks = container.streams.audio
    if not tracks:
        raise RequestError("the file has no sound; expected one track at least")
    track = tracks[0]
    if not LEAST_RATE <= track.rate <= MOST_RATE:
        raise RequestError(f"the sound has {track.rate} samples a second; expected {LEAST_RATE} to {MOST_RATE}")
    if track.channels > MOST_CHANNELS:
        raise RequestError(f"the sound has {track.channels} channels; expected at most {MOST_CHANNELS}")
    resampler = av.AudioResampler(format="fltp", rate=rate)
    pieces: list[Samples] = []
    count = 0
    for frame in container.decode(track):
        frame.pts = None  # as the samples follow each other, whatever times the file says
        for made in resampler.resample(frame):
            count += _added(made, pieces)
        if count > max_seconds * rate:
            raise RequestError(f"the sound is longer than {max_seconds:g} s (--max-audio-seconds); send a part of it")
    for made in resampler.resample(None):
        _added(made, pieces)
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def _added(frame: Any, pieces: list[Samples]) -> int:
    # FFmpeg's own mix of two channels is louder than either.
    samples = frame.to_ndarray().mean(0, dtype=np.float32)
    pieces.append(samples)
    return len(samples)

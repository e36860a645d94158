"""Sounds that a script gives, as files that the processing process reads.

Owns: their forms. Never does: process them. Called by: `LLM`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from core.api.errors import RequestError
from core_media.processing.sounds import wav_of

EXPECTED: Final = "expected the bytes of a file, its path, or (samples, samples a second)"


def sound_file(sound: Any, place: str) -> bytes:
    """Return a sound as the bytes of a file, without a loss. place: where it was given. Raises RequestError."""
    if isinstance(sound, (bytes, bytearray, memoryview)):
        return bytes(sound)
    if isinstance(sound, (str, Path)):
        try:
            return Path(sound).read_bytes()
        except OSError as error:
            raise RequestError(f"{place}: the file cannot be read ({error}).", param=place) from None
    if isinstance(sound, tuple) and len(sound) == 2:
        samples = np.asarray(sound[0])
        if samples.ndim in (1, 2) and np.issubdtype(samples.dtype, np.floating):
            return wav_of(samples, int(sound[1]))
        raise RequestError(
            f"{place} has samples {samples.dtype} {samples.shape}; expected floats [n] or [n, channels].", param=place
        )
    raise RequestError(f"{place} is a {type(sound).__name__}; {EXPECTED}.", param=place)

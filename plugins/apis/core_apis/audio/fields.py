"""The fields of a request for a transcription.

Owns: their names, values and defaults. Never does: read the sound. Called by: the routes of sounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from core.api.errors import RequestError, nearest
from core.api.sampling_params import MAX_SEED
from core_apis.forms import Form
from core_media.sound.config import SoundConfig
from core_media.sound.transcription import FALLBACK, Task, check, prompt_tokens

FORMATS: Final = ("json", "text", "srt", "verbose_json", "vtt")
WITH_TIMES: Final = ("srt", "verbose_json", "vtt")
STREAMED: Final = ("json", "text")
TEMPERATURES: Final = ("temperature", "temperature[]")
GRANULARITIES: Final = ("timestamp_granularities[]", "timestamp_granularities")
FIELDS: Final = (
    *("model", "language", "prompt", "response_format", "stream", "seed", "user"),
    *TEMPERATURES,
    *GRANULARITIES,
)
NOT_SERVED: Final = {
    "include[]": "log-probabilities are not part of a transcript",
    "include": "log-probabilities are not part of a transcript",
    "chunking_strategy": "a long sound is cut where its text has a time",
    "known_speaker_names[]": "speakers are not told apart",
    "known_speaker_references[]": "speakers are not told apart",
}
"""Fields of OpenAI's that are refused, with the reason."""
MOST_TEMPERATURES: Final = 16
# Whisper's own thresholds, with which its temperatures are tried; the first one is transformers' measure of tokens.
COMPRESSION: Final = 1.35
LOGPROB: Final = -1.0
NO_SPEECH: Final = 0.6


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request wants. task: for the transcription. form: of the answer, one of `FORMATS`, with or without `segments`."""

    task: Task
    form: str
    stream: bool
    user: str
    segments: bool = True


def read_fields(form: Form, task: str, config: SoundConfig, encode: Callable[[str], list[int]]) -> Wanted:
    """Read the fields of a form. task: `transcribe` or `translate`. encode: tokens of a text. Raises RequestError."""
    for name in form.fields:
        if name in NOT_SERVED:
            raise RequestError(f"{name} is not served: {NOT_SERVED[name]}; leave it out.", param=name)
        if name not in FIELDS:
            raise RequestError(
                f"The form has the field {name[:50]!r}; expected file, {', '.join(FIELDS)}.{nearest(name[:50], FIELDS)}",
                param=name[:50],
            )
    shape = form.one("response_format", "json")
    if shape not in FORMATS:
        raise RequestError(
            f"response_format is {shape[:50]!r}; expected one of {', '.join(FORMATS)}.", param="response_format"
        )
    granularities = _granularities(form, shape)
    stream = _flag(form, "stream")
    if stream and shape not in STREAMED:
        raise RequestError(f"A stream has no response_format {shape!r}; expected json or text.", param="stream")
    temperatures, has_fallback = _temperatures(form)
    wanted = Task(
        task=task,
        language=form.one("language").strip().lower(),
        prompt=prompt_tokens(form.one("prompt"), config, encode),
        temperatures=temperatures,
        times=shape in WITH_TIMES,
        compression=COMPRESSION if has_fallback else None,
        logprob=LOGPROB if has_fallback else None,
        no_speech=NO_SPEECH if has_fallback else None,
        seed=_seed(form),
        wants_no_speech=shape == "verbose_json",
        words="word" in granularities,
    )
    check(wanted, config)
    return Wanted(wanted, shape, stream, form.one("user"), granularities != {"word"})


def _flag(form: Form, name: str) -> bool:
    value = form.one(name, "false").strip().lower()
    if value not in ("true", "false", "1", "0"):
        raise RequestError(f"{name} is {value[:50]!r}; expected true or false.", param=name)
    return value in ("true", "1")


def _temperatures(form: Form) -> tuple[Sequence[float], bool]:
    """Return the temperatures to try, and whether a text must pass thresholds. Zero means Whisper's own list."""
    # The openai client writes brackets behind the name of a list.
    given = [value for name in TEMPERATURES for value in form.fields.get(name, []) if value.strip()]
    found = []
    for value in given:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0.0 <= number <= 1.0:
            raise RequestError(f"temperature is {value[:50]!r}; expected a number from 0 to 1.", param="temperature")
        found.append(number)
    if len(found) > MOST_TEMPERATURES:
        raise RequestError(
            f"The form has temperature {len(found)} times; expected at most {MOST_TEMPERATURES}.", param="temperature"
        )
    if found in ([], [0.0]):
        return FALLBACK, True
    return tuple(found), len(found) > 1


def _seed(form: Form) -> int | None:
    value = form.one("seed").strip()
    if not value:
        return None
    if not value.isascii() or not value.isdigit() or int(value) >= MAX_SEED >> 1:
        raise RequestError(f"seed is {value[:50]!r}; expected a whole number from 0 to 2^62.", param="seed")
    return int(value)


def _granularities(form: Form, shape: str) -> set[str]:
    """Return what has times. Raises RequestError."""
    found: set[str] = set()
    for name in GRANULARITIES:
        for value in form.fields.get(name, ()):
            if value not in ("segment", "word"):
                raise RequestError(f"{name} is {value[:50]!r}; expected 'segment' or 'word'.", param=name)
            found.add(value)
            if shape != "verbose_json":
                raise RequestError(f"{name} needs response_format 'verbose_json', not {shape!r}.", param=name)
    return found

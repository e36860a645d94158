"""The forms of a transcript: json, text, srt, vtt, verbose_json, and the events of a stream.

Owns: how each is written. Never does: transcribe. Called by: the routes of sounds.
"""

from __future__ import annotations

import zlib
from typing import Final, Literal

import msgspec

from core_media.sound.transcription import Transcript
from core_media.sound.windows import Segment
from core_media.sound.words import Word

MEDIA_TYPES: Final = {"json": "application/json", "verbose_json": "application/json", "vtt": "text/vtt"}
"""Content type of an answer, by form; text/plain for all others."""


class TranscriptForm(msgspec.Struct, kw_only=True):
    """The fields of a request. file: a sound as a file."""

    file: bytes
    model: str = ""
    language: str = ""
    prompt: str = ""
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: list[float] = []
    stream: bool = False
    seed: int | None = None
    timestamp_granularities: list[Literal["segment", "word"]] = msgspec.field(
        default_factory=list, name="timestamp_granularities[]"
    )


class SoundUsage(msgspec.Struct):
    """What a transcription is counted as. seconds: length of the sound, rounded up."""

    seconds: int
    type: Literal["duration"] = "duration"


class TranscriptSegment(msgspec.Struct):
    """A segment of a transcript, in OpenAI's form. seek: first frame of its window, in hundredths of a second."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TranscriptWord(msgspec.Struct):
    """A word of a transcript. start, end: seconds."""

    word: str
    start: float
    end: float


class TranscriptAnswer(msgspec.Struct, omit_defaults=True):
    """A transcript. All but `text` and `usage` belongs to `verbose_json`."""

    text: str
    usage: SoundUsage
    task: str | None = None
    language: str | None = None
    duration: float | None = None
    segments: list[TranscriptSegment] | None = None
    words: list[TranscriptWord] | None = None


class TranscriptDelta(msgspec.Struct):
    """An event of a stream: the text of further segments."""

    delta: str
    type: Literal["transcript.text.delta"] = "transcript.text.delta"


class TranscriptDone(msgspec.Struct):
    """The last event of a stream: the whole text."""

    text: str
    usage: SoundUsage
    type: Literal["transcript.text.done"] = "transcript.text.done"


def written(transcript: Transcript, form: str, task: str, *, words: bool = False, segments: bool = True) -> bytes:
    """Return a transcript in a form. words, segments: whether `verbose_json` has them."""
    if form == "text":
        return f"{transcript.text}\n".encode()
    shown = [each for each in transcript.segments if each.text.strip()]
    if form == "srt":
        return "".join(
            f"{index}\n{_clock(each.start, ',')} --> {_clock(each.end, ',')}\n{_line(each)}\n\n"
            for index, each in enumerate(shown, 1)
        ).encode()
    if form == "vtt":
        cues = [f"{_clock(each.start, '.')} --> {_clock(each.end, '.')}\n{_line(each)}\n\n" for each in shown]
        return ("WEBVTT\n\n" + "".join(cues)).encode()
    answer = TranscriptAnswer(transcript.text, usage_of(transcript))
    if form == "verbose_json":
        answer.task = task
        answer.language = transcript.language
        answer.duration = round(transcript.seconds, 3)
        if segments:
            answer.segments = [_segment(index, each) for index, each in enumerate(transcript.segments)]
        if words:
            answer.words = [TranscriptWord(each.word.strip(), *_rounded(each)) for each in transcript.words]
    return msgspec.json.encode(answer)


def usage_of(transcript: Transcript) -> SoundUsage:
    """Return what a transcript is counted as."""
    return SoundUsage(-int(-transcript.seconds // 1))


def event(content: TranscriptDelta | TranscriptDone) -> bytes:
    """Return an event of a stream."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def _segment(index: int, segment: Segment) -> TranscriptSegment:
    data = segment.text.encode()
    return TranscriptSegment(
        id=index,
        seek=segment.seek,
        start=round(segment.start, 2),
        end=round(segment.end, 2),
        text=segment.text,
        tokens=segment.tokens,
        temperature=segment.temperature,
        avg_logprob=segment.avg_logprob,
        compression_ratio=len(data) / len(zlib.compress(data)),
        no_speech_prob=segment.no_speech_prob,
    )


def _rounded(word: Word) -> tuple[float, float]:
    return round(word.start, 2), round(word.end, 2)


def _line(segment: Segment) -> str:
    # An arrow would begin another cue.
    return segment.text.strip().replace("-->", "->")


def _clock(seconds: float, mark: str) -> str:
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{mark}{rest % 1000:03}"

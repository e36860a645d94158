"""The helper process that processes media (`core_supervision.helpers`).

Owns: the messages between it and its parent, and the answer to each job. Never does: read a network or a file other than the
processor's. Called by: `core_media.processing.pool`, as a child.

It is a process because decoders run on input that is not trusted, and because processors hold the interpreter's lock.
"""

from __future__ import annotations

import resource
import sys
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from core.api.errors import RequestError, UserError
from core_media.config import AUDIO, IMAGE, NOUNS, VIDEO, MediaConfig
from core_media.frames import decoded_video, given_frames
from core_media.pictures import decoded
from core_media.processing.image_processor import ImageProcessor
from core_media.processing.sound_processor import SoundProcessor
from core_media.processing.videos import chosen_frames, processed_video
from core_media.sound.decoding import decoded as decoded_sound
from core_media.sound.prompts import PromptSounds
from core_supervision.helpers.child import Parent, address_space, run
from core_supervision.helpers.messages import Refusal

GROWN_BYTES = 512 << 20
"""Growth in bytes since the start after which the process is replaced by a new one."""
ROOM_BYTES = 4 << 30
"""Address space that the work on one item may take."""
Made = tuple[str, bytes, str]
"""Text, features and the processor's fingerprint, see `Answer`."""


class Job(msgspec.Struct, array_like=True):
    """What comes before the bytes of an item.

    declared: see `decoded`. options: arguments of the processor. frames: see `MediaSource`. company: whether a picture is
    processed as one of several.
    """

    declared: str = ""
    options: dict[str, Any] = {}
    modality: str = IMAGE
    frames: bool = False
    company: bool = False


class Answer(msgspec.Struct, array_like=True):
    """A processed item.

    text:     what replaces its placeholder in the prompt.
    features: of `core_media.features`.
    identity: the processor's fingerprint, which is a part of the item's digest.
    """

    text: str = ""
    features: bytes = b""
    identity: str = ""
    refusal: Refusal | None = None


def job_header(job: Job) -> bytes:
    """Return what precedes the bytes of an item: the length of the job's message, and the message."""
    message = msgspec.msgpack.encode(job)
    return len(message).to_bytes(4, "little") + message


def serve(parent: Parent) -> None:
    """Serve jobs until the parent hangs up, or this process has grown."""
    config = parent.first(MediaConfig)
    try:
        worker = _Worker(config)
    except UserError as error:
        failure = Answer(refusal=Refusal(str(error), None, 500, None))
        parent.serve(lambda payload: (failure, False))
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + ROOM_BYTES, hard))
    parent.settle()

    def work(payload: memoryview) -> tuple[Answer, bool]:
        start = 4 + int.from_bytes(payload[:4], "little")
        job = msgspec.msgpack.decode(payload[4:start], type=Job)
        return _answer(worker, NOUNS[job.modality], job, bytes(payload[start:]))

    parent.serve(work)


Run = Callable[[Job, bytes], Made]


class _Worker:
    """Decoding and processing of the modalities that the model takes. Raises UserError for a processor that cannot be built."""

    def __init__(self, config: MediaConfig) -> None:
        self._config = config
        self._runs: dict[str, Run] = {}
        if config.sound is not None:
            self._transcribed = SoundProcessor(config)
            self._runs[AUDIO] = self._transcription
            return
        if IMAGE in config.places or VIDEO in config.places:
            self._pictures = ImageProcessor(config)
            self._runs |= {IMAGE: self._picture, VIDEO: self._video}
        if AUDIO in config.places:
            self._sounds = PromptSounds(config)
            self._runs[AUDIO] = self._sound

    def run(self, job: Job, data: bytes) -> Answer:
        """Return the answer to a job. Raises RequestError."""
        text, features, identity = self._runs[job.modality](job, data)
        return Answer(text, features, identity)

    def _picture(self, job: Job, data: bytes) -> Made:
        picture = decoded(data, job.declared, self._config.max_image_pixels)
        return (*self._pictures.run(picture, job.options, job.company), self._pictures.identity)

    def _video(self, job: Job, data: bytes) -> Made:
        if job.frames:
            video = given_frames(data, self._config)
        else:
            choose = chosen_frames(self._pictures.processor.video_processor, self._config.io_kwargs.get(VIDEO, {}))
            video = decoded_video(data, job.declared, choose, self._config)
        text, features = processed_video(self._pictures.processor, video)
        return text, features, f"{self._pictures.identity} {self._config.io_kwargs.get(VIDEO)}"

    def _sound(self, job: Job, data: bytes) -> Made:
        samples = decoded_sound(data, self._sounds.rate, self._config.max_seconds, job.declared)
        return (*self._sounds.run(samples), self._sounds.identity)

    def _transcription(self, job: Job, data: bytes) -> Made:
        assert self._config.sound is not None
        samples = decoded_sound(data, self._transcribed.rate, self._config.sound.max_seconds)
        return "", self._transcribed.run(samples), self._transcribed.identity


def _answer(worker: _Worker, noun: str, job: Job, data: bytes) -> tuple[Answer, bool]:
    """Return the answer to a job, and whether it leaves the process unfit for others."""
    try:
        return worker.run(job, data), False
    except RequestError as error:
        return Answer(refusal=Refusal.of(error)), False
    except MemoryError:
        sentence = f"the {noun} needs more memory than one may take; send a smaller one"
        return Answer(refusal=Refusal(sentence, None, 413, "too_large")), True
    except Exception:
        sentence = f"the server failed on this {noun}; its log says why"
        return Answer(refusal=Refusal(sentence, None, 500, None, traceback.format_exc())), True


if __name__ == "__main__":
    sys.exit(run(serve, GROWN_BYTES))

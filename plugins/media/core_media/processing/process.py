"""The helper process that processes pictures (`core_supervision.helpers`).

Owns: the messages between it and its parent, and the answer to each job. Never does: read a network or a file other than the
processor's. Called by: `core_media.processing.pool`, as a child.

It is a process because decoders run on input that is not trusted, and because processors hold the interpreter's lock.
"""

from __future__ import annotations

import resource
import sys
import traceback
from typing import Any

import msgspec

from core.api.errors import RequestError, UserError
from core_media.config import MediaConfig
from core_media.pictures import decoded
from core_media.processing.image_processor import ImageProcessor
from core_media.processing.sound_processor import SoundProcessor
from core_media.sound.config import SoundConfig
from core_media.sound.decoding import decoded as decoded_sound
from core_supervision.helpers.child import Parent, address_space, run
from core_supervision.helpers.messages import Refusal

GROWN_BYTES = 512 << 20
"""Growth in bytes since the start after which the process is replaced by a new one."""
ROOM_BYTES = 4 << 30
"""Address space that the work on one picture may take."""


class Job(msgspec.Struct, array_like=True):
    """What comes before the bytes of a picture.

    declared: see `decoded`. options: arguments of the image processor. company: whether it is processed as one of several.
    """

    declared: str = ""
    options: dict[str, Any] = {}
    company: bool = False


class Answer(msgspec.Struct, array_like=True):
    """A processed picture.

    text:     what replaces its placeholder in the prompt.
    features: of `core_media.features`.
    identity: the processor's fingerprint, which is a part of the picture's digest.
    """

    text: str = ""
    features: bytes = b""
    identity: str = ""
    refusal: Refusal | None = None


def job_header(job: Job) -> bytes:
    """Return what precedes the bytes of a picture: the length of the job's message, and the message."""
    message = msgspec.msgpack.encode(job)
    return len(message).to_bytes(4, "little") + message


def serve(parent: Parent) -> None:
    """Serve jobs until the parent hangs up, or this process has grown."""
    config = parent.first(MediaConfig)
    try:
        worker = _PictureWorker(config) if config.sound is None else _SoundWorker(config, config.sound)
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
        return _answer(worker, config.noun, job, bytes(payload[start:]))

    parent.serve(work)


class _PictureWorker:
    """Pictures: decoding and processing."""

    def __init__(self, config: MediaConfig) -> None:
        self._processor = ImageProcessor(config)
        self._max_pixels = config.max_image_pixels

    def run(self, job: Job, data: bytes) -> Answer:
        """Return the answer to a job. Raises RequestError."""
        picture = decoded(data, job.declared, self._max_pixels)
        text, features = self._processor.run(picture, job.options, job.company)
        return Answer(text, features, self._processor.identity)


class _SoundWorker:
    """Sounds: decoding, and their spectrograms."""

    def __init__(self, config: MediaConfig, sound: SoundConfig) -> None:
        self._processor = SoundProcessor(config)
        self._max_seconds = sound.max_seconds

    def run(self, job: Job, data: bytes) -> Answer:
        """Return the answer to a job. Raises RequestError."""
        samples = decoded_sound(data, self._processor.rate, self._max_seconds)
        return Answer("", self._processor.run(samples), self._processor.identity)


def _answer(worker: _PictureWorker | _SoundWorker, noun: str, job: Job, data: bytes) -> tuple[Answer, bool]:
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

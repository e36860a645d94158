"""The helper process that processes media (`core_supervision.helpers`).

Owns: the messages between it and its parent, and the answer to each job. Never does: decode or process an item itself
(`core_media.processing.worker`). Called by: `core_media.processing.pool`, as a child.

It is a process because decoders run on input that is not trusted, and because processors hold the interpreter's lock.
"""

from __future__ import annotations

import resource
import sys
import traceback
from typing import Any

import msgspec

from core.api.errors import CoreError, RequestError
from core_media.config import IMAGE, NOUNS, MediaConfig
from core_media.features import pack
from core_media.processing.worker import Worker
from core_supervision.helpers.child import Parent, address_space, run
from core_supervision.helpers.messages import Refusal

GROWN_BYTES = 512 << 20
"""Growth in bytes since the start after which the process is replaced by a new one."""
UNAVAILABLE = "media_unavailable"
"""Error code of requests whose media nothing can process on this server."""
ROOM_BYTES = 4 << 30
"""Address space that the work on one item may take."""


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
    identity: of the processor, a part of the item's digest.
    """

    text: str = ""
    features: bytes = b""
    identity: str = ""
    refusal: Refusal | None = None


PROBE = Job(modality="")
"""Asks whether the processor was built; no bytes follow."""


def job_header(job: Job) -> bytes:
    """Return what precedes the bytes of an item: the length of the job's message, and the message."""
    message = msgspec.msgpack.encode(job)
    return len(message).to_bytes(4, "little") + message


def serve(parent: Parent) -> None:
    """Serve jobs until the parent hangs up, or this process has grown."""
    config = parent.first(MediaConfig)
    try:
        worker = Worker(config)
    except (Exception, SystemExit) as error:  # whatever a broken file of the checkpoint or a plugin leads to
        unbuilt = Answer(refusal=_unbuilt(config, error))
        parent.serve(lambda payload: (unbuilt, False))
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + ROOM_BYTES, hard))
    parent.settle()

    def work(payload: memoryview) -> tuple[Answer, bool]:
        start = 4 + int.from_bytes(payload[:4], "little")
        job = msgspec.msgpack.decode(payload[4:start], type=Job)
        return _answer(worker, job, bytes(payload[start:]))

    parent.serve(work)


def _unbuilt(config: MediaConfig, error: BaseException) -> Refusal:
    """Return the answer to all jobs of a processor that cannot be built: the model takes text until that is mended."""
    sentence = str(error).strip().removesuffix(".")
    if not isinstance(error, CoreError):
        sentence = f"the processor '{config.processor.name}' cannot be built ({type(error).__name__}: {sentence[:300]})"
    return Refusal(sentence, None, 501, UNAVAILABLE, "".join(traceback.format_exception(error)))


def _answer(worker: Worker, job: Job, data: bytes) -> tuple[Answer, bool]:
    """Return the answer to a job, and whether it leaves the process unfit for others."""
    if job == PROBE:
        return Answer(identity=worker.identity), False
    noun = NOUNS[job.modality]
    try:
        made = worker.run(job.modality, data, job.declared, job.options, frames=job.frames, company=job.company)
        return Answer(made.text, pack(made.arrays), worker.identity), False
    except RequestError as error:
        return Answer(refusal=Refusal.of(error)), False
    except MemoryError:
        sentence = f"the {noun} needs more memory than one may take; send a smaller one"
        return Answer(refusal=Refusal(sentence, None, 413, "too_large")), True
    except (Exception, SystemExit):  # a plugin may call sys.exit, which must not look like a failed start
        sentence = f"the processor '{worker.name}' failed on this {noun}; the server's log says why"
        return Answer(refusal=Refusal(sentence, None, 500, None, traceback.format_exc())), True


if __name__ == "__main__":
    sys.exit(run(serve, GROWN_BYTES))

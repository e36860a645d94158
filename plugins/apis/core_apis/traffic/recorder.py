"""The recorder of a share of a server's requests.

Owns: `TrafficRecorder`: which requests are recorded, the files and their bound. Never does: delay an answer, or read a record.
Called by: `core_apis.app` (builds), the pipeline, for each request.

Bodies and tokens are what clients wrote and got, so the directory is its owner's alone, and a client can object with the header
`X-No-Record`. Only answers that came to their end are recorded. A thread writes; if it falls behind, or the disk refuses,
records are dropped.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
from fastapi import Request

from core.api.messages import EngineRequest
from core_apis.callers.tenant import Tenant
from core_apis.durable.key_digests import KeyDigests
from core_apis.journal.directory import JournalDirectory
from core_apis.journal.records import FileHead, Kind, framed, frames
from core_apis.journal.segments import Segments
from core_apis.traffic.records import RecordedChoice, RecordedPrompt, TrafficRecord, packed
from core_config.served.server_config import RecordSettings, ServerConfig
from core_observers.receipts.issuer import Answers, ReceiptIssuer
from core_observers.receipts.receipt import IssuedReceipt

logger = logging.getLogger(__name__)

HEADER: Final = "x-no-record"
KINDS: Final = ("chat", "completion", "messages")
"""Kinds of bodies that hold everything their answers depend on; responses go on with what the server kept."""
LONGEST_BODY: Final = 4 << 20
"""Bytes of a body; longer ones are not recorded."""
MOST_WAITING: Final = 64
"""Records that wait to be written; further ones are dropped."""
NUM_FILES: Final = 8
QUIET_S: Final = 60.0
"""Seconds between two lines of the log about records that were dropped."""

Prepare = Callable[..., Coroutine[Any, Any, Any]]


class TrafficRecorder:
    """The recorder of one server. issuer: makes the receipts of records. Raises UserError for an unfit directory."""

    def __init__(self, settings: RecordSettings, server: ServerConfig, issuer: ReceiptIssuer) -> None:
        self.issuer = issuer
        self._share = settings.share
        self._max_bytes = settings.max_bytes
        self._random = random.Random()
        self._directory = JournalDirectory(settings.directory, "--record-traffic")
        salt = _salt(self._directory) or secrets.token_bytes(16)
        self._keys = KeyDigests(salt, server.keys, needs_key=bool(server.api_keys))
        self._segments = Segments(self._directory, FileHead(salt, 0), settings.max_bytes // NUM_FILES)
        self._thread = ThreadPoolExecutor(1, "traffic")
        self._num_waiting = 0
        self._num_dropped = 0
        self._told = 0.0

    def begin(self, request: Request, tenant: Tenant, kind: str) -> TrafficNote | None:
        """Return the note of a request that is to be recorded; None: it is not."""
        if kind not in KINDS or HEADER in request.headers or self._random.random() >= self._share:
            return None
        return TrafficNote(self, request.url.path, self._keys.digest(tenant))

    def write(self, record: TrafficRecord) -> None:
        """Write a record soon."""
        if self._num_waiting >= MOST_WAITING:
            self._drop("the disk is too slow")
            return
        self._num_waiting += 1
        self._thread.submit(self._write, record)

    def close(self) -> None:
        """Write what waits, and close the files."""
        self._thread.shutdown(wait=True)
        try:
            self._segments.close()
        except OSError as error:
            self._drop(str(error))
        self._directory.close()

    def _write(self, record: TrafficRecord) -> None:
        try:
            frame = framed(0, 0, Kind.TRAFFIC, msgspec.msgpack.encode(record))
            self._segments.append(frame.data)
            while self._segments.size > self._max_bytes and len(self._segments) > 1:
                self._segments.carry_on(lambda frame: False)
        except OSError as error:
            self._drop(error.strerror or str(error))
        finally:
            self._num_waiting -= 1

    def _drop(self, why: str) -> None:
        self._num_dropped += 1
        now = time.monotonic()
        if not self._told or now - self._told > QUIET_S:
            self._told = now
            logger.warning(
                "Requests that could not be recorded so far: %d; the last one since %s.", self._num_dropped, why
            )


class TrafficNote:
    """One request that is recorded once all of its prompts have ended."""

    def __init__(self, recorder: TrafficRecorder, path: str, tenant: bytes) -> None:
        self._recorder = recorder
        self._record = TrafficRecord(path, b"", tenant, time.time(), [])
        self._prompts: dict[int, RecordedPrompt] = {}
        self._num_prompts = 0

    def keeping(self, prepare: Prepare) -> Prepare:
        """Return the preparation, which keeps the body as well."""

        async def run(*pieces: bytes) -> Any:
            if sum(map(len, pieces)) <= LONGEST_BODY:
                self._record.body = b"".join(pieces)
            return await prepare(*pieces)

        return run

    def issuer(self, index: int, num_prompts: int, *, shown: bool) -> PromptNote:
        """Return the issuer of one prompt. shown: whether the client gets the receipt."""
        self._num_prompts = num_prompts
        return PromptNote(self, index, shown=shown)

    def add(self, index: int, request: EngineRequest, answers: Answers) -> IssuedReceipt:
        """Keep one prompt that has ended, and write the request after its last one."""
        issued = self._recorder.issuer.issue(request, answers)
        choices = [RecordedChoice(choice, packed(list(tokens)), reason) for choice, tokens, reason in answers]
        self._prompts[index] = RecordedPrompt(packed(request.prompt_token_ids), choices, issued)
        if len(self._prompts) == self._num_prompts and self._record.body:
            self._record.prompts = [self._prompts[number] for number in sorted(self._prompts)]
            if all(reason in ("stop", "length") for row in self._record.prompts for _, _, reason in _rows(row)):
                self._recorder.write(self._record)
        return issued


class PromptNote:
    """The issuer of one prompt that is recorded; see `core_observers.receipts.issuer.Issuer`."""

    def __init__(self, note: TrafficNote, index: int, *, shown: bool) -> None:
        self._note = note
        self._index = index
        self._shown = shown

    def issue(self, request: EngineRequest, answers: Answers) -> IssuedReceipt | None:
        """Record the prompt; return its receipt if the client wants it."""
        issued = self._note.add(self._index, request, answers)
        return issued if self._shown else None


def _rows(prompt: RecordedPrompt) -> list[tuple[int, bytes, str | None]]:
    return [(choice.index, choice.token_ids, choice.finish_reason) for choice in prompt.choices]


def _salt(directory: JournalDirectory) -> bytes:
    """Return the salt of the files that are there; empty without any."""
    for path in directory.files():
        for frame in frames(path.read_bytes()):
            if frame.kind is Kind.FILE:
                return msgspec.msgpack.decode(frame.payload, type=FileHead).salt
    return b""

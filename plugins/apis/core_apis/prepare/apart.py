"""Preparation in a helper process for a caller that blocks: before the server serves, when nothing else has to run.

Owns: that process, from its start to its end. Never does: serve requests (`core_apis.prepare.helper` does). Called
by: `core_apis.app`, for prompts that the operator makes public.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import msgspec

from core.api.errors import RequestError
from core_apis.apis import body_kinds
from core_apis.prepare.prepared import PreparationSettings
from core_apis.prepare.process import Answer, Start, job_header
from core_grammars.helper_process import read_message, spawn_helper, write_message
from core_tokens.tokenizer import Tokenizer

MODULE = "core_apis.prepare.process"
JOB_SECONDS = 60.0


class ApartPreparation:
    """A `Preparation` in a process of its own; a context manager, which ends the process."""

    def __init__(self, settings: PreparationSettings, tokenizer: Tokenizer) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self._bodies = body_kinds(settings.apis)
        self._process, self._connection = spawn_helper(MODULE)
        self._connection.settimeout(JOB_SECONDS)
        self._stream = self._connection.makefile("rwb")
        write_message(self._stream, msgspec.msgpack.encode(Start(settings, tokenizer.snapshot)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._stream.close()
        self._connection.close()

    def run(self, kind: str, data: bytes) -> Any:
        """Return the result of a job. Raises RequestError."""
        try:
            self._stream.write(job_header(kind, len(data)))
            self._stream.write(data)
            self._stream.flush()
            payload = read_message(self._stream)
        except (OSError, ValueError):  # a timeout, or the process has ended
            payload = b""
        if not payload:
            raise RequestError("its chat template, or its length, takes too much time or memory", code="too_much_work")
        answer = msgspec.msgpack.decode(payload, type=Answer)
        if answer.refusal is not None:
            raise answer.refusal.as_error()
        return answer.decoded(self._bodies[kind].result)

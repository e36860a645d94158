"""The helper process that prepares requests, from the server's side.

Owns: the messages to it, and what a request is told when it fails there. Never does: start or end the process
(`core_supervision.helpers` does), or the work (`core_apis.prepare.process` is the other end). Called by:
`core_apis.prepare.preparer`; `core_apis.app`, for prompts that the operator makes public.

It is a process because decoding JSON and rendering templates hold the interpreter's lock: in a thread they would stop
every stream, and nothing could end a template that computes for ever. The process's memory is returned to the system
when it ends.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Any, Self

import msgspec

from core.api.errors import RequestError
from core_apis.apis import body_kinds
from core_apis.body_kinds import BodyKind, Buffer
from core_apis.prepare.prepared import PreparationSettings
from core_apis.prepare.process import Answer, Start, job_header
from core_apis.prepare.render_limits import END_SIGNAL
from core_supervision.helpers.blocking import BlockingHelper
from core_supervision.helpers.helper import Helper
from core_supervision.helpers.lane import Lane
from core_supervision.helpers.link import HelperEnded
from core_tokens.tokenizer import Tokenizer

logger = logging.getLogger("core_apis")

SHORT_ANSWER = 32 * 1024
"""Maximum size in bytes of a result that is decoded on the event loop, within a millisecond."""


def preparation_lane(
    job_seconds: float, most_jobs: int = 1, idle_seconds: float | None = None, niceness: int = 0
) -> Lane:
    """Return the lane of a process that prepares requests."""
    return Lane(
        "core_apis.prepare.process",
        "prepares requests",
        job_seconds,
        most_jobs=most_jobs,
        idle_seconds=idle_seconds,
        niceness=niceness,
        fatal_exit=-END_SIGNAL,
    )


class PreparationHelper(Helper):
    """The helper process of one lane of a server."""

    def __init__(self, settings: PreparationSettings, tokenizer: Tokenizer, lane: Lane) -> None:
        # With a large tokenizer the message has many MB.
        super().__init__(lane, lambda: msgspec.msgpack.encode(Start(settings, tokenizer.snapshot)))

    async def run(self, kind: BodyKind, *pieces: Buffer) -> Any:
        """Prepare a body of `kind` in the process, from the pieces of its bytes. Raises RequestError."""
        try:
            answer = _answer(await self.ask(job_header(kind.name), *pieces))
        except HelperEnded as ending:
            raise self._refusal(ending) from None
        if answer.num_bytes > SHORT_ANSWER:
            return await asyncio.to_thread(answer.decoded, kind.result)
        return answer.decoded(kind.result)

    def _refusal(self, ending: HelperEnded) -> RequestError:
        if ending.timed_out:
            seconds = self.lane.job_seconds
            return RequestError(
                f"The request could not be read within {seconds:g} s; send less at once.", code="too_much_work"
            )
        if ending.began and ending.exit_code == self.lane.fatal_exit:
            return RequestError(
                "The chat template was stopped, since one operation in it takes too long for these messages; send fewer or "
                "shorter ones, or start the server with another --chat-template.",
                param="messages",
                code="too_much_work",
            )
        sentence = (
            "The process that reads requests ended; try again, or send less at once."
            if ending.exit_code
            else f"The process that prepares requests does not start ({ending}); try again."
        )
        return RequestError(sentence, status=503, code="server_busy", retry_after=1)


class ApartPreparation:
    """A `Preparation` in a process of its own, for a caller that blocks; a context manager, which ends the process."""

    def __init__(self, settings: PreparationSettings, tokenizer: Tokenizer) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self._bodies = body_kinds(settings.apis)
        self._helper = BlockingHelper(PreparationHelper(settings, tokenizer, preparation_lane(job_seconds=60.0)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._helper.close()

    def run(self, kind: str, data: bytes) -> Any:
        """Return the result of a job. Raises RequestError."""
        try:
            answer = _answer(self._helper.ask(job_header(kind), data))
        except HelperEnded:
            sentence = "its chat template, or its length, takes too much time or memory"
            raise RequestError(sentence, code="too_much_work") from None
        return answer.decoded(self._bodies[kind].result)


def _answer(content: memoryview) -> Answer:
    """Return the answer of the process. Raises RequestError for a refusal."""
    answer = msgspec.msgpack.decode(content, type=Answer)
    if answer.refusal is not None:
        if answer.refusal.details:
            logger.error("A request could not be prepared.\n%s", answer.refusal.details)
        raise answer.refusal.as_error()
    return answer

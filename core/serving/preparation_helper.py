"""The helper process that prepares large requests, as the server sees it.

Owns: its start when it is first needed, one job at a time, its end when it idles, hangs or has grown. Never does: the work
(`core.serving.preparation_process` is the other end). Called by: `core.serving.preparer`.

A process, because decoding JSON and rendering templates hold the interpreter's lock: in a thread they would stop every
stream. What it took of memory goes back to the system with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
from typing import Any

import msgspec

from core.api.errors import RequestError
from core.helper_process import HEADER_BYTES, header, spawn_helper
from core.serving.preparation import Buffer
from core.serving.preparation_process import Answer, Start, job_header
from core.serving.prepared import RESULTS, PreparationSettings
from core.tokens.tokenizer import Tokenizer

logger = logging.getLogger("core.serving")

JOB_SECONDS = 60.0
IDLE_SECONDS = 120.0


class PreparationHelper:
    """One for each server; there is a process only while it is of use."""

    def __init__(self, settings: PreparationSettings, tokenizer: Tokenizer) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._answers = msgspec.msgpack.Decoder(Answer)
        self._closed = False

    async def run(self, kind: str, data: Buffer) -> Any:
        """The result of `kind` (see `RESULTS`) for a body. Raises RequestError."""
        async with self._turn:
            exchange = asyncio.ensure_future(self._exchange(kind, data))
            try:
                answer = await asyncio.shield(exchange)
            finally:
                # A client that has gone does not end a job in its middle: its answer would be taken for the next one's.
                if not exchange.done():
                    await asyncio.wait({exchange})
        if answer.refusal is not None:
            if answer.refusal.details:
                logger.error("A request could not be prepared.\n%s", answer.refusal.details)
            raise answer.refusal.as_error()
        return msgspec.msgpack.decode(answer.result, type=RESULTS[kind])

    async def close(self) -> None:
        """End the process for good."""
        self._closed = True
        await self._end()

    async def _exchange(self, kind: str, data: Buffer) -> Answer:
        if self._idle is not None:
            self._idle.cancel()
        try:
            async with asyncio.timeout(JOB_SECONDS):
                try:
                    answer = await self._ask_process(kind, data)
                except (OSError, EOFError) as error:  # it may have died long before this request came
                    logger.warning("The process that prepares large requests ended (%s); another is started.", error)
                    await self._end()
                    answer = await self._ask_process(kind, data)
        except TimeoutError:
            await self._end()
            raise RequestError(
                f"The request could not be read within {JOB_SECONDS:g} s; send less at once.", code="too_much_work"
            ) from None
        except (OSError, EOFError) as error:
            logger.warning("The process that prepares large requests ended unexpectedly (%s).", error or "no cause")
            await self._end()
            raise RequestError(
                "The process that reads large requests ended; try again, or send less at once.",
                status=503,
                code="server_busy",
                retry_after=1,
            ) from None
        if answer.last:
            await self._end()
        else:
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._on_idle)
        return answer

    async def _ask_process(self, kind: str, data: Buffer) -> Answer:
        if self._process is None:
            await self._start()
        return await self._ask(kind, data)

    async def _start(self) -> None:
        if self._closed:
            raise EOFError("the server ends")
        self._process, ours = await asyncio.to_thread(spawn_helper, "core.serving.preparation_process")
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        start = msgspec.msgpack.encode(Start(self.settings, self.tokenizer.snapshot))
        await self._send(header(len(start)), start)

    async def _ask(self, kind: str, data: Buffer) -> Answer:
        await self._send(job_header(kind, len(data)), data)
        assert self._reader is not None
        size = int.from_bytes(await self._reader.readexactly(HEADER_BYTES), "little")
        return self._answers.decode(await self._reader.readexactly(size))

    async def _send(self, head: bytes, payload: Buffer) -> None:
        assert self._writer is not None
        self._writer.write(head)
        self._writer.write(payload)  # apart, since joining them would copy megabytes while everybody waits
        await self._writer.drain()

    def _on_idle(self) -> None:
        if not self._turn.locked():
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        process, self._process = self._process, None
        if self._idle is not None:
            self._idle.cancel()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.to_thread(process.wait)

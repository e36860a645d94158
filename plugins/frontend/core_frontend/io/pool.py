"""The processes of an IO processor, from the engine's side.

Owns: the choice of a process, and what a request is told when one fails. Never does: call the plugin. Called by: what
prepares and answers /pooling requests; `LLM.encode`, through `BlockingIO`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError
from threading import Thread
from typing import Any, TypeVar

import msgspec

from core.api.config import EngineConfig
from core.api.errors import RequestError
from core_frontend.api.pooling_outputs import WholeOutput
from core_frontend.io.process import DATA, KIND, Answer, IOSettings, Job, OutputMessage
from core_supervision.helpers.helper import Helper
from core_supervision.helpers.lane import Lane
from core_supervision.helpers.link import HelperEnded

logger = logging.getLogger("core_frontend")

JOB_SECONDS = 60.0
"""Seconds that one step of a request may take."""
MAX_PROCESSES = 4
"""Maximum number of processes; each is started when all others are busy, so that one that hangs holds up no other request."""
LANE = Lane("core_frontend.io.process", "runs an IO processor", JOB_SECONDS, idle_seconds=600.0, max_ended=1)
T = TypeVar("T")


def io_settings(config: EngineConfig) -> IOSettings | None:
    """Return what loads the chosen IO processor; None: there is none."""
    model = config.model
    for row in config.plugins.table:
        if row.kind == KIND:
            tasks = [] if model.pooling is None else list(model.pooling.tasks)
            options = {
                "model": model.model,
                "hf_config": model.hf_config,
                "max_model_len": model.max_model_len,
                "tasks": tasks,
            }
            return IOSettings(row, config.plugins.arguments.get(f"{KIND}.{row.name}", {}), options)
    return None


class IOPool:
    """The processes of one server."""

    def __init__(self, settings: IOSettings) -> None:
        self._name = settings.row.name
        first = msgspec.msgpack.encode(settings)
        self.helpers = [Helper(LANE, lambda: first) for _ in range(MAX_PROCESSES)]
        self._jobs = [0] * MAX_PROCESSES

    def start(self) -> None:
        """Start the first process ahead of the first request, in the background."""
        self.helpers[0].start()

    async def body(self, content: bytes) -> bytes:
        """Return the body of a /pooling request with prompts for its data, which becomes text of JSON. Raises RequestError.

        A body without data is returned as it is.
        """
        return await self._run(Job("body", content)) or content

    async def prompts(self, data: bytes) -> dict[str, Any]:
        """Return the prompts of data (JSON) as `input`, and the parameters that belong to them. Raises RequestError."""
        found: dict[str, Any] = msgspec.json.decode(await self._run(Job("data", data)))
        return found

    async def answer(self, data: bytes, outputs: Sequence[WholeOutput]) -> bytes:
        """Return the answer (JSON) to data (JSON). Raises RequestError."""
        messages = []
        for output in outputs:
            numbers = output.outputs.data
            messages.append(OutputMessage(numbers.shape, numbers.tobytes(), list(output.prompt_token_ids)))
        return await self._run(Job("answer", data, messages))

    async def close(self) -> None:
        """End the processes."""
        await asyncio.gather(*(helper.close() for helper in self.helpers))

    async def _run(self, job: Job) -> bytes:
        message = msgspec.msgpack.encode(job)
        index = min(range(len(self._jobs)), key=self._jobs.__getitem__)
        self._jobs[index] += 1
        try:
            content = await self.helpers[index].ask(message)
        except HelperEnded as ending:
            raise self._refusal(ending) from None
        finally:
            self._jobs[index] -= 1
        answer = msgspec.msgpack.decode(content, type=Answer)
        if answer.refusal is not None:
            if answer.refusal.details:
                logger.error("The IO processor '%s' failed.\n%s", self._name, answer.refusal.details)
            raise answer.refusal.as_error()
        return answer.content

    def _refusal(self, ending: HelperEnded) -> RequestError:
        if ending.timed_out:
            seconds = self.helpers[0].lane.job_seconds
            sentence = f"The IO processor '{self._name}' did not answer within {seconds:g} s; send less."
            return RequestError(sentence, param=DATA, code="too_much_work")
        if ending.began and ending.exit_code:
            sentence = (
                f"The process of the IO processor '{self._name}' ended on this request; send another, or try again."
            )
        else:
            sentence = f"The process of the IO processor '{self._name}' does not start ({ending}); try again."
        return RequestError(sentence, status=503, code="server_busy", retry_after=1)


class BlockingIO:
    """The processes of one `LLM`, with an event loop of their own in a thread."""

    def __init__(self, settings: IOSettings) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="io-processor", daemon=True)
        self._thread.start()
        self._pool = IOPool(settings)

    def prompts(self, data: Any) -> dict[str, Any]:
        """Return as `IOPool.prompts` does."""
        return self._wait(self._pool.prompts(_json(data)))

    def answer(self, data: Any, outputs: Sequence[WholeOutput]) -> Any:
        """Return the answer as plain values."""
        return msgspec.json.decode(self._wait(self._pool.answer(_json(data), outputs)))

    def close(self) -> None:
        """End the processes. May be called once."""
        self._wait(self._pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except CancelledError:
            raise RequestError("The engine was closed.", status=503) from None


def _json(data: Any) -> bytes:
    try:
        return msgspec.json.encode(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"data is no plain JSON value ({error}).", param=DATA) from error

"""The engine as an asyncio server sees it.

Owns: `AsyncEngine`: streams of outputs by request, aborts, health. Never does: HTTP, sampling, or importing torch.
Called by: the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError, PluginError, RequestError, UserError
from core.api.messages import EngineOutputs, EngineReady, SchedulerStats
from core.api.outputs import RequestOutput
from core.api.sampling_params import SamplingParams
from core.api.step_plan import SequenceKey
from core.engine.child import EngineProcess
from core.engine.input_processor import InputProcessor, ProcessedInput, PromptInput
from core.engine.output_processor import OutputProcessor
from core.engine.queue_limit import QueueLimit
from core.engine.stats_log import StatsLog
from core.engine.tokenizing import load_tokenizer
from core.engine.zmq_client import ZmqClient
from core.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from core.config.resolve import Resolution

logger = logging.getLogger(__name__)

LONG_TEXT = 4096
"""Characters of a prompt from which on it is tokenized outside the event loop."""

OutputsHook = Callable[[list[RequestOutput], EngineOutputs], None]


class AsyncEngine:
    """One engine process and the streams of its requests. Build it with `start`; use it from one event loop.

    tokenizer:    of the checkpoint, or None. model_config: the model as it runs. ready: what the engine said at its start.
    stats:        state of the engine after its latest step.
    dead_error:   why the engine is gone, or None.
    on_outputs:   called after each step with the outputs handed to users and the engine's message (for metrics).
    on_death:     called once when the engine dies.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer, client: ZmqClient) -> None:
        self.config = config
        self.model_config = config.model
        self.tokenizer = tokenizer
        self.stats = SchedulerStats()
        self.dead_error: EngineDeadError | None = None
        self.on_outputs: OutputsHook | None = None
        self.on_death: Callable[[EngineDeadError], None] | None = None
        self._client = client
        self._closed = False
        self._input = InputProcessor(config.model, tokenizer)
        self._output = OutputProcessor(tokenizer, config.scheduler.stream_interval)
        self._queue = QueueLimit(config.scheduler.max_num_queued_reqs, config.scheduler.max_num_queued_tokens)
        self._streams: dict[str, asyncio.Queue[RequestOutput | EngineDeadError]] = {}
        self._stats_log = None if config.disable_log_stats else StatsLog()
        self._background: set[asyncio.Task[None]] = set()
        client.listen(self._on_step, self._on_dead)

    @classmethod
    async def start(
        cls, resolution: Resolution, *, executor: str | None = None, process: EngineProcess | None = None
    ) -> AsyncEngine:
        """Start the engine process and load the tokenizer meanwhile; without a plugin that fails, where that is allowed.

        executor: MODULE:CLASS of another executor than the default. process: one that was spawned already.
        Raises UserError for a mistake in the configuration, PluginError for a plugin that fails (see `Resolution.without`),
        EngineDeadError when the engine does not come up.
        """
        while True:
            try:
                return await cls._start(resolution, executor, process)
            except PluginError as error:
                resolution, process = await asyncio.to_thread(resolution.without, error), None

    @classmethod
    async def _start(cls, resolution: Resolution, executor: str | None, process: EngineProcess | None) -> AsyncEngine:
        config, source = resolution.engine, resolution.manifest.tokenizer
        loading = asyncio.create_task(asyncio.to_thread(load_tokenizer, source, config.model))
        starting = asyncio.create_task(ZmqClient.start(config, executor=executor, process=process))
        try:
            tokenizer, client = await asyncio.gather(loading, starting)
        except BaseException:
            starting.cancel()
            await asyncio.gather(loading, starting, return_exceptions=True)
            if not starting.cancelled() and starting.exception() is None:
                await starting.result().close()
            raise
        if tokenizer is None:
            await client.close()
            raise UserError(f"The checkpoint {config.model.model!r} has no tokenizer; name one with --tokenizer.")
        return cls(config, tokenizer, client)

    @property
    def ready(self) -> EngineReady:
        """What the engine said when it was up: sizes, numerics, phases of the start."""
        return self._client.ready

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._client.pid

    @property
    def is_running(self) -> bool:
        """Whether requests are served."""
        return not self._closed and self.dead_error is None

    async def generate(
        self,
        prompt: PromptInput,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        strict_length: bool = True,
        user: str = "",
        timeout_s: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run a request; yields its outputs as `params.output_kind` says, the last one with `finished`.

        user: whose it is, for the fair policy. timeout_s: seconds until it ends with finish reason `timeout`; None: those
        of the configuration.

        Leaving the iterator early (or cancelling the task) aborts the request and gives its blocks back.
        Raises RequestError at the first item when the request is wrong, EngineDeadError when the engine dies.
        """
        client = self._live_client()
        more = {"priority": priority, "strict_length": strict_length, "user": user}
        more["timeout_s"] = timeout_s or self.config.scheduler.request_timeout_s or None
        entry = await self._process(prompt, params, request_id, more)
        if request_id in self._streams:
            raise RequestError(f"The request id {request_id!r} is in use; choose another.", param="request_id")
        self._queue.enter(request_id, len(entry.requests[0].prompt_token_ids))
        stream: asyncio.Queue[RequestOutput | EngineDeadError] = asyncio.Queue()
        self._streams[request_id] = stream
        self._output.add(entry)
        try:
            await client.add(entry.requests)
            while True:
                item = await stream.get()
                if isinstance(item, EngineDeadError):
                    raise item
                yield item
                if item.finished:
                    return
        finally:
            self._queue.leave(request_id)
            if self._streams.get(request_id) is stream:
                del self._streams[request_id]
            await self._forget(request_id)

    async def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last output with finish reason `abort`. Unknown ids are ignored."""
        stream = self._streams.get(request_id)
        for output in await self._forget(request_id):
            if stream is not None:
                stream.put_nowait(output)

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False when running requests still hold blocks."""
        return await self._live_client().call("reset_prefix_cache") == "true"

    async def check_integrity(self) -> None:
        """Check every invariant of the scheduler and the KV cache. Raises EngineDeadError naming the violated one."""
        await self._live_client().call("check_integrity")

    async def check_health(self) -> None:
        """Raises EngineDeadError when the engine is gone."""
        self._live_client()

    async def close(self) -> None:
        """End the engine process; streams that still run get EngineDeadError. May be called twice."""
        if not self._closed:
            self._closed = True
            self._end_streams(EngineDeadError("The engine was closed."))
            await self._client.close()

    def _live_client(self) -> ZmqClient:
        if self.dead_error is not None:
            raise self.dead_error
        if self._closed:
            raise EngineDeadError("The engine was closed; start another one.")
        return self._client

    async def _process(
        self, prompt: PromptInput, params: SamplingParams, request_id: str, more: dict[str, Any]
    ) -> ProcessedInput:
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        if isinstance(text, str) and len(text) > LONG_TEXT:
            given = prompt if isinstance(prompt, Mapping) else {"prompt": text}
            if given.get("prompt_token_ids") is None:
                prompt = {**given, "prompt_token_ids": await asyncio.to_thread(self.tokenizer.encode, text)}
        return self._input.process(request_id, prompt, params, **more)

    async def _forget(self, request_id: str) -> list[RequestOutput]:
        """Drop a request that still runs, here and in the engine; returns its last output."""
        if request_id not in self._output:
            return []
        last = self._output.abort([request_id])
        if self.is_running:
            await self._client.abort([request_id])
        return last

    def _on_step(self, message: EngineOutputs) -> None:
        self.stats = message.stats
        for news in message.outputs:
            if news.start == 0:
                self._queue.leave(news.request_id)
        processed = self._output.process(message.outputs)
        for output in processed.outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.put_nowait(output)
        if processed.stopped:
            task = asyncio.create_task(self._stop(processed.stopped))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
        if self._stats_log is not None:
            self._stats_log.record(message)
        if self.on_outputs is not None:
            try:
                self.on_outputs(processed.outputs, message)
            except Exception as error:
                logger.error("The hook on_outputs failed.", exc_info=error)

    async def _stop(self, keys: list[SequenceKey]) -> None:
        if self.is_running:
            await self._client.abort_choices(keys)

    def _on_dead(self, error: EngineDeadError) -> None:
        self.dead_error = error
        logger.error("%s", error)
        self._end_streams(error)
        if self.on_death is not None:
            self.on_death(error)

    def _end_streams(self, error: EngineDeadError) -> None:
        for stream in self._streams.values():
            stream.put_nowait(error)

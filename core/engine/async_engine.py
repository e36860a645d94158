"""The engine as an asyncio server sees it.

Owns: `AsyncEngine`: streams of outputs by request, aborts, health. Never does: HTTP, sampling, or importing torch.
Called by: the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import msgspec

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError, EngineStalledError, RequestError
from core.api.messages import EngineOutput, EngineOutputs, EngineReady, EngineRequest, FinishReason, SchedulerStats
from core.api.outputs import RequestOutput
from core.api.sampling_params import SamplingParams
from core.api.structured_outputs import CompiledGrammar
from core.engine.child import EngineProcess
from core.engine.health import check_pause, check_silence
from core.engine.input_processor import InputProcessor, ProcessedInput
from core.engine.killers import Killers
from core.engine.output_processor import OutputProcessor
from core.engine.prompt_parser import PromptInput
from core.engine.queue_limit import queue_limit
from core.engine.recording import Recorder
from core.engine.recovery import Recovery
from core.engine.request_terms import STRICT, RequestTerms
from core.engine.restart_log import RestartLog
from core.engine.revival import EngineSource
from core.engine.startup import Resolved, start_with_fallbacks
from core.engine.stat_totals import StatTotals
from core.engine.stats_log import StatsLog
from core.engine.streams import RequestStreams
from core.engine.zmq_client import ZmqClient
from core.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from core.grammars.compiler import GrammarCompiler

logger = logging.getLogger(__name__)

LONG_TEXT = 4096
"""Characters of a prompt from which on it is tokenized outside the event loop."""

DEADLINE_GRACE_S = 0.5
"""Seconds after a request's deadline that the engine has for saying so itself, with all it has generated until then."""

OutputsHook = Callable[[list[RequestOutput], EngineOutputs], None]


class AsyncEngine:
    """One engine process and the streams of its requests. Build it with `start`; use it from one event loop.

    tokenizer:    of the checkpoint, or one that refuses all texts.
    model_config: the model as it runs.
    stats:        state of the engine after its latest step.
    queue:        how many requests wait, and may.
    grammars:     compiles what requests want of their answers' form.
    dead_error:   why the engine is gone, or None.
    on_outputs:   called after each step with the outputs handed to users and the engine's message (for metrics).
    on_death:     called once when the engine dies and is not started again.
    restarts:     deaths after which it was started again.
    source:       gives further engines; None: the first death is final.
    """

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer, client: ZmqClient, source: EngineSource | None = None
    ) -> None:
        from core.grammars.compiler import GrammarCompiler  # not before the engine has its configuration

        self.config = config
        self.model_config = config.model
        self.tokenizer = tokenizer
        self.stats = SchedulerStats()
        self.dead_error: EngineDeadError | None = None
        self.on_outputs: OutputsHook | None = None
        self.on_death: Callable[[EngineDeadError], None] | None = None
        self._client = client
        self._closed = False
        self._num_overdue = 0
        texts = None if tokenizer.refusal else tokenizer
        self._input = InputProcessor(config.model, texts, config.cache.explains)
        self._output = OutputProcessor(texts, config.scheduler.stream_interval)
        self.queue = queue_limit(config.scheduler)
        self.grammars: GrammarCompiler = GrammarCompiler(config, tokenizer)
        self._streams = RequestStreams()
        self._recorders: dict[str, Recorder] = {}
        self._stats_log = None if config.disable_log_stats else StatsLog()
        self.restarts = RestartLog()
        self._totals = StatTotals()
        self._killers = Killers()
        self._recovery: Recovery | None = None
        if source is not None:
            num_drafts = config.scheduler.num_speculative_tokens
            self._recovery = Recovery(
                source, self, self._output, self._streams, self.restarts, self._killers, num_drafts
            )
        client.listen(self._on_step, self._on_dead)

    @classmethod
    async def start(
        cls, resolution: Resolved, *, executor: str | None = None, process: EngineProcess | None = None
    ) -> AsyncEngine:
        """Start the engine process and load the tokenizer meanwhile; without a plugin that fails, where that is allowed.

        executor: MODULE:CLASS of another executor than the default.
        process: one that was spawned already.

        Raises UserError for a mistake in the configuration, PluginError for a plugin that fails (see `Resolved.without`),
        EngineDeadError when the engine does not come up.
        """
        started, source, client, tokenizer = await start_with_fallbacks(resolution, executor, process)
        return cls(started.engine, tokenizer, client, source)

    @property
    def ready(self) -> EngineReady:
        """The engine's first message: sizes, numerics, phases of the start."""
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
        self, prompt: PromptInput, params: SamplingParams, request_id: str, terms: RequestTerms = STRICT
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run a request; yields its outputs as `params.output_kind` says, the last one with `finished`.

        The deadline holds even when the engine does not answer. While its grammar is compiled it keeps a place in the queue.
        Leaving the iterator early (or cancelling the task) aborts the request and gives its blocks back.
        Raises RequestError at the first item when the request is wrong, EngineDeadError when the engine dies.
        """
        self._check_open()
        deadline = terms.deadline(self.config.scheduler.request_timeout_s)
        with nullcontext() if request_id in self.queue else self.queue.arriving():
            prompt = await self._tokenized(prompt)
            begin = time.monotonic()
            grammar = await self._grammar(params, deadline)
        if grammar is not None:
            terms = terms.with_grammar(begin)
        recorder = terms.recorder
        if recorder is not None and recorder.seed is not None:
            params = msgspec.structs.replace(params, seed=recorder.seed)
        entry = self._input.process(request_id, prompt, params, terms, deadline=deadline, grammar=grammar)
        self._killers.check(entry.requests[0])
        with self._streams.open(request_id) as stream:
            self.queue.enter({request_id: len(entry.requests[0].prompt_token_ids)})
            self._output.add(entry)
            alarm = self._set_alarm(request_id, deadline)
            try:
                requests = entry.requests if recorder is None else self._recalled(entry, recorder)
                if requests:
                    await self._send(requests)
                while True:
                    output = await stream.next()
                    yield output
                    if output.finished:
                        return
            finally:
                if alarm is not None:
                    alarm.cancel()
                self.queue.end(request_id)
                self._recorders.pop(request_id, None)
                self._forget(request_id)

    async def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last output with finish reason `abort`. Unknown ids are ignored."""
        self._streams.deliver(self._forget(request_id))

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False when running requests still hold blocks.

        Raises EngineDeadError, or EngineStalledError when the engine is silent for longer than it may be.
        """
        limit = self.config.stall_timeout_s
        try:
            return bool(await asyncio.wait_for(self._live_client().call("reset_prefix_cache"), limit))
        except TimeoutError:
            raise EngineStalledError(
                f"The engine did not answer within {limit:g} s (--engine-stall-timeout); the prefix cache may be reset later."
            ) from None

    async def check_integrity(self) -> None:
        """Check every invariant of the scheduler and the KV cache.

        Raises UtilityError naming the violated one, EngineDeadError when the engine is gone.
        """
        await self._live_client().call("check_integrity")

    async def check_health(self) -> None:
        """Raises EngineDeadError when the engine is gone, EngineStalledError when it has been silent for too long.

        The engine is asked for a sign of life, but not waited for: what counts is for how long it has owed a word. One that is
        being started again after its death counts as silent since then.
        """
        limit = self.config.stall_timeout_s
        self._check_open()
        if self._pauses:
            check_pause(self.restarts, limit)
        else:
            await check_silence(self._client, limit, len(self._output))

    async def close(self) -> None:
        """End the engine process; streams that still run get EngineDeadError. May be called twice."""
        if not self._closed:
            self._closed = True
            self._streams.end(EngineDeadError("The engine was closed."))
            await asyncio.to_thread(self.grammars.close)
            if self._recovery is not None:
                await self._recovery.close()
            await self._client.close()

    def kill(self) -> None:
        """End the engine process at once, while `close` waits for it or before."""
        self._client.kill()

    def adopt(self, client: ZmqClient) -> None:
        """Use another client, after the death of the last one's engine. Called by the recovery."""
        self._client = client
        client.listen(self._on_step, self._on_dead)

    def give_up(self, error: EngineDeadError) -> None:
        """The engine is dead for good. Called by the recovery."""
        self.dead_error = error
        logger.error("%s", error)
        self._streams.end(error)
        if self.on_death is not None:
            self.on_death(error)

    def _check_open(self) -> None:
        if self.dead_error is not None:
            raise self.dead_error
        if self._closed:
            raise EngineDeadError("The engine was closed; start another one.")

    def _live_client(self) -> ZmqClient:
        self._check_open()
        if self._pauses:
            raise EngineStalledError("The engine died and is being started again; ask again in a few seconds.")
        return self._client

    @property
    def _pauses(self) -> bool:
        return self.restarts.paused_since is not None

    async def _send(self, requests: Sequence[EngineRequest]) -> None:
        """Send the choices of a request, which is live already. While the engine pauses, they are sent when it goes on."""
        self._check_open()
        if not self._pauses:
            await self._client.add(requests)

    async def _tokenized(self, prompt: PromptInput) -> PromptInput:
        """The prompt, with token ids when its text is long: then it is tokenized outside the event loop."""
        given = prompt if isinstance(prompt, Mapping) else {"prompt": prompt}
        text = given.get("prompt")
        if not isinstance(text, str) or len(text) <= LONG_TEXT or given.get("prompt_token_ids") is not None:
            return prompt
        return {**given, "prompt_token_ids": await asyncio.to_thread(self.tokenizer.encode, text)}

    async def _grammar(self, params: SamplingParams, deadline: float) -> CompiledGrammar | None:
        """The compiled form of what the answer must look like. Raises RequestError.

        deadline: monotonic seconds; 0.0: none.
        """
        wanted = getattr(params, "structured_outputs", None)
        if wanted is None:
            return None
        begin = time.monotonic()
        try:
            async with asyncio.timeout(deadline - begin if deadline else None):
                return await self.grammars.compiled(wanted)
        except TimeoutError:
            self._num_overdue += 1
            self.stats.num_timeouts += 1
            raise RequestError(
                f"The request's time was up after {time.monotonic() - begin:.1f} s in which its structured_outputs were "
                "compiled; give the request a longer timeout.",
                param="timeout",
                status=408,
                code="request_timeout",
            ) from None

    def _recalled(self, entry: ProcessedInput, recorder: Recorder) -> list[EngineRequest]:
        """Repeat what a request has got already, and record what follows; returns the choices that are not finished."""
        request_id = entry.requests[0].request_id
        recorder.begin(entry.requests[0].seed)
        for step in recorder.past:
            outputs = [msgspec.structs.replace(output, request_id=request_id) for output in step]
            self._streams.deliver(self._output.process(outputs).outputs)
        if recorder.past:
            self.queue.leave(request_id)
        self._recorders[request_id] = recorder
        state = self._output.find(request_id)
        return [] if state is None else state.resumed()

    def _record(self, outputs: Sequence[EngineOutput]) -> None:
        """Hand the news of recorded requests to their recorders."""
        news: dict[str, list[EngineOutput]] = {}
        for output in outputs:
            if output.request_id in self._recorders:
                news.setdefault(output.request_id, []).append(output)
        for request_id, own in news.items():
            self._recorders[request_id].record(own)

    def _set_alarm(self, request_id: str, deadline: float) -> asyncio.TimerHandle | None:
        """See to it that a request ends even when the engine does not end it. deadline: monotonic seconds; 0.0: none."""
        if not deadline:
            return None
        begin = time.monotonic()
        delay = deadline - begin + DEADLINE_GRACE_S
        return asyncio.get_running_loop().call_later(delay, self._time_out, request_id, begin)

    def _time_out(self, request_id: str, begin: float) -> None:
        """End a request whose deadline has passed. begin: monotonic seconds at which it began."""
        why = "it is busy with a long step, or it hangs (/health tells)"
        if self._pauses:
            why = "it died and is being started again"
        sentence = (
            f"The request's time was up after {time.monotonic() - begin:.1f} s, and the engine did not end it: {why}. "
            "Give the request a longer timeout."
        )
        if self.is_running and not self._pauses:
            self._client.ping()  # so that the engine owes an answer even when no request is left
        last = self._forget(request_id, "timeout", sentence)
        self._num_overdue += len(last)
        self.stats.num_timeouts += len(last)
        self._streams.deliver(last)

    def _forget(
        self, request_id: str, reason: FinishReason = "abort", sentence: str | None = None
    ) -> list[RequestOutput]:
        """Drop a request that still runs, here and in the engine; returns its last output."""
        if request_id not in self._output:
            return []
        self._client.abort([request_id])
        return self._output.abort([request_id], reason, sentence)

    def _on_step(self, message: EngineOutputs) -> None:
        self.stats = message.stats
        self._totals.add_to(self.stats)
        self.stats.num_timeouts += self._num_overdue
        for news in message.outputs:
            if news.start == 0:
                self.queue.leave(news.request_id)
        if self._recorders:
            self._record(message.outputs)
        processed = self._output.process(message.outputs)
        self._streams.deliver(processed.outputs)
        if processed.stopped:
            self._client.abort_choices(processed.stopped)
        if self._stats_log is not None:
            self._stats_log.record(message)
        if self.on_outputs is not None:
            try:
                self.on_outputs(processed.outputs, message)
            except Exception as error:
                logger.error("The hook on_outputs failed.", exc_info=error)

    def _on_dead(self, error: EngineDeadError) -> None:
        if self._closed:
            return  # its end was asked for
        if self._recovery is None:
            self.give_up(error)
            return
        self.stats = self._totals.end_engine(self.stats, self._num_overdue, len(self._output))
        self._recovery.begin(self._client, error)

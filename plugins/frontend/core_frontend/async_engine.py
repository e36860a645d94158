"""The engine for an asyncio server.

Owns: `AsyncEngine`: streams of outputs by request, aborts, health. Never does: HTTP, sampling, or importing torch.
Called by: the server.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError, EngineStalledError, RequestError, UtilityError
from core.api.messages import EngineOutputs, EngineReady, EngineRequest, FinishReason
from core.api.sampling_params import SamplingParams
from core.api.stats import SchedulerStats
from core_frontend.adapters import Adapters
from core_frontend.api.outputs import RequestOutput
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.deadlines import alarm, overdue_sentence
from core_frontend.denylist import Denylist
from core_frontend.group.client import GroupClient
from core_frontend.group.member import EngineState
from core_frontend.group.moves import GroupMoves
from core_frontend.group.recovery import GroupRecovery
from core_frontend.group.source import GroupSource
from core_frontend.group.stats_log import GroupStatsLog
from core_frontend.intake import Intake
from core_frontend.live_requests import LiveRequests
from core_frontend.prompts.prompt_parser import PromptInput
from core_frontend.queue.limit import QueueLimit
from core_frontend.recovery import Recovery
from core_frontend.request_terms import STRICT, RequestTerms
from core_frontend.startup import EngineClient, Resolved, start_with_fallbacks
from core_frontend.stat_totals import StatTotals
from core_frontend.stats_log import StatsLog
from core_supervision.child import EngineProcess
from core_supervision.control import EngineControl
from core_supervision.restart_log import RestartLog
from core_supervision.revival import EngineSource
from core_supervision.watch.health import check_pause, check_silence
from core_tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from core_grammars.compiler import GrammarCompiler

logger = logging.getLogger(__name__)

PROFILE_POLL_S = 0.05
"""Seconds between two checks whether a profile is written."""

OutputsHook = Callable[[list[RequestOutput], EngineOutputs], None]


class AsyncEngine:
    """One engine process and the streams of its requests. Build it with `start`; use it from one event loop.

    tokenizer:    of the checkpoint, or one that refuses all texts.
    model_config: the model as it runs.
    dead_error:   why the engine is gone, or None.
    on_outputs:   called after each step with the outputs handed to users and the engine's message (for metrics).
    on_death:     called once when the engine dies and is not restarted.
    restarts:     deaths after which it was restarted.
    control:      pauses it, puts it to sleep, replaces its weights.
    adapters:     its adapters, where it has some.
    source:       provides further engines; None: the first death is final.
    moves:        drains engines of a group; None for one engine.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        client: EngineClient,
        source: EngineSource | GroupSource | None = None,
    ) -> None:
        self.config = config
        self.model_config = config.model
        self.tokenizer = tokenizer
        self.dead_error: EngineDeadError | None = None
        self.on_outputs: OutputsHook | None = None
        self.on_death: Callable[[EngineDeadError], None] | None = None
        self._client = client
        self._closed = False
        self._live = LiveRequests(config, tokenizer)
        self._totals = client.totals if isinstance(client, GroupClient) else StatTotals()
        self.control = EngineControl(self._live_client)
        self.adapters = Adapters(self.control.call, lambda: self.stats.adapters_number)
        self._intake = Intake(config, tokenizer, self._live.queue, self._totals)
        self._stats_log = None if config.disable_log_stats else StatsLog()
        if isinstance(client, GroupClient) and self._stats_log is not None:
            client.stats_log, self._stats_log = GroupStatsLog(config, client.totals), None
        self._killers = Denylist()
        self.restarts = RestartLog()
        self._recovery: Recovery | None = None
        self.moves: GroupMoves | None = None
        if source is not None:
            own = self, self._live, self.restarts, self._killers, config.scheduler.num_speculative_tokens
            if isinstance(client, GroupClient):
                self._recovery = recovery = GroupRecovery(client, source, *own)
                self.moves = GroupMoves(config, client, recovery, self._live.states)
            elif not isinstance(source, GroupSource):
                self._recovery = Recovery(source, *own)
        client.listen(self._on_step, self._on_dead)

    @classmethod
    async def start(
        cls, resolution: Resolved, *, executor: str | None = None, process: EngineProcess | None = None
    ) -> AsyncEngine:
        """Start the engine process and load the tokenizer meanwhile. A plugin that fails is left out, if that is
        allowed.

        executor: MODULE:CLASS of another executor than the default.
        process: an already spawned process.

        Raises UserError for a mistake in the configuration, PluginError for a plugin that fails (see
        `Resolved.without`), EngineDeadError when the engine does not come up.
        """
        started, source, client, tokenizer = await start_with_fallbacks(resolution, executor, process)
        return cls(started.engine, tokenizer, client, source)

    @property
    def ready(self) -> EngineReady:
        """Return the engine's first message: sizes, numerics, phases of the start."""
        return self._client.ready

    @property
    def stats(self) -> SchedulerStats:
        """Return the state of the engine after its latest step."""
        return self._totals.latest

    @property
    def engines(self) -> list[EngineState]:
        """Return the state of each engine of a group; empty for one engine."""
        return [] if not isinstance(self._client, GroupClient) else self._client.engines

    @property
    def stats_of_engines(self) -> list[SchedulerStats]:
        """Return the state of each engine of a group after its latest step; empty for one engine."""
        return [] if not isinstance(self._client, GroupClient) else self._client.totals.engines

    @property
    def queue(self) -> QueueLimit:
        """Return the limit on waiting requests, with their current number."""
        return self._live.queue

    @property
    def num_live(self) -> int:
        """Return the number of requests that wait or run."""
        return len(self._live)

    @property
    def live_ids(self) -> list[str]:
        """Return the ids of the requests that wait or run."""
        return self._live.streams.names()

    @property
    def grammars(self) -> GrammarCompiler:
        """Return the compiler of the grammars of requests."""
        return self._intake.grammars

    @property
    def pid(self) -> int:
        """Return the process id of the engine."""
        return self._client.pid

    @property
    def is_running(self) -> bool:
        """Whether requests are served."""
        return not self._closed and self.dead_error is None

    async def generate(
        self, prompt: PromptInput, params: SamplingParams | PoolingParams, request_id: str, terms: RequestTerms = STRICT
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run a request; yield its outputs as `params.output_kind` says, the last one with `finished`.

        The deadline holds even if the engine does not answer. While its grammar is compiled, the request keeps a place
        in the queue. A pooling request has one output, a `PooledOutput`. Leaving the iterator early (or cancelling the
        task) aborts the request and releases its blocks.

        Raises RequestError at the first item if the request is wrong, EngineDeadError when the engine dies.
        """
        self._check_open()
        deadline = terms.deadline(self.config.scheduler.request_timeout_s)
        entry = await self._intake.process(request_id, prompt, params, terms, deadline)
        self._killers.check(entry.requests[0])
        if self.model_config.checks_params and isinstance(params, SamplingParams):
            await self._check_params(params)
        with self._live.open(entry) as stream, alarm(deadline, partial(self._time_out, request_id)):
            try:
                recorder = terms.recorder
                requests = entry.requests if recorder is None else self._live.recalled(entry, recorder)
                if requests:
                    await self._send(requests)
                while True:
                    output = await stream.next()
                    yield output
                    if output.finished:
                        return
            finally:
                self._forget(request_id)

    async def _check_params(self, params: SamplingParams) -> None:
        """Ask the engine about parameters that only its plugins understand. Raises RequestError.

        While the engine is being restarted, the request proceeds unchecked; an error is reported when it runs.
        """
        if self._pauses:
            return
        plain = msgspec.to_builtins(params)
        try:
            wrong = str(await self._client.call("check_params", {"params": plain}))
        except EngineDeadError:
            self._check_open()
            return
        if wrong:
            raise RequestError(wrong, param="extra_args")

    async def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last output with finish reason `abort`. Unknown ids are ignored."""
        self._live.streams.deliver(self._forget(request_id))

    async def reset_prefix_cache(self, *, restart: bool = False) -> bool:
        """Drop all cached prefixes; return False if running requests still hold blocks.

        restart: whether those requests are restarted first, with the tokens that they have. Raises EngineDeadError, or
            EngineStalledError when the engine is silent for longer than allowed.
        """
        limit = self.config.stall_timeout_s
        try:
            arguments = {"reset_running_requests": restart}
            answer = self._live_client().call("reset_prefix_cache", arguments)
            return bool(await asyncio.wait_for(answer, limit))
        except TimeoutError:
            raise EngineStalledError(
                f"The engine did not answer within {limit:g} s (--engine-stall-timeout); the prefix cache may be reset later."
            ) from None

    async def profile(self, method: str) -> str:
        """Call `start_profile` or `stop_profile`; return the directory of traces, or the trace once it is written.

        Raises RequestError (409) if it cannot be done now, EngineDeadError when the engine is gone.
        """
        client = self._live_client()
        try:
            if method == "start_profile":
                return str(await client.call(method))
            await client.call(method)
            while (path := await client.call("written_profile")) is None:
                await asyncio.sleep(PROFILE_POLL_S)
            return str(path)
        except UtilityError as error:
            raise RequestError(str(error), status=409, code="profiler") from None

    async def check_integrity(self) -> None:
        """Check every invariant of the scheduler and the KV cache.

        Raises UtilityError naming the violated one, EngineDeadError when the engine is gone.
        """
        await self._live_client().call("check_integrity")

    async def check_health(self) -> None:
        """Raise EngineDeadError if the engine is gone, EngineStalledError if it has been silent for too long.

        The engine is asked for a sign of life, but not waited for: its silence counts from the first unanswered
        message. An engine that is being restarted after its death counts as silent since then.
        """
        limit = self.config.stall_timeout_s
        self._check_open()
        if self._pauses:
            check_pause(self.restarts, limit)
            return
        if self.stats.utility:  # the engine has announced that it will be silent
            limit = max(limit, self.config.utility_timeout_s or math.inf)
        await check_silence(self._client, limit, len(self._live))

    async def close(self) -> None:
        """End the engine process; streams that still run get EngineDeadError. May be called twice."""
        if not self._closed:
            self._closed = True
            self._live.end(EngineDeadError("The engine was closed."))
            await asyncio.to_thread(self.grammars.close)
            if self.moves is not None:
                self.moves.close()
                await self.moves.scaling.close()
            if self._recovery is not None:
                await self._recovery.close()
            await self._client.close()

    def abandon(self) -> None:
        """Close at once, for an event loop that may be over: the engine process is killed. May be called twice."""
        if not self._closed:
            self._closed = True
            self._client.abandon()
            self._live.end(EngineDeadError("The engine was closed."))
            self.grammars.close()

    def kill(self) -> None:
        """Kill the engine process at once, while `close` waits for it or before."""
        self._client.kill()

    def adopt(self, client: EngineClient) -> None:
        """Use another client, after the death of the previous one's engine. Called by the recovery."""
        self._client = client
        client.listen(self._on_step, self._on_dead)

    def give_up(self, error: EngineDeadError) -> None:
        """Note that the engine is dead for good. Called by the recovery."""
        self.dead_error = error
        logger.error("%s", error)
        self._live.end(error)
        if self.on_death is not None:
            self.on_death(error)

    def _check_open(self) -> None:
        if self.dead_error is not None:
            raise self.dead_error
        if self._closed:
            raise EngineDeadError("The engine was closed; start another one.")

    def _live_client(self) -> EngineClient:
        self._check_open()
        if self._pauses:
            raise EngineStalledError("The engine died and is being started again; ask again in a few seconds.")
        return self._client

    @property
    def _pauses(self) -> bool:
        return self.restarts.paused_since is not None

    async def _send(self, requests: Sequence[EngineRequest]) -> None:
        """Send the choices of a request that is already live. During a recovery they are sent at its end instead."""
        self._check_open()
        if self._pauses:
            return
        try:
            await self._client.add(requests)
        except EngineDeadError:  # the engine died while a large request was encoded
            self._check_open()

    def _time_out(self, request_id: str, begin: float) -> None:
        """End a request whose deadline has passed. begin: monotonic seconds at which it began."""
        sentence = overdue_sentence(begin, pauses=self._pauses)
        if self.is_running and not self._pauses:
            self._client.ping()  # the engine then owes an answer even if no request is left, so a hang is noticed
        last = self._forget(request_id, "timeout", sentence)
        self._totals.timed_out(len(last))
        self._live.streams.deliver(last)

    def _forget(
        self, request_id: str, reason: FinishReason = "abort", sentence: str | None = None
    ) -> list[RequestOutput]:
        """Drop a request that still runs, here and in the engine; return its last output."""
        if request_id not in self._live:
            return []
        self._client.abort([request_id])
        return self._live.forget(request_id, reason, sentence)

    def _on_step(self, message: EngineOutputs) -> None:
        self._totals.take(message.stats)
        processed = self._live.take(message)
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
            return  # an intended end
        if self._recovery is None:
            self.give_up(error)
            return
        self._totals.end_engine(len(self._live))
        self._recovery.begin(self._client, error)

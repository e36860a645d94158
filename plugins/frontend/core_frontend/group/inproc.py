"""Several engines for a caller that drives the steps: what `LLM` uses in place of an engine in its own process.

Owns: `OfflineGroup`: the event loop in which the client of the group runs, while a step or a call waits for it. Never does:
threads, text. Called by: the `LLM` class.

An engine that dies is a pause, as for a server: its requests go on in the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from core.api.config import EngineConfig
from core.api.errors import CoreError, EngineDeadError, RequestError
from core.api.messages import EngineOutput, EngineOutputs, EngineRequest
from core.api.stats import SchedulerStats
from core.api.step_plan import SequenceKey
from core_frontend.api.outputs import RequestOutput
from core_frontend.denylist import Denylist
from core_frontend.group.client import GroupClient
from core_frontend.group.recovery import GroupRecovery
from core_frontend.group.source import GroupSource
from core_frontend.output_processor import OutputProcessor
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.restart_log import RestartLog

T = TypeVar("T")


class OfflineGroup:
    """The engines of one `LLM`, with the methods of an `InprocClient`. Its `core` is the group itself.

    states: the live requests, with which engines that die are replaced.

    Raises what the start of an engine does, RequestError inside of a running event loop.
    """

    def __init__(self, config: EngineConfig, states: OutputProcessor) -> None:
        self.config = config
        self.states = states
        self.streams = self
        self._news: deque[EngineOutput] = deque()
        self._failure: CoreError | None = None
        self._arrived = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        _refuse_running_loop()
        source = GroupSource.owned(config, None, None)
        try:
            self._group: GroupClient = self._loop.run_until_complete(source.first())
        except BaseException:
            self._loop.run_until_complete(source.close())
            self._loop.close()
            raise
        num_drafts = config.scheduler.num_speculative_tokens
        self._log = RestartLog()
        self._recovery = GroupRecovery(self._group, source, self, self, self._log, Denylist(), num_drafts)
        self._loop.run_until_complete(self._listen())

    @property
    def core(self) -> OfflineGroup:
        """The object with the calls of an engine: this one."""
        return self

    @property
    def worker(self) -> Any:
        """Raise RequestError: the workers are in other processes."""
        raise RequestError(
            f"With data_parallel_size={self.config.data_parallel_size} the models are in processes of their own, where no "
            "function of this one can be called; leave it out for that.",
            param="data_parallel_size",
        )

    @property
    def is_halted(self) -> bool:
        """Whether the engines compute nothing until a further call."""
        state: dict[str, Any] = self.call("lifecycle")
        return bool(state["is_halted"])

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Send the choices of one request to an engine."""
        if self._group.serves:
            self._run(self._group.add(requests))

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort all choices of these requests; unknown ids are ignored."""
        self._run(_at_once(lambda: self._group.abort(request_ids)))

    def abort_choices(self, keys: Sequence[SequenceKey]) -> None:
        """Abort single choices, named (request_id, choice); unknown ones are ignored."""
        self._run(_at_once(lambda: self._group.abort_choices(keys)))

    def has_work(self) -> bool:
        """Whether another step would report something."""
        return bool(self._news) or len(self.states) > 0

    def step(self) -> list[EngineOutput]:
        """Wait for the next outputs of any engine. Raises EngineDeadError when there is no engine any more."""
        if not self._news and len(self.states):
            self._run(self._arrived.wait())
        self._arrived.clear()
        self._check()
        news = list(self._news)
        self._news.clear()
        return news

    def stats(self) -> SchedulerStats:
        """Return the state of all engines together, after their latest steps."""
        return self._group.totals.latest

    def reset_prefix_cache(self, *, restart: bool = False) -> bool:
        """Drop all cached prefixes; False, without a change, when requests run. restart: whether those start over first."""
        return bool(self.call("reset_prefix_cache", {"reset_running_requests": restart}))

    def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a utility of all engines, or of none. Raises UtilityError, EngineDeadError, EngineStalledError."""
        plain = msgspec.to_builtins(arguments or {})
        return self._run(self._group.call(method, plain))

    def close(self) -> None:
        """End the engines; may be called twice."""
        if not self._loop.is_closed():
            self._run(self._end())
            self._loop.close()

    def deliver(self, outputs: Iterable[RequestOutput]) -> None:
        """End with the error of a request that makes engines die. Called by the recovery."""
        for output in outputs:
            self.fail(output.request_id, EngineDeadError(str(output.outputs[0].stop_reason)))

    def fail(self, request_id: str, error: CoreError) -> None:
        """Note an error, which the next step raises."""
        self._failure = error
        self._arrived.set()

    def adopt(self, client: ZmqClient) -> None:
        """Do nothing: the group itself has the clients."""

    def give_up(self, error: EngineDeadError) -> None:
        """Note that there is no engine any more. Called by the recovery."""
        self.fail("", error)

    async def _listen(self) -> None:
        self._group.listen(self._take, lambda error: self._recovery.begin(self._group, error))

    async def _end(self) -> None:
        await self._recovery.close()
        await self._group.close()

    def _take(self, message: EngineOutputs) -> None:
        if message.outputs:
            self._news.extend(message.outputs)
            self._arrived.set()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self, work: Awaitable[T]) -> T:
        _refuse_running_loop()
        return self._loop.run_until_complete(_awaited(work))


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def _at_once(work: Any) -> None:
    work()


def _refuse_running_loop() -> None:
    """Raise RequestError where an event loop runs, which cannot wait for another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RequestError(
        "LLM with data_parallel_size cannot be used inside of a running event loop; use AsyncLLM.",
        param="data_parallel_size",
    )

"""Engines that die at a certain step, without processes: the clients and the source of them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fakes import composed

from core.api.config import EngineConfig, RestartConfig
from core.api.errors import EngineDeadError
from core.api.messages import NO_TOKENS, EngineOutputs, EngineReady, EngineRequest
from core.engine.executor import Executor
from core_frontend.async_engine import AsyncEngine
from core_supervision.link.ledger import Ledger
from core_supervision.revival import Reviver
from core_tokens.tokenizer import Tokenizer

MakeExecutor = Callable[[EngineConfig], Executor]
Deadly = Callable[[int, Sequence[EngineRequest]], str | None]
"""By the number of the step in this life and the requests that live there: the cause, or None."""


MANY = RestartConfig(limit=100)


class MortalClient:
    """Stands where the ZMQ client stands: one life of an engine, computed between two turns of the event loop.

    steps:    lengths of the lives that are told before: the step with this number dies after it was computed, before anybody
              hears of it.
    is_fatal: see `Deadly`.
    """

    def __init__(self, config: EngineConfig, executor: Executor, epoch: int, last: int | None, deadly: Deadly) -> None:
        self.ready = EngineReady(epoch, executor.num_blocks, 4, config.model.max_model_len, executor.numerics, [])
        self.core = composed(config, executor, epoch)
        self.dead_error: EngineDeadError | None = None
        self.silence_s = 0.0
        self.pid = 0
        self.received: list[str] = []
        self._last = last
        self._deadly = deadly
        self._ledger = Ledger(epoch)
        self._live: dict[tuple[str, int], EngineRequest] = {}
        self._task: asyncio.Task[None] | None = None

    def listen(self, on_outputs: Any, on_death: Any) -> None:
        self._on_outputs, self._on_death = on_outputs, on_death
        self._task = asyncio.create_task(self._run())

    async def add(self, requests: Sequence[EngineRequest]) -> None:
        if self.dead_error is not None:
            raise self.dead_error
        self._ledger.admit(requests)
        self.core.add(requests)
        self._live |= {request.key: request for request in requests}
        self.received.append(requests[0].request_id)

    def abort(self, request_ids: Iterable[str]) -> None:
        ids = list(request_ids)
        self._ledger.forget(ids)
        self.core.abort(ids)
        self._live = {key: request for key, request in self._live.items() if key[0] not in ids}

    def abort_choices(self, keys: Iterable[tuple[str, int]]) -> None:
        keys = list(keys)
        self._ledger.forget_choices(keys)
        self.core.abort_choices(keys)
        for key in keys:
            self._live.pop(key, None)

    def name_of(self, handle: int) -> str:
        return self._ledger.name_of(handle) or f"handle {handle}"

    def ping(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        answer = self.core.call(method, arguments)
        self._deliver(
            EngineOutputs(self.core.epoch, [], self.core.stats())
        )  # before the answer, as the engine's loop does
        return answer

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            self.core.close()

    async def _run(self) -> None:
        num_steps = 0
        while True:
            await asyncio.sleep(0 if self.core.has_work() else 0.001)
            if self.dead_error is not None:
                return
            if not self.core.has_work():
                continue
            num_steps += 1
            cause = self._deadly(num_steps, list(self._live.values()))
            message = self.core.step()
            if num_steps == self._last:
                cause = "killed"
            if cause is not None:
                self.die(cause)
                return
            self._deliver(message)

    def _deliver(self, message: EngineOutputs) -> None:
        message.outputs, message.tokens = self._ledger.accept(message), NO_TOKENS
        for output in message.outputs:
            if output.finish_reason is not None:
                self._live.pop((output.request_id, output.choice), None)
        self._on_outputs(message)

    def die(self, cause: str) -> None:
        handles = [request.handle for request in self._live.values()]
        self.dead_error = EngineDeadError(f"It died of {cause}.", cause=cause, suspects=handles)
        self._on_death(self.dead_error)


class MortalSource:
    """Engines whose lives end as told.

    lives: steps of the first engines; later ones live on.
    terms: of the restarts, without the waits.
    """

    def __init__(
        self,
        config: EngineConfig,
        make_executor: MakeExecutor,
        lives: Sequence[int] = (),
        deadly: Deadly = lambda step, live: None,
        terms: RestartConfig = MANY,
    ) -> None:
        self.config = config
        self.clients: list[MortalClient] = []
        self.make_executor = make_executor
        self.deadly = deadly
        self.gate = asyncio.Event()
        self.gate.set()
        self.reviver = Reviver(terms)
        self._lives = list(lives)

    async def first(self) -> Any:
        return self.make()

    async def next(self, dead: EngineDeadError, num_explained: int = 0) -> Any:
        await self.gate.wait()
        if self.reviver.delay(num_explained) is None:
            raise EngineDeadError(f"{dead} That is enough.", cause=dead.cause)
        return self.make()

    async def close(self) -> None:
        pass

    def make(self) -> Any:
        number = len(self.clients)
        last = self._lives[number] if number < len(self._lives) else None
        client = MortalClient(self.config, self.make_executor(self.config), number, last, self.deadly)
        self.clients.append(client)
        return client


def mortal_engine(source: MortalSource, tokenizer: Tokenizer) -> AsyncEngine:
    """Call it inside the event loop that will use the engine."""
    return AsyncEngine(source.config, tokenizer, source.make(), source)

"""API processes: the product's engine client with all it needs, and in the place of HTTP the calls of a schedule.

Owns: `Front`, what one process is asked and answers. Never does: judge answers (the invariants do).
Called by: the owner (starts them), the world (asks them).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core.api.errors import CoreError, EngineDeadError, EngineStalledError, RequestError
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core.api.weights import WeightUpdate
from core_frontend.async_engine import AsyncEngine
from core_frontend.request_terms import RequestTerms
from tests.simulation.answers import Answer, prompt_of
from tests.simulation.events import Ask, Mode, Pause, Reload, Reset, Resume, Sleep, Update, Wake
from tests.simulation.journal import Streams
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.api_child import SimApiChild
    from tests.simulation.world import World

RETRY_S = 1.5
"""Seconds after which a call that met a dead engine is made again."""


class Front:
    """One API process. engine: None until it serves."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.process = Process(f"api {number}")
        self.engine: AsyncEngine | None = None
        self.child: SimApiChild | None = None
        self.stopping = asyncio.Event()
        self.streams: Streams | None = None

    @property
    def serves(self) -> bool:
        """Whether it answers."""
        return self.process.alive and self.engine is not None and not self.stopping.is_set()

    def spawn(self, work: Callable[..., Awaitable[None]], *args: object) -> asyncio.Task[None]:
        """Do something in this process."""
        return self.world.loop.spawn(self.process, _shielded(work, *args))

    async def ask(self, event: Ask, answer: Answer) -> None:
        """Run a request; what it gets and how it ends goes to `answer`."""
        assert self.engine is not None
        params = SamplingParams(
            max_tokens=event.max_tokens,
            n=event.n,
            ignore_eos=True,
            detokenize=False,
            temperature=1.0,
            seed=1,
            output_kind=RequestOutputKind.DELTA,
        )
        terms = RequestTerms(
            priority=event.priority,
            user=event.tenant,
            tenant=event.tenant,
            timeout_s=None if answer.again else event.timeout_s or None,
            adapter=answer.adapter,
            flex=event.is_flex(self.world.settings),
        )
        prompt: Any = {"prompt_token_ids": prompt_of(event.family, event.length)}
        try:
            if self.streams is not None:
                self.streams.accept(answer)
                assert answer.records is not None
                terms = replace(terms, recorder=answer.records.part(0))
                await answer.records.log.accepted()
            async with aclosing(self.engine.generate(prompt, params, answer.name, terms)) as outputs:
                async for output in outputs:
                    if self.streams is not None:
                        await self.streams.journal.written()
                    if not self.process.alive:
                        return
                    for completion in output.outputs:
                        answer.take(completion, self.world)
        except CoreError as error:
            answer.error = error
        except asyncio.CancelledError:
            answer.left = self.process.alive or self.streams is None
            raise
        finally:
            if self.process.alive:
                answer.end(self.world.loop.now)
            if self.streams is not None:
                self.streams.end(answer)

    async def pause(self, event: Pause) -> None:
        control = self._engine.control
        await self._call(
            "pause", event.mode, event.patience_s, control.pause, event.mode, clear_cache=event.clear_cache
        )

    async def resume(self, event: Resume) -> None:
        await self._call("resume", "keep", 0.0, self._engine.control.resume)

    async def sleep(self, event: Sleep) -> None:
        control = self._engine.control
        await self._call("sleep", event.mode, event.patience_s, control.sleep, event.level, event.mode)

    async def wake(self, event: Wake) -> None:
        tags = list(event.tags) or None
        name = "wake" if tags is None else "wake_part"
        await self._call(name, "keep", 0.0, self._engine.control.wake_up, tags)

    async def reload(self, event: Reload) -> None:
        await self._call("reload", "keep", 0.0, self._engine.control.reload_weights)

    async def reset(self, event: Reset) -> None:
        await self._call("reset", "keep", 0.0, self._engine.reset_prefix_cache, restart=event.restart)

    async def update(self, event: Update) -> None:
        """One trainer at a time. After a gathered update that did not come to its end all begin with a new one."""
        async with self.world.weights.trainer:
            control = self._engine.control
            if event.parts == 1 and not self.world.weights.gathers:
                name, update = self._part(event, self.world.weights.new_update(), 0)
                await self._replace(event, (name,), control.update_weights, update, event.mode)
                return
            group = self.world.weights.new_group()
            self.world.weights.gathers = True
            if not await self._again(event.tries, "keep", control.start_weight_update):
                return
            names = []
            for number in range(event.parts):
                if event.pause_s:
                    await asyncio.sleep(event.pause_s)
                name, update = self._part(event, f"{group}.{number + 1}/{event.parts}", number)
                names.append(name)
                mode: Mode = "wait" if event.mode == "wait" else "keep"  # a part that is gathered ends no request
                if not await self._again(event.tries, mode, control.update_weights, update, event.mode):
                    return
            version = f"v-{group}" if event.named else None
            if await self._replace(event, tuple(names), control.finish_weight_update, version, event.mode):
                self.world.weights.gathers = False

    def _part(self, event: Update, name: str, number: int) -> tuple[str, WeightUpdate]:
        names = None if event.parts == 1 else [f"tensor{number}"]
        version = f"v-{name}" if event.named and "." not in name else None
        if event.memory:
            return name, WeightUpdate(
                shared_memory=name, names=names, frees_first=event.frees_first, weight_version=version
            )
        return name, WeightUpdate(path=name, names=names, frees_first=event.frees_first, weight_version=version)

    async def _replace(self, event: Update, names: tuple[str, ...], call: Callable[..., Any], *args: Any) -> bool:
        """Have weights replaced; returns whether they were."""
        world = self.world
        for number in range(event.tries):
            outcome = await self._call("update", event.mode, event.patience_s, call, *args)
            if outcome is None:
                world.weights.acknowledged(names)
                return True
            if isinstance(outcome, RequestError) and number == 0:
                world.weights.refused(names, outcome)
            if not isinstance(outcome, EngineStalledError | EngineDeadError):
                return False
            await asyncio.sleep(RETRY_S)
        return False

    async def _again(self, tries: int, mode: Mode, call: Callable[..., Any], *args: Any) -> bool:
        """Make a call until it goes well or is refused."""
        for _ in range(tries):
            outcome = await self._call("gather", mode, 0.0, call, *args)
            if outcome is None:
                return True
            if not isinstance(outcome, EngineStalledError | EngineDeadError):
                return False
            await asyncio.sleep(RETRY_S)
        return False

    async def _call(
        self, name: str, mode: str, patience_s: float, call: Callable[..., Awaitable[object]], *args: Any, **keys: Any
    ) -> Exception | None:
        """Make a call; what is known of its effect goes to the world's book. Returns how it failed, None when it did not."""
        entry = self.world.book.open(name, mode, self.world.loop.now)
        try:
            async with asyncio.timeout(patience_s or None):
                await call(*args, **keys)
        except (TimeoutError, CoreError) as error:
            entry.close(self.world.loop.now, error)
            return error
        except asyncio.CancelledError:
            entry.close(self.world.loop.now, None, cut=True)
            raise
        entry.close(self.world.loop.now, None)
        return None

    @property
    def _engine(self) -> AsyncEngine:
        assert self.engine is not None
        return self.engine


async def _shielded(work: Callable[..., Awaitable[None]], *args: object) -> None:
    """The end of a process is no error of its tasks."""
    try:
        await work(*args)
    except asyncio.CancelledError:
        return

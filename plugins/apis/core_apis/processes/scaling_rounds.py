"""The number of engines behind several API processes, which changes while requests run.

Owns: `ScalingRounds`: which places get an engine and which lose theirs, all or nothing. Never does: move a request (each API
process moves its own), or take its turn among other orders. Called by: the orders of the supervisor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from core.api.errors import CoreError, RequestError
from core_apis.processes.api_messages import OrderDone, PartAction, Refusal
from core_frontend.group.orders import check_size, failed_growth, failed_shrinking, too_few_places

if TYPE_CHECKING:
    from core_apis.processes.supervised_engine import SupervisedEngine

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.05


class Rounds(Protocol):
    """What has all API processes carry out a part of an order. drained: places that take no requests."""

    drained: set[int]

    async def ask_all(
        self, action: PartAction, engine: int, patience_s: float = 0.0, leaving: Sequence[int] = ()
    ) -> OrderDone:
        """Return the sum of the answers."""
        ...

    async def end(self, number: int) -> Refusal | None:
        """End a drained engine; returns why it has not ended."""
        ...


class ScalingRounds:
    """The changes of size of one supervisor. engines: of all places. is_running: while one is ordered or carried out."""

    def __init__(self, engines: Sequence[SupervisedEngine], rounds: Rounds) -> None:
        self.is_running = False
        self._engines = engines
        self._rounds = rounds

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Refuse other changes meanwhile."""
        self.is_running = True
        try:
            yield
        finally:
            self.is_running = False

    async def scale(self, size: int, drain_s: float) -> OrderDone:
        """Have as many engines; returns what became of the requests of those that left, or why nothing has changed."""
        numbers = range(len(self._engines))
        present = [number for number in numbers if self._engines[number].gone is None]
        absent = [number for number in numbers if self._engines[number].is_ended]
        try:
            check_size(size, len(self._engines))
        except RequestError as error:
            return _refused(str(error), error.status, error.code or "", error.param)
        if size > len(present) + len(absent):
            return _refused(too_few_places(size, len(present) + len(absent)), 409, "too_few_places")
        if size > len(present):
            return await self._grow(absent[: size - len(present)], len(present))
        leaving = sorted(present, key=lambda number: (number not in self._rounds.drained, -number))
        return await self._shrink(leaving[: len(present) - size], drain_s)

    async def _grow(self, numbers: Sequence[int], size: int) -> OrderDone:
        """Start engines at places that have none. size: engines that there are."""
        logger.info("The server grows from %d to %d engines.", size, size + len(numbers))
        starts = [asyncio.create_task(self._engines[number].prepare(self._others(number))) for number in numbers]
        try:
            try:
                await asyncio.gather(*starts)
                for number in numbers:
                    await self._engines[number].level()
            except BaseException:
                for start in starts:
                    start.cancel()
                await asyncio.gather(*starts, return_exceptions=True)
                await asyncio.gather(*(self._engines[number].withdraw() for number in numbers))
                raise
        except (CoreError, OSError) as error:
            logger.error("The server does not grow: %s", error)
            return _refused(failed_growth(size, [str(error)]), 503, "not_scaled")
        for number in numbers:
            self._engines[number].admit()
            self._rounds.drained.discard(number)
        told = await asyncio.gather(*(self._rounds.ask_all("undrain", number) for number in numbers))
        refusal = next((each.refusal for each in told if each.refusal is not None), None)
        if refusal is None:
            return OrderDone(0)
        await self._shrink(numbers, 0.0)
        return _refused(failed_growth(size, [refusal.sentence]), 503, "not_scaled")

    async def _shrink(self, numbers: Sequence[int], drain_s: float) -> OrderDone:
        """End engines, once their requests have ended or are in others."""
        if numbers:
            logger.info("The server shrinks by the engines %s.", ", ".join(map(str, sorted(numbers))))
        others = [each for number, each in enumerate(self._engines) if number not in {*numbers, *self._rounds.drained}]
        if numbers and not any(engine.address is not None for engine in others):
            return _refused(failed_shrinking(sorted(numbers)), 503, "not_scaled")
        self._rounds.drained.update(numbers)
        drained = await asyncio.gather(*(self._rounds.ask_all("drain", number, drain_s, numbers) for number in numbers))
        done = OrderDone(0, moved=sum(each.moved for each in drained), computed=sum(each.computed for each in drained))
        done.died = max((each.died for each in drained), default=0)
        staying = [number for number in numbers if not await self._has_ended(number)]
        for number in staying:
            self._rounds.drained.discard(number)
            await self._rounds.ask_all("undrain", number)
        if staying:
            done.refusal = Refusal(failed_shrinking(staying), 503, "not_scaled")
        return done

    async def _has_ended(self, number: int) -> bool:
        """End a drained engine; one that has died is waited for, and an API process that has just begun is asked again."""
        engine = self._engines[number]
        for _ in range(2):
            while engine.gone is None and engine.address is None:  # it has died, and the next one is about to come
                await asyncio.sleep(LOOK_S)
            if engine.gone is not None:
                break
            again = await self._rounds.ask_all("drain", number)
            if again.stayed or again.refusal is not None:
                return False
            await self._rounds.end(number)
        if engine.is_ended:
            await engine.rest()
        return engine.gone is not None

    def _others(self, number: int) -> list[SupervisedEngine]:
        return [engine for place, engine in enumerate(self._engines) if place != number]


def _refused(sentence: str, status: int, code: str, param: str | None = None) -> OrderDone:
    return OrderDone(0, refusal=Refusal(sentence, status, code, param))

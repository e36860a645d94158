"""The orders of operators about the engines of several API processes.

Owns: `OrderRounds`: which engines are drained, one order at a time, and the answers of all API processes. Never does: move a
request (each API process moves its own), or answer HTTP. Called by: the supervisor.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

import msgspec

from core.api.errors import EngineDeadError
from core_apis.processes.api_child import ApiChild
from core_apis.processes.api_messages import OperatorOrder, OrderDone, PartAction, PartOfOrder, Refusal
from core_apis.processes.scaling_rounds import ScalingRounds
from core_apis.processes.supervised_engine import SupervisedEngine
from core_frontend.group.orders import evened, is_being_scaled, last_engine
from core_frontend.group.replacements import SETTLE_S

logger = logging.getLogger(__name__)


class OrderRounds:
    """The orders of one supervisor.

    engines: of the group. children: returns the API processes that have begun. drained: see below; at the start.

    drained: places of the engines that operators have taken out. replaces: whether engines that are asked to end are replaced;
    to be unset when the server itself ends.

    An API process that begins later is told of them when it begins. One that dies while it carries out its part has lost its
    requests, so the others' answers are the whole.
    """

    def __init__(
        self,
        engines: Sequence[SupervisedEngine],
        children: Callable[[], Iterable[ApiChild]],
        drained: Iterable[int] = (),
    ) -> None:
        self.drained = set(drained)
        self.replaces = True
        self._engines = engines
        self._children = children
        self._turn = asyncio.Lock()
        self._numbers = itertools.count()
        self._rounds: dict[int, _Round] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._scaling = ScalingRounds(engines, self)

    def begin(self, child: ApiChild, order: OperatorOrder) -> None:
        """Carry out the order that a process has sent, and answer it; it is carried out even if the process dies."""
        self._spawn(self._answer(child, order))

    def take_back(self) -> None:
        """Let drained engines take requests again where no other one will; where all were ended, one is started."""
        others = [each for number, each in enumerate(self._engines) if number not in self.drained]
        if any(engine.gone is None for engine in others):
            return
        drained = sorted(number for number in self.drained if self._engines[number].gone is None)
        ended = sorted(number for number in self.drained if self._engines[number].is_ended)
        for number in drained or ended[:1]:
            logger.warning("Engine %d takes requests again: no other one is left.", number)
            self._spawn(self._undrained(number))

    def replace(self, number: int) -> None:
        """End an engine that somebody has asked to end (SIGTERM), once its requests are in others, and start the next one."""
        self._spawn(self._replaced(number))

    def told(self, child: ApiChild, answer: OrderDone) -> None:
        """Store the answer of a process."""
        found = self._rounds.get(answer.question)
        if found is not None:
            found.add(child.number, answer)

    def lost(self, child: ApiChild) -> None:
        """Note that a process has ended, whose answers do not come any more."""
        for found in self._rounds.values():
            found.lose(child.number)

    async def close(self) -> None:
        """Carry out nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, child: ApiChild, order: OperatorOrder) -> None:
        try:
            done = await self.carry_out(order)
        except Exception as defect:  # the operator must get an answer, and the next order its turn
            logger.error("An order could not be carried out.", exc_info=defect)
            done = OrderDone(0, refusal=Refusal(f"{type(defect).__name__}: {defect}", 500, "internal_error"))
        child.send(msgspec.structs.replace(done, question=order.question))

    async def carry_out(self, order: OperatorOrder) -> OrderDone:
        """Carry out an order, after those that came before it; returns the sum of what all processes answer."""
        if order.action == "is_scaling":
            return OrderDone(0, is_scaling=self._scaling.is_running)
        if self._scaling.is_running and order.action != "rebalance":
            refusal = is_being_scaled(f"the order to {order.action}")
            return OrderDone(0, refusal=Refusal(str(refusal), refusal.status, refusal.code or ""))
        if order.action == "scale":
            with self._scaling.begun():
                async with self._turn:
                    return await self._scaling.scale(order.size, order.drain_s)
        async with self._turn:
            if order.action == "drain":
                return await self._drain(order.engine, ends=order.ends)
            if order.action == "undrain":
                return await self._undrain(order.engine)
            return await self._rebalance()

    async def _drain(self, number: int, *, ends: bool) -> OrderDone:
        others = (engine for place, engine in enumerate(self._engines) if place != number and place not in self.drained)
        if not any(engine.address is not None for engine in others):
            return OrderDone(0, refusal=Refusal(last_engine(number), 409, "last_engine"))
        self.drained.add(number)
        done = await self.ask_all("drain", number)
        if ends and not done.stayed and done.refusal is None:
            done.refusal = await self.end(number)
        return done

    async def end(self, number: int) -> Refusal | None:
        """End a drained engine, once all processes have disconnected; those that have return where one has not.

        Returns why it has not ended; None: it has.
        """
        engine = self._engines[number]
        if engine.address is not None:
            if (await self.ask_all("leave", number)).has_left:
                await engine.end()
            else:
                await self.ask_all("rejoin", number)
        return None if engine.is_ended else _not_ended(number)

    async def _undrain(self, number: int) -> OrderDone:
        self.drained.discard(number)
        await self._start(number)
        return await self.ask_all("undrain", number)

    async def _start(self, number: int) -> None:
        """Start an engine that was ended. One that does not come up is gone, as the processes learn."""
        engine = self._engines[number]
        if engine.is_ended:
            try:
                await engine.start_again()
            except EngineDeadError as error:
                logger.error("Engine %d did not come up: %s", number, error)

    async def _undrained(self, number: int) -> None:
        async with self._turn:
            if number in self.drained:
                await self._undrain(number)

    async def _replaced(self, number: int) -> None:
        await asyncio.sleep(SETTLE_S)
        async with self._turn:
            if not self.replaces:
                return
            stays_out = number in self.drained
            done = await self._drain(number, ends=True)
            engine = self._engines[number]
            if not engine.is_ended:
                why = "could not leave it" if done.refusal is None else done.refusal.sentence
                logger.warning("Engine %d was asked to end (SIGTERM) and goes on: %s", number, why)
            if not stays_out:
                await self._undrain(number)
            else:
                await self._start(number)
                await self.ask_all("rejoin", number)

    async def _rebalance(self) -> OrderDone:
        answers = (await self._ask(self._parts("count"))).answers
        counts = {number: answer.counts for number, answer in answers.items() if answer.counts}
        moves = {number: own for number, own in evened(counts).items() if own}
        parts = {
            child.number: (child, PartOfOrder(0, "move", moves=moves[child.number]))
            for child in self._children()
            if child.number in moves
        }
        return (await self._ask(parts)).total()

    def _parts(
        self, action: PartAction, engine: int = 0, patience_s: float = 0.0, leaving: Sequence[int] = ()
    ) -> dict[int, tuple[ApiChild, PartOfOrder]]:
        part = PartOfOrder(0, action, engine, patience_s=patience_s, leaving=list(leaving))
        return {child.number: (child, part) for child in self._children()}

    async def ask_all(
        self, action: PartAction, engine: int, patience_s: float = 0.0, leaving: Sequence[int] = ()
    ) -> OrderDone:
        """Have all API processes carry out a part of an order; returns the sum of their answers. The last two: of a drain."""
        return (await self._ask(self._parts(action, engine, patience_s, leaving))).total()

    async def _ask(self, parts: Mapping[int, tuple[ApiChild, PartOfOrder]]) -> _Round:
        """Have processes carry out their parts; returns the answers, without those of processes that have died meanwhile."""
        question = next(self._numbers)
        found = self._rounds[question] = _Round(parts)
        try:
            for child, part in parts.values():
                child.send(msgspec.structs.replace(part, question=question))
            await found.complete.wait()  # one that hangs is killed after a minute of silence
        finally:
            del self._rounds[question]
        return found


class _Round:
    """The answers to one part of an order. waiting: numbers of the processes that have it."""

    def __init__(self, waiting: Iterable[int]) -> None:
        self.answers: dict[int, OrderDone] = {}
        self.num_died = 0
        self.complete = asyncio.Event()
        self._waiting = set(waiting)
        self._look()

    def add(self, number: int, answer: OrderDone) -> None:
        """Add an answer."""
        if number in self._waiting:
            self._waiting.discard(number)
            self.answers[number] = answer
            self._look()

    def lose(self, number: int) -> None:
        """Wait for a process no longer: it has ended, and the next one with its number knows nothing of this."""
        if number in self._waiting:
            self._waiting.discard(number)
            self.num_died += 1
            self._look()

    def total(self) -> OrderDone:
        """Return the sum of the answers; with the first refusal, if there is one."""
        answers = list(self.answers.values())
        return OrderDone(
            0,
            moved=sum(answer.moved for answer in answers),
            computed=sum(answer.computed for answer in answers),
            stayed=sum(answer.stayed for answer in answers),
            died=self.num_died,
            has_left=all(answer.has_left for answer in answers),
            refusal=next((answer.refusal for answer in answers if answer.refusal is not None), None),
        )

    def _look(self) -> None:
        if not self._waiting:
            self.complete.set()


def _not_ended(number: int) -> Refusal:
    sentence = (
        f"Engine {number} takes no requests any more, and its process has not ended: it has died and is being started again, "
        "or an API process has just begun; drain it once more in a few seconds."
    )
    return Refusal(sentence, 503, "not_ended")

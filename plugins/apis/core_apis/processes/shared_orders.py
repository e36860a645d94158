"""The orders of operators in one of several API processes.

Owns: `SharedOrders`: the way of this process' orders to the supervisor, and this process' part of everybody's orders. Never
does: decide whether an order is carried out (the supervisor does), or move a request (`GroupMoves` does). Called by: the API
process, and the routes of operators.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from core.api.errors import RequestError
from core_apis.processes.api_messages import OperatorOrder, OrderAction, OrderDone, PartOfOrder, Refusal
from core_frontend.group.moves import GroupMoves
from core_frontend.group.orders import Drained, Moved, Scaled, scaled

logger = logging.getLogger(__name__)


class SharedOrders:
    """The orders of one process. send: sends to the supervisor. drained: places of the engines that are taken out already."""

    def __init__(self, send: Callable[[msgspec.Struct], None], drained: list[int]) -> None:
        self._send = send
        self._drained = set(drained)
        self._moves: GroupMoves | None = None
        self._numbers = itertools.count()
        self._questions: dict[int, asyncio.Future[OrderDone]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, moves: GroupMoves) -> None:
        """Carry out parts of orders with these moves from now on, and what was ordered before."""
        self._moves = moves
        moves.orders = self
        for index in sorted(self._drained):
            await moves.take_out(index)

    # --- this process' operators ---

    async def drain(self, index: int, *, ends: bool = False) -> Drained:
        """Take an engine out, in all processes. See `GroupMoves.drain`."""
        self._own.member(index)
        done = await self._ask("drain", index, ends=ends)
        return Drained(engine=index, moved=done.moved, computed=done.computed, stayed=done.stayed, died=done.died)

    async def undrain(self, index: int) -> None:
        """Let an engine take requests again, of all processes. See `GroupMoves.undrain`."""
        self._own.member(index)
        await self._ask("undrain", index)

    async def rebalance(self) -> Moved:
        """Even out the requests of all processes together. See `GroupMoves.rebalance`."""
        done = await self._ask("rebalance")
        return Moved(moved=done.moved, computed=done.computed, stayed=done.stayed, died=done.died)

    async def scale(self, size: int, drain_s: float) -> Scaled:
        """Have as many engines, for all processes. See `Orders.scale`."""
        done = await self._send_order("scale", size=size, drain_s=drain_s)
        return scaled(size, Moved(moved=done.moved, computed=done.computed, stayed=done.stayed, died=done.died))

    async def is_scaling(self) -> bool:
        """Whether the number of engines is being changed."""
        return (await self._send_order("is_scaling")).is_scaling

    def told(self, answer: OrderDone) -> None:
        """Take the supervisor's answer to one of this process' orders."""
        question = self._questions.get(answer.question)
        if question is not None and not question.done():
            question.set_result(answer)

    # --- everybody's ---

    def begin(self, part: PartOfOrder) -> None:
        """Carry out this process' part of an order, and answer."""
        task = asyncio.create_task(self._answer(part))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Carry out nothing any more."""
        for task in self._tasks:
            task.cancel()

    @property
    def _own(self) -> GroupMoves:
        assert self._moves is not None, "this process serves"
        return self._moves

    async def _ask(self, action: OrderAction, engine: int = 0, *, ends: bool = False) -> OrderDone:
        return await self._send_order(action, engine=engine, ends=ends)

    async def _send_order(self, action: OrderAction, **fields: Any) -> OrderDone:
        """Send an order to the supervisor; returns its answer. Raises RequestError where the order was refused."""
        number = next(self._numbers)
        answer: asyncio.Future[OrderDone] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        try:
            self._send(OperatorOrder(number, action, **fields))
            done = await answer
        finally:
            del self._questions[number]
        if done.refusal is not None:
            refusal = done.refusal
            raise RequestError(refusal.sentence, status=refusal.status, code=refusal.code, param=refusal.param)
        return done

    async def _answer(self, part: PartOfOrder) -> None:
        try:
            done = self._noted(part) if self._moves is None else await self._carried_out(self._moves, part)
        except RequestError as error:
            done = OrderDone(0, refusal=Refusal(str(error), error.status, error.code or "refused"))
        except Exception as defect:  # the operator must get an answer
            logger.error("An order could not be carried out.", exc_info=defect)
            done = OrderDone(0, refusal=Refusal(f"{type(defect).__name__}: {defect}", 500, "internal_error"))
        self._send(msgspec.structs.replace(done, question=part.question))

    def _noted(self, part: PartOfOrder) -> OrderDone:
        """Keep what matters to a process that does not serve yet, so that it has no requests."""
        if part.action == "drain":
            self._drained.add(part.engine)
        elif part.action == "undrain":
            self._drained.discard(part.engine)
        return OrderDone(0, has_left=part.action != "leave")  # it may be connecting

    async def _carried_out(self, moves: GroupMoves, part: PartOfOrder) -> OrderDone:
        done = OrderDone(0)
        match part.action:
            case "drain":
                return _done(await moves.scaling.empty(part.engine, part.patience_s, leaving=part.leaving))
            case "leave":
                done.has_left = await moves.leave(part.engine)
            case "rejoin":
                await moves.rejoin(part.engine)
            case "undrain":
                await moves.undrain(part.engine)
            case "count":
                done.counts = moves.placed()
            case "move":
                return _done(await moves.change_places(part.moves))
        return done


def _done(moved: Moved) -> OrderDone:
    return OrderDone(0, moved=moved.moved, computed=moved.computed, stayed=moved.stayed)

"""Orders about engines that several API processes use: the supervisor's side, with processes and engines that are made up."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from core.api.errors import EngineDeadError, RequestError
from core_apis.processes.api_messages import EngineGone, OperatorOrder, OrderDone, PartOfOrder, Refusal
from core_apis.processes.order_rounds import OrderRounds
from core_apis.processes.shared_orders import SharedOrders
from core_frontend.group.member import ENDED

DRAIN = OperatorOrder(7, "drain", 1)


class Engine:
    """An engine of the supervisor. address: None while there is none."""

    def __init__(self, *, comes_up: bool = True) -> None:
        self.address: str | None = "somewhere"
        self.gone: EngineGone | None = None
        self.starts = 0
        self._comes_up = comes_up

    @property
    def is_ended(self) -> bool:
        return self.gone is not None and self.gone.cause == ENDED

    async def end(self) -> None:
        self.address, self.gone = None, EngineGone("", ENDED)

    async def start_again(self) -> None:
        self.starts += 1
        if not self._comes_up:
            self.gone = EngineGone("no memory", "start_failed")
            raise EngineDeadError("no memory", cause="start_failed")
        self.address, self.gone = "elsewhere", None


class Child:
    """An API process. answers: what it says to a part of an order; None: nothing."""

    def __init__(self, number: int, answers: Callable[[PartOfOrder], OrderDone | None]) -> None:
        self.number = number
        self.parts: list[tuple[str, int]] = []
        self.moves: list[tuple[int, int]] = []
        self.done: list[OrderDone] = []
        self.rounds: OrderRounds | None = None
        self._answers = answers

    def send(self, message: Any) -> None:
        if isinstance(message, OrderDone):
            self.done.append(message)
            return
        self.parts.append((message.action, message.engine))
        self.moves += message.moves
        answer = self._answers(message)
        if answer is not None:
            answer.question = message.question
            assert self.rounds is not None
            self.rounds.told(self, answer)  # type: ignore[arg-type]


def made(engines: list[Engine], *children: Child) -> OrderRounds:
    rounds = OrderRounds(engines, lambda: list(children))  # type: ignore[arg-type]
    for child in children:
        child.rounds = rounds
    return rounds


def moved(part: PartOfOrder) -> OrderDone:
    return OrderDone(0, moved=2, computed=1) if part.action == "drain" else OrderDone(0)


async def test_all_processes_carry_an_order_out_and_the_answer_is_their_sum() -> None:
    first, second = Child(0, moved), Child(1, moved)
    rounds = made([Engine(), Engine()], first, second)
    done = await rounds.carry_out(DRAIN)
    assert (done.moved, done.computed, done.stayed, done.died, done.refusal) == (4, 2, 0, 0, None)
    assert first.parts == second.parts == [("drain", 1)] and rounds.drained == {1}
    refused = await rounds.carry_out(OperatorOrder(8, "drain", 0))
    assert refused.refusal is not None and (refused.refusal.status, refused.refusal.code) == (409, "last_engine")
    assert rounds.drained == {1} and len(first.parts) == 1, "nobody was asked"
    await rounds.carry_out(OperatorOrder(9, "undrain", 1))
    assert not rounds.drained and second.parts[-1] == ("undrain", 1)


async def test_a_process_that_dies_in_the_middle_is_told_and_holds_up_nothing() -> None:
    silent = Child(1, lambda part: None)
    rounds = made([Engine(), Engine()], Child(0, moved), silent)
    asker = Child(5, moved)
    rounds.begin(asker, DRAIN)  # type: ignore[arg-type]
    later = asyncio.create_task(rounds.carry_out(OperatorOrder(8, "undrain", 1)))
    while not silent.parts:
        await asyncio.sleep(0)
    assert rounds.drained == {1}, "a process that begins now is told of it"
    rounds.lost(silent)  # type: ignore[arg-type]
    while silent.parts[-1] != ("undrain", 1):
        await asyncio.sleep(0)
    assert [(one.question, one.moved, one.died) for one in asker.done] == [(7, 2, 1)]
    rounds.lost(silent)  # type: ignore[arg-type]
    assert (await later).died == 1 and not rounds.drained
    await rounds.close()


@pytest.mark.parametrize("why", ["it has requests", "it is dead"])
async def test_an_engine_ends_only_once_all_have_left_it(why: str) -> None:
    engines = [Engine(), Engine()]
    leaves = True

    def answers(part: PartOfOrder) -> OrderDone:
        return OrderDone(0, has_left=leaves or part.action != "leave")

    first, second = Child(0, moved), Child(1, answers)
    rounds = made(engines, first, second)
    order = OperatorOrder(1, "drain", 1, ends=True)
    if why == "it is dead":
        engines[1].address = None
    else:
        leaves = False
    done = await rounds.carry_out(order)
    assert done.refusal is not None and (done.refusal.status, done.refusal.code) == (503, "not_ended")
    assert not engines[1].is_ended and rounds.drained == {1}
    if not leaves:
        assert first.parts == [("drain", 1), ("leave", 1), ("rejoin", 1)]
    leaves, engines[1].address = True, "somewhere"
    assert (await rounds.carry_out(order)).refusal is None
    assert engines[1].is_ended
    assert (await rounds.carry_out(order)).refusal is None, "it is still ended"
    await rounds.carry_out(OperatorOrder(2, "undrain", 1))
    assert engines[1].starts == 1 and engines[1].address == "elsewhere"


async def test_an_engine_that_does_not_come_up_is_told_by_the_processes() -> None:
    refusal = Refusal("Engine 1 did not come up", 503, "engine_dead")
    engines = [Engine(), Engine(comes_up=False)]
    child = Child(0, lambda part: OrderDone(0, refusal=refusal if part.action == "undrain" else None))
    rounds = made(engines, child)
    await rounds.carry_out(OperatorOrder(1, "drain", 1, ends=True))
    assert (await rounds.carry_out(OperatorOrder(1, "undrain", 1))).refusal == refusal
    assert not engines[1].is_ended and engines[1].gone is not None


async def test_drained_engines_take_requests_again_where_no_other_is_left() -> None:
    engines = [Engine(), Engine(), Engine()]
    child = Child(0, moved)
    rounds = made(engines, child)
    await rounds.carry_out(OperatorOrder(1, "drain", 1))
    await rounds.carry_out(OperatorOrder(2, "drain", 2, ends=True))
    rounds.take_back()
    await asyncio.sleep(0)
    assert rounds.drained == {1, 2}, "engine 0 serves"
    engines[0].gone, engines[0].address = EngineGone("", "killed"), None
    rounds.take_back()
    while 1 in rounds.drained:
        await asyncio.sleep(0)
    assert rounds.drained == {2} and engines[2].starts == 0, "engine 1 serves again"
    engines[1].gone, engines[1].address = EngineGone("", "killed"), None
    rounds.take_back()
    while rounds.drained:
        await asyncio.sleep(0)
    assert engines[2].starts == 1 and child.parts[-2:] == [("undrain", 1), ("undrain", 2)]


async def test_requests_of_all_processes_together_are_evened_out() -> None:
    def holds(*counts: int) -> Callable[[PartOfOrder], OrderDone]:
        has = dict(enumerate(counts))
        return lambda part: OrderDone(0, counts=has) if part.action == "count" else OrderDone(0, moved=len(part.moves))

    # Each for itself would leave both as they are: 3 requests at one engine and 1 at the other.
    first, second, new = Child(0, holds(2, 1)), Child(1, holds(1, 0)), Child(2, holds())
    rounds = made([Engine(), Engine()], first, second, new)
    assert (await rounds.carry_out(OperatorOrder(1, "rebalance"))).moved == 1
    assert first.moves + second.moves == [(0, 1)] and not new.moves


async def test_a_process_that_does_not_serve_yet_remembers_what_it_is_told() -> None:
    sent: list[Any] = []
    orders = SharedOrders(sent.append, [2])
    for action, engine in (("drain", 1), ("drain", 0), ("undrain", 0), ("leave", 1)):
        orders.begin(PartOfOrder(4, action, engine))  # type: ignore[arg-type]
    while len(sent) < 4:
        await asyncio.sleep(0)
    assert [one.has_left for one in sent] == [True, True, True, False], "it may be connecting"

    class Moves:
        def __init__(self) -> None:
            self.taken: list[int] = []

        async def take_out(self, index: int) -> None:
            self.taken.append(index)

        def member(self, index: int) -> None:
            pass

    moves: Any = Moves()
    await orders.serve(moves)
    assert moves.taken == [1, 2] and moves.orders is orders
    asking = asyncio.create_task(orders.drain(1))
    while len(sent) < 5:
        await asyncio.sleep(0)
    orders.told(OrderDone(sent[-1].question, refusal=Refusal("no", 409, "last_engine")))
    with pytest.raises(RequestError, match="no") as caught:
        await asking
    assert (caught.value.status, caught.value.code) == (409, "last_engine")
    orders.told(OrderDone(99))  # to a caller that has gone

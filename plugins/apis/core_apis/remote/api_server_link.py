"""The API server's end of the link to engines of other commands.

Owns: `ApiServerLink`: the socket, and who gets which place (`Seat`). Never does: run requests, or know HTTP. Called by: the API
server's start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from core.api.errors import UNREADABLE
from core.engine.hello import greeting_problem
from core_apis.processes.api_messages import Alive, EngineGone
from core_apis.remote import messages
from core_apis.remote.agreement import Agreement
from core_apis.remote.messages import HELLO, TALK
from core_apis.remote.seat import HOW, Seat
from core_apis.remote.sockets import LAST_WORDS_MS, Link
from core_supervision.link.turns import Turns

if TYPE_CHECKING:
    from core_config.resolve import Resolution

logger = logging.getLogger(__name__)


class ApiServerLink:
    """The link of one API server. It listens as soon as it is made. Use it from one event loop.

    agreement:  what engines must have in common.
    seats:      a place for each engine of other commands.
    own_serve:  whether an engine of the server's own command serves, or will again; replaced once there are some.
    is_started: whether all engines have come once.

    Raises UserError if the address cannot be listened at.
    """

    def __init__(self, resolution: Resolution) -> None:
        settings = resolution.server.remote
        assert settings is not None
        self.agreement = Agreement(resolution)
        self.own_serve: Callable[[], bool] = bool
        self.is_started = False
        self._group_size = settings.group_size
        self._link = Link(settings, listens=True)
        self.address = self._link.address
        self.seats = {
            rank: Seat(rank, settings.group_size, self, settings.patience_s)
            for rank in range(settings.num_own, settings.group_size)
        }
        self._by_peer: dict[bytes, Seat] = {}
        self._tasks = [asyncio.ensure_future(work) for work in (self._read(), self._watch(), self._look())]
        for task in self._tasks:
            task.add_done_callback(self._on_end)
        logger.info("Listening for engines at %s: %s.", self.address, HOW)

    @property
    def hello(self) -> messages.Hello | None:
        """Return the description of the first accepted engine; None: there was none yet."""
        return self.agreement.hello

    def send(self, seat: Seat, kind: bytes, payload: bytes) -> None:
        """Send to the engine of a seat, if there is one."""
        if seat.peer is not None:
            self._send(seat.peer, kind, payload)

    @property
    def is_given_up(self) -> bool:
        """Whether an engine was waited for in vain."""
        return any(seat.waiting.is_overdue for seat in self.seats.values())

    async def close(self) -> None:
        """Say goodbye, and stop listening. May be called twice."""
        if not self._tasks:
            return
        tasks, self._tasks = self._tasks, []
        for seat in self.seats.values():
            seat.say(messages.Bye("the API server has ended"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for seat in self.seats.values():
            seat.peer = None
        self._link.close(LAST_WORDS_MS)

    async def _read(self) -> None:
        """Read all messages, from any sender."""
        turns = Turns()
        while True:
            await turns.give_way()
            identity, kind, payload = await self._link.receive_from()
            seat = self._by_peer.get(identity)
            if seat is not None and seat.peer == identity:
                seat.receive(kind, payload)
            elif kind != TALK and messages.channel_of(kind) is None:
                self._meet(identity, kind, payload)

    def _meet(self, identity: bytes, greeting: bytes, payload: bytes) -> None:
        """Answer a process that introduces itself as an engine."""
        problem = greeting_problem(greeting, "engine")
        if problem:
            logger.error("An engine was turned away. %s", problem)
            self._send(identity, HELLO, b"")
            return
        try:
            hello = msgspec.msgpack.decode(payload, type=messages.Hello)
        except UNREADABLE as error:
            self._refuse(identity, f"What it says of itself cannot be read: {error}.")
            return
        wrong = self._place_problem(hello)
        if wrong:
            self._refuse(identity, wrong)
            return
        seat = self.seats[hello.rank]
        if seat.peer is not None:
            seat.say(Alive())  # shows whether that engine is still there, before the new one asks again
            self._answer(identity, messages.Refused(f"The API server has an {seat.name}, {seat.who}.", is_busy=True))
            return
        wrong = self.agreement.objection(hello)
        if wrong:
            self._refuse(identity, wrong)
            return
        self._by_peer = {peer: each for peer, each in self._by_peer.items() if each.peer == peer} | {identity: seat}
        seat.take(identity, hello.who)
        self.agreement.take(hello)
        self._answer(identity, messages.Welcome())
        logger.info("The %s of %s has come.", seat.name, hello.who)

    def _place_problem(self, hello: messages.Hello) -> str:
        """Return why there is no place for an engine, as a sentence; empty if there is one."""
        if hello.group_size != self._group_size:
            return f"--data-parallel-size is {self._group_size} at the API server and {hello.group_size} at the engine."
        if hello.rank not in self.seats:
            return (
                f"It has rank {hello.rank}, and the API server's command starts the engines 0 to {min(self.seats) - 1} itself; "
                f"give the engine --data-parallel-start-rank {min(self.seats)} or more."
            )
        return ""

    def _refuse(self, identity: bytes, sentence: str) -> None:
        logger.error("An engine was turned away. %s", sentence)
        self._answer(identity, messages.Refused(sentence, is_busy=False))

    def _answer(self, identity: bytes, answer: msgspec.Struct) -> None:
        self._send(identity, HELLO, msgspec.msgpack.encode(answer))

    async def _watch(self) -> None:
        """Watch the connection events of the library."""
        while True:
            trouble = await self._link.trouble()
            for seat in self.seats.values():
                if trouble is not None:
                    seat.waiting.trouble = trouble
                else:
                    seat.say(Alive())  # fails if the lost connection was this engine's

    async def _look(self) -> None:
        """Look after all seats, and end the wait for engines once it has been too long."""
        pulse = messages.Pulse()
        while True:
            if await pulse.was_late():
                for seat in self.seats.values():
                    seat.heard()
            has_limit = not self.is_started or self._nobody_comes()
            over = [seat.look(is_needed=has_limit) for seat in self.seats.values()]
            if any(over) and has_limit:
                return

    def _nobody_comes(self) -> bool:
        """Whether the group has no engine at all, and has waited too long for each."""
        return not self.own_serve() and all(seat.waiting.is_overdue for seat in self.seats.values())

    def _send(self, identity: bytes, kind: bytes, payload: bytes) -> None:
        self._link.send(kind, payload, identity).add_done_callback(partial(self._sent, identity))

    def _sent(self, identity: bytes, sending: asyncio.Future[Any]) -> None:
        """Check a send: an unknown peer may have gone before its answer, but the engine of a seat must not."""
        if sending.cancelled():
            return
        error = sending.exception()
        seat = self._by_peer.get(identity)
        if error is None or seat is None or seat.peer != identity:
            return
        is_gone = isinstance(error, zmq.ZMQError) and error.errno == zmq.EHOSTUNREACH
        seat.lose("the connection was lost" if is_gone else f"nothing can be sent to it ({error})")

    def _on_end(self, task: asyncio.Future[None]) -> None:
        """Note the end of one of our tasks, which is a bug unless the wait is over."""
        if task.cancelled() or task.exception() is None:
            return
        logger.error("The way to the engines is broken.", exc_info=task.exception())
        for seat in self.seats.values():
            seat.news.report(EngineGone(f"The way to the engine is broken ({task.exception()}).", "exit"))

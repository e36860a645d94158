"""Running requests that leave an engine of a group for another one, with what has been computed of them.

Owns: `GroupMoves`: draining an engine, and the order of the calls that move a request. Never does: compare
(`core_frontend.group.comparison`), move a page (the engines do), or replace an engine. Called by: `AsyncEngine`, whose group it
serves; operators' routes; an API process, for orders that come to another one.

A request stops in its engine at the end of a step, and the other one goes on with its tokens. Whatever fails on the way, some
engine has the request, and computes what did not come.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError, RequestError, UtilityError
from core_frontend.api.explanation import MoveUse
from core_frontend.group.arrivals import Arrival, MovedArrivals, asked
from core_frontend.group.client import GroupClient
from core_frontend.group.comparison import Comparison, compare, lengths_of
from core_frontend.group.member import Member
from core_frontend.group.orders import Drained, Moved, Orders, Scaled, evened, is_being_scaled, last_engine, summed
from core_frontend.group.recovery import GroupRecovery
from core_frontend.group.replacements import Replacements
from core_frontend.group.scaling import GroupScaling
from core_frontend.output_processor import OutputProcessor, RequestState
from core_frontend.quote.link import Link
from core_frontend.recovery import num_missing
from core_kv_connectors.handoff.roles import moves_requests
from core_observers.families.move_metrics import OUTCOMES
from core_supervision.link.zmq_client import ZmqClient

logger = logging.getLogger(__name__)

AT_ONCE: Final = 4
"""Requests that leave an engine at the same time, as many as the connections on which an engine takes pages of another."""
MORE_S: Final = 1.0
"""Seconds that pages may take longer than computing them was foretold to take."""


class GroupMoves:
    """The moves of the requests of one front.

    counts:   of requests by outcome, since the start.
    on_count: called with each outcome.
    scaling:  changes the number of engines.
    orders:   carries out operators' orders: this object, or where other fronts have requests at these engines as well, what
              reaches all of them.
    """

    def __init__(
        self, config: EngineConfig, group: GroupClient, recovery: GroupRecovery, states: OutputProcessor
    ) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.on_count: Callable[[str], None] | None = None
        self.orders: Orders = self
        self._hands_on = moves_requests(config)
        self._budget = max(config.scheduler.max_num_batched_tokens, 1)
        self._group = group
        self._recovery = recovery
        self._states = states
        self._arrivals = MovedArrivals(states, self._count)
        self._drains: dict[int, asyncio.Task[Drained]] = {}
        self._replacements = Replacements(self, group, recovery)
        self.scaling = GroupScaling(group, recovery, self.take_out)
        group.on_taken = self._arrivals.saw

    async def drain(self, index: int, *, ends: bool = False) -> Drained:
        """Send an engine no further request, and have those that it runs go on in the others.

        ends: whether its process ends as soon as no request is left there.

        A second call while the first one lasts waits for it. A caller that goes away changes nothing: the drain goes on.

        Raises RequestError for an unknown engine (404), and where no other one takes requests, or the process is not one of
        this command's (409).
        """
        member = self.member(index)
        if self.scaling.is_running:
            raise is_being_scaled(f"a drain of engine {index}")
        if ends and member.is_alive and not member.client.is_owner:
            raise RequestError(
                f"Engine {index} is a process of another command, which alone can end it; leave out end.",
                status=409,
                code="not_the_owner",
            )
        if not self._group.is_relieved(member):
            raise RequestError(last_engine(index), status=409, code="last_engine")
        return await self.take_out(index, ends=ends)

    async def take_out(self, index: int, *, ends: bool = False) -> Drained:
        """Drain an engine whether or not another one takes requests now: what cannot leave it stays. See `drain`."""
        member = self.member(index)
        member.is_drained = True
        self._group.take_out(member)
        running = self._drains.get(index)
        if running is not None and not running.done():
            await asyncio.wait({running})
            return await self.take_out(
                index, ends=ends
            )  # what the first call has left, and an end that it has not asked for
        running = self._drains[index] = asyncio.create_task(self._drain(member, ends=ends))
        return await asyncio.shield(running)

    def relieve(self, index: int) -> asyncio.Future[Drained] | None:
        """Have the requests of an engine that has been asked to end go on in others. Without another one they stay to its end.

        Its successor takes requests. Returns what becomes of them; None without another engine.
        """
        member = self.member(index)
        if not self._group.is_relieved(member):
            return None
        member.is_leaving = True
        self._group.take_out(member)
        running = self._drains.get(index)
        if running is None or running.done():
            running = self._drains[index] = asyncio.create_task(self._drain(member, ends=False))
        return running

    def keep_engines(self) -> None:
        """End no engine any more that somebody asks to end: the server itself ends, and they end with it."""
        self._replacements.close()

    async def leave(self, index: int) -> bool:
        """Disconnect from a drained engine that is about to end; False where it is not drained, and nothing has changed."""
        member = self.member(index)
        if member.state == "drained":
            await self._group.end(member)
        return member.state == "ended"

    async def rejoin(self, index: int) -> None:
        """Connect to the engine at the place of one that was ended, drained as it is. Raises as `undrain` does."""
        member = self.member(index)
        if member.state != "ended":
            return
        try:
            await asyncio.shield(self._recovery.start(member))
        except EngineDeadError as error:
            raise RequestError(f"Engine {index} did not come up: {error}", status=503, code="engine_dead") from error

    async def undrain(self, index: int) -> None:
        """Let an engine take requests again; one that was ended is started.

        Raises RequestError for an unknown one (404), while the group is scaled (409), and where it does not come up (503).
        """
        member = self.member(index)
        if self.scaling.is_running:
            raise is_being_scaled(f"engine {index}")
        self._group.undrain(member)
        if member.state == "ended":
            await self.rejoin(index)
        else:
            await self._recovery.reopened()

    def member(self, index: int) -> Member:
        """Return the engine at a place. Raises RequestError (404) where there is none."""
        count = len(self._group.members)
        if not 0 <= index < count:
            raise RequestError(
                f"There is no engine {index}; expected 0 to {count - 1}.",
                status=404,
                code="unknown_engine",
                param="engine",
            )
        return self._group.members[index]

    def close(self) -> None:
        """End all drains; what they have not moved stays."""
        self._replacements.close()
        for task in self._drains.values():
            task.cancel()
        self._arrivals.close()

    async def _drain(self, member: Member, *, ends: bool) -> Drained:
        room = asyncio.Semaphore(AT_ONCE)

        async def move(state: RequestState) -> str:
            async with room:
                return await self._move_safely(state, member)

        if member.state == "trying":  # a request that engines may die of stays alone; what is left ends there
            return Drained(engine=member.index, moved=0, computed=0, stayed=len(self._live_at(member)))
        leaving = sorted(self._live_at(member), key=num_missing)
        outcomes = Counter(await asyncio.gather(*map(move, leaving)))
        stayed = len(self._live_at(member))
        if member.state == "draining" and not stayed:
            member.state = "drained"
        if ends and member.state == "drained":
            await self._group.end(member)
        found = summed(outcomes)
        logger.info(
            "Engine %d is drained: %d requests have moved, %d are computed again, %d stayed.",
            member.index, found.moved, found.computed, stayed,
        )  # fmt: skip
        return Drained(engine=member.index, moved=found.moved, computed=found.computed, stayed=stayed)

    async def rebalance(self) -> Moved:
        """Have requests change engines until the numbers of all that take some differ by one at most."""
        (moves,) = evened({0: self.placed()}).values()
        return await self.change_places(moves)

    async def scale(self, size: int, drain_s: float) -> Scaled:
        """Have as many engines. See `GroupScaling.scale`."""
        return await self.scaling.scale(size, drain_s)

    async def is_scaling(self) -> bool:
        """Whether the number of engines is being changed."""
        return self.scaling.is_running

    def placed(self) -> dict[int, int]:
        """Return the number of this front's requests at each engine that takes some."""
        return {member.index: len(self._live_at(member)) for member in self._group.members if member.state == "running"}

    async def change_places(self, moves: Sequence[tuple[int, int]]) -> Moved:
        """Move a request for each pair of engines, from the first to the second, as far as it still has one.

        Those leave first that may still get most tokens. One that has begun leaves only with its pages.
        """
        room = asyncio.Semaphore(AT_ONCE)
        live = {source: sorted(self._live_at(self.member(source)), key=num_missing) for source, _ in moves}

        async def move(state: RequestState, source: Member, target: Member) -> str:
            async with room:
                return await self._move_safely(state, source, target)

        leaving = [(live[source].pop(), source, target) for source, target in moves if live[source]]
        moving = [move(state, self.member(source), self.member(target)) for state, source, target in leaving]
        return summed(Counter(await asyncio.shield(asyncio.gather(*moving))))

    def _live_at(self, member: Member) -> list[RequestState]:
        """Return the requests that a member has."""
        found = map(self._states.find, self._group.requests_at(member))
        return [state for state in found if state is not None]

    async def _move_safely(self, state: RequestState, source: Member, target: Member | None = None) -> str:
        """Move a request; returns the outcome, empty where it has ended or its engine has died. target: as for `_move`."""
        client = source.client
        try:
            outcome = await self._move(state, source, target)
        except Exception as defect:
            logger.error("Request %r could not be moved as intended.", state.request_id, exc_info=defect)
            if not self._is_at(state, source, client):
                return ""
            # The engine may have ended it already.
            self._group.abort([state.request_id])
            await self._recovery.give(state)
            outcome = "computed"
        if outcome in ("computed", "no_ticket") or (outcome == "stayed" and target is None):
            self._count(outcome)
        return outcome

    async def _move(self, state: RequestState, source: Member, target: Member | None) -> str:
        """Move a request to another engine, with its pages where that is faster.

        target: the engine, to which it goes only with its pages unless it has not begun; None: it has to leave, to the best.
        """
        client = source.client
        if not self._is_at(state, source, client):
            return ""
        has_to_leave = target is None
        if not self._group.serves or (has_to_leave and not source.is_out):
            return "stayed"
        target = target or self._group.best(state.requests[0])[0]
        link = self._arrivals.links[source.index, target.index]
        try:
            comparison = await self._compare(state, client, link)
            if not (has_to_leave or comparison.moves) and any(state.num_given().values()):
                return "stayed"
            lease, outcome, why = await self._leased(state, source, client, target, comparison)
        except EngineDeadError:
            return ""  # its recovery sends the request to another engine
        if not self._is_at(state, source, client):
            if lease is not None:
                await asked(target.client, "end_kv", request_id=state.request_id)
            return ""
        move = MoveUse(
            source=source.index,
            target=target.index,
            tokens=sum(state.num_given().values()),
            how="moved" if lease is not None else "computed",
            why=why,
            computing=_rounded(comparison.compute_s),
            moving=_rounded(comparison.move_s),
        )
        return await self._send(state, source, target, move, outcome, Arrival(state, target, link, lease))

    async def _leased(
        self, state: RequestState, source: Member, client: ZmqClient, target: Member, comparison: Comparison
    ) -> tuple[dict[str, Any] | None, str, str]:
        """Stop a request whose pages are to go along; returns their lease, None without one, the outcome and why.

        client: the engine that has it; `source` may have a new one by now. Raises EngineDeadError when that engine has died.
        """
        if not comparison.moves:
            return None, "computed", comparison.reason
        lease = await self._hand_over(state, client)
        if lease is None:
            return None, "no_ticket", "its engine had nothing of it cached, or no room for a lease"
        refusal = await self._claim(state, target, lease, comparison)
        if refusal or not self._is_at(state, source, client):
            await asked(client, "drop_kv", ticket=lease["ticket"])
        if refusal:
            return None, "no_ticket", f"the other engine did not take its pages ({refusal})"
        return lease, "moved", comparison.reason

    async def _send(
        self, state: RequestState, source: Member, target: Member, move: MoveUse, outcome: str, arrival: Arrival
    ) -> str:
        """Send a request that has stopped to its next engine, and wait for its first token there; returns the outcome."""
        name = state.request_id
        # Without an await between these two: an engine's recovery gives requests that no engine has to others.
        self._group.abort([name])
        if target.state == "running":
            if arrival.lease is not None:
                self._arrivals.expect(name, arrival)
            num_cached = 0 if arrival.lease is None else len(state.prompt_token_ids)
            await self._recovery.give(state, target, move, num_cached=num_cached)

        def is_there() -> bool:
            return self._group.place_of(name) == target.index and self._states.find(name) is state

        if is_there() and arrival.lease is not None:
            await self._arrivals.until_seen(arrival, is_there)
        if arrival.seen.is_set() or is_there() or self._states.find(name) is not state:
            return outcome
        # That engine has died, perhaps before it has claimed the lease.
        self._arrivals.forget(name)
        if arrival.lease is not None:
            await asked(source.client, "drop_kv", ticket=arrival.lease["ticket"])
        if self._group.serves or not source.is_alive:
            await self._recovery.give(state)
            return "computed"
        await self._recovery.give(state, source)
        return "stayed"

    async def _compare(self, state: RequestState, client: ZmqClient, link: Link) -> Comparison:
        """Return both sides. Raises EngineDeadError when the engine has died."""
        if not self._hands_on:
            return Comparison(
                why="the engines have no connector that hands over pages (--kv-transfer-config.kv_role kv_both)"
            )
        given = list(state.num_given().values())
        num_prompt_tokens = len(state.requests[0].prompt_token_ids)
        try:
            arguments = {"prefixes": [], "lengths": lengths_of(num_prompt_tokens, given)}
            facts = await client.call("step_costs", arguments)
        except UtilityError as error:
            return Comparison(why=f"the engine could not tell its costs ({error})")
        block_size = client.ready.block_size
        return compare(facts, num_prompt_tokens, given, link, budget=self._budget, block_size=block_size)

    async def _hand_over(self, state: RequestState, client: ZmqClient) -> dict[str, Any] | None:
        """Stop a request in its engine; returns the lease of its pages, None without one. Raises EngineDeadError."""
        try:
            lease: dict[str, Any] | None = await client.call("hand_over_kv", {"request_id": state.request_id})
        except UtilityError as error:
            logger.warning("Request %r is computed again: %s", state.request_id, error)
            return None
        return lease

    async def _claim(self, state: RequestState, target: Member, lease: dict[str, Any], comparison: Comparison) -> str:
        """Have an engine fetch the pages of a request that is to come; returns why it does not, empty when it does."""
        source = {name: lease[name] for name in ("host", "port", "ticket", "engine_id")}
        source["limit_s"] = (comparison.compute_s or 0.0) + MORE_S
        arguments = {
            "request_id": state.request_id,
            "source": source,
            "tenant": state.requests[0].tenant,
            "num_choices": len(state.num_given()),
        }
        try:
            return str(await target.client.call("claim_kv", arguments))
        except (EngineDeadError, UtilityError) as error:
            return str(error)

    def _is_at(self, state: RequestState, member: Member, client: ZmqClient) -> bool:
        """Whether a request is live, and still that of an engine."""
        name = state.request_id
        is_live = self._states.find(name) is state and self._group.place_of(name) == member.index
        return is_live and member.connected is client and client.dead_error is None

    def _count(self, outcome: str) -> None:
        self.counts[outcome] += 1
        if self.on_count is not None:
            self.on_count(outcome)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)

"""Calls that reach all engines of a group, or none.

Owns: `GroupCalls`: the order of such a call, what follows when an engine refuses what another one has done, and one answer made
of several (`core_frontend.group.answers`). Never does: know what a call does. Called by: `GroupClient`.

A call that changes something is made on one engine first. If that refuses it, nothing has changed anywhere. Otherwise all
others follow. One that refuses, or dies, is ended and started again, and gets the call before it serves (`Member.missed`): an
engine has less to do then, and more memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from core.api.errors import EngineDeadError, EngineStalledError, UtilityError
from core_frontend.group.answers import combined
from core_frontend.group.member import Member

logger = logging.getLogger(__name__)

READING: Final = frozenset({
    "ping", "lifecycle", "list_adapters", "written_profile", "check_integrity", "prefix_places", "num_pins",
})  # fmt: skip
"""Calls that change nothing: all engines that live answer them at the same time."""
OF_UPDATES: Final = frozenset({"update_weights", "finish_weight_update"})
LASTING: Final = OF_UPDATES | {"start_weight_update", "load_adapter", "unload_adapter"}
"""Calls that an engine which was ended gets when it is started; what holds besides them is in the state of the others."""
OF_PINS: Final = frozenset({"pin_prefix", "unpin_prefix"})


@dataclass
class Load:
    """An adapter that is being loaded. name: of the adapter. tickets: of the engines. done: what those said that have ended."""

    name: str
    tickets: list[tuple[Member, int]]
    done: dict[int, Any] = field(default_factory=dict)


class GroupCalls:
    """The calls of one client of a group. living: returns the members that can be called; raises when there is none.

    turn: held while a call changes engines, and while one joins them.
    on_missed: takes a call that an engine which was ended has to get when it is started, where another process starts it;
               None: this one does.
    """

    def __init__(self, members: Sequence[Member], living: Callable[[], Sequence[Member]]) -> None:
        self.on_missed: Callable[[int, str, Mapping[str, Any]], None] | None = None
        self._members = members
        self._living = living
        self.turn = asyncio.Lock()
        self._loads: dict[int, Load] = {}
        self._num_loads = 0

    async def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Make a call. See `GroupClient.call`."""
        if method == "check_params":
            return await self._living()[0].client.call(method, arguments)
        if method == "loaded_adapter":
            return await self._loaded(arguments["ticket"])
        if method in READING:
            return combined(method, await _all(self._living(), method, arguments))
        async with self.turn:  # two calls have the same order in all engines
            if method in OF_PINS:
                return await self._pin(method, arguments)
            if method == "reset_prefix_cache" and not arguments.get("reset_running_requests"):
                return await self._reset(method, arguments)
            if method in OF_UPDATES:
                await self._check_gathered()
            members, answers = await self._change(method, arguments)
            if method == "load_adapter":
                return self._ticket(arguments["name"], zip(members, answers, strict=True))
            return combined(method, answers)

    async def _change(self, method: str, arguments: Mapping[str, Any]) -> tuple[Sequence[Member], list[Any]]:
        """Return the members and what they answered; None for one that has to be started again."""
        first, *others = members = self._complete()
        answers = [await first.client.call(method, arguments)]
        answers += await asyncio.gather(*(self._follow(each, method, arguments) for each in others))
        for member in self._members:
            if member.state != "ended" or method not in LASTING:
                continue
            if self.on_missed is None:
                member.missed.append((method, arguments))
            else:
                self.on_missed(member.index, method, arguments)
        return members, answers

    async def _check_gathered(self) -> None:
        """Raise UtilityError where an engine has lost the updates that the others have gathered."""
        states = await _all(self._complete(), "lifecycle", {})
        lost = next((state["gathering_lost"] for state in states if state["gathering_lost"]), "")
        if not lost and len({state["is_gathering"] for state in states}) > 1:
            lost = "An engine that was started again has none of the updates that were gathered; start them again."
        if lost:
            raise UtilityError(lost)

    async def _follow(self, member: Member, method: str, arguments: Mapping[str, Any]) -> Any:
        """Make a call that another engine has executed; None when this engine has to be started again for it.

        Raises UtilityError when this process may not end it.
        """
        client = member.client
        try:
            return await client.call(method, arguments)
        except EngineDeadError:
            member.missed.append((method, arguments))
        except UtilityError as error:
            if not client.is_owner:
                raise UtilityError(
                    f"Engine {member.index} refused what the others have done ({error}); call again, or restart the server."
                ) from error
            logger.error(
                "Engine %d refuses %s, which the others have executed (%s); it is started again.",
                *(member.index, method, error),
            )
            member.missed.append((method, arguments))
            client.kill()
        return None

    async def _reset(self, method: str, arguments: Mapping[str, Any]) -> bool:
        """Drop the cached prefixes of all engines; of none, where one has requests that run."""
        if any(member.totals.latest.num_running for member in self._complete()):
            return False
        _, answers = await self._change(method, arguments)
        return all(answers)

    def _ticket(self, name: str, answers: Iterable[tuple[Member, int | None]]) -> int:
        """Return the group's number of a load, for the tickets of its engines."""
        self._num_loads += 1
        given = [(member, ticket) for member, ticket in answers if ticket is not None]
        self._loads[self._num_loads] = Load(name, given)
        return self._num_loads

    async def _loaded(self, ticket: int) -> Any:
        """Return the facts of an adapter once all engines have it, None before. Raises UtilityError when one cannot load it."""
        load = self._loads.get(ticket)
        if load is None:
            raise UtilityError(f"Ticket {ticket} of a load is unknown; load the adapter again.")
        for member, own in load.tickets:
            if member.index not in load.done:
                try:
                    answer = await member.client.call("loaded_adapter", {"ticket": own})
                except UtilityError as error:
                    answer = error
                if answer is None:
                    return None
                load.done[member.index] = answer
        del self._loads[ticket]
        failure = next((answer for answer in load.done.values() if isinstance(answer, UtilityError)), None)
        if failure is None:
            return next(iter(load.done.values()))
        for member, _ in load.tickets:
            if not isinstance(load.done[member.index], UtilityError):
                await member.client.call("unload_adapter", {"name": load.name})
        raise failure

    async def _pin(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Pin a prefix in the engine that has most of it, and only there; unpin it anywhere.

        An engine that is being restarted has no pins.
        """
        living = self._living()
        name = {"server": arguments["server"], "name": arguments["name"]}
        tenant = arguments["tenant"] if method == "unpin_prefix" else arguments["prefix"].get("tenant", "")
        home: Member | None = None
        if method == "pin_prefix":
            asked = {**name, "prefix": arguments["prefix"]}
            places = await _all(living, "prefix_places", asked)
            home = max(zip(living, places, strict=True), key=lambda row: row[1]["places"].get("pool", 0))[0]
        others = [member for member in living if member is not home]
        dropped = await _all(others, "unpin_prefix", {**name, "tenant": tenant})
        return any(dropped) if home is None else await home.client.call(method, arguments)

    def _complete(self) -> Sequence[Member]:
        """Return the members of a group none of which is being restarted. Raises EngineStalledError."""
        living = self._living()
        for member in self._members:
            if not member.is_alive and member.state not in ("ended", "gone"):
                raise EngineStalledError(
                    f"Engine {member.index} of {len(self._members)} died and is being started again, so the call would not "
                    "reach all engines; ask again in a few seconds."
                )
        return living


async def _all(members: Sequence[Member], method: str, arguments: Mapping[str, Any]) -> list[Any]:
    return await asyncio.gather(*(member.client.call(method, arguments) for member in members))

"""Calls of a group whose engines answer by a script: all of them are reached, or none."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from core.api.errors import EngineDeadError, EngineStalledError, UtilityError
from core_frontend.group.calls import GroupCalls
from core_frontend.group.member import Member


class Scripted:
    """A client whose calls are a function's. heard: their names."""

    dead_error: EngineDeadError | None = None
    is_owner = True

    def __init__(self, answer: Callable[[str, Mapping[str, Any]], Any]) -> None:
        self.heard: list[str] = []
        self.was_killed = False
        self._answer = answer

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        self.heard.append(method)
        return self._answer(method, arguments or {})

    def kill(self) -> None:
        self.was_killed = True


def group(*answers: Callable[[str, Mapping[str, Any]], Any]) -> tuple[GroupCalls, list[Member], list[Scripted]]:
    clients = [Scripted(answer) for answer in answers]
    members = [Member(index, None, client) for index, client in enumerate(clients)]  # type: ignore[arg-type]
    return GroupCalls(members, lambda: [member for member in members if member.is_alive]), members, clients


def accepts(method: str, arguments: Mapping[str, Any]) -> Any:
    return {"number": 1, "adapters": [{"name": "a", "num_requests": 1}]} if method == "list_adapters" else 7


def refuses(method: str, arguments: Mapping[str, Any]) -> Any:
    raise UtilityError("No room.")


async def test_what_the_first_engine_refuses_reaches_no_other() -> None:
    calls, _, clients = group(refuses, accepts)
    with pytest.raises(UtilityError, match="No room"):
        await calls.call("sleep", {})
    assert clients[1].heard == []


async def test_an_engine_that_refuses_later_is_ended_and_will_follow() -> None:
    calls, members, clients = group(accepts, refuses, accepts)
    assert await calls.call("sleep", {"level": 1}) == 7
    assert [client.was_killed for client in clients] == [False, True, False]
    assert members[1].missed == [("sleep", {"level": 1})]
    calls, members, clients = group(accepts, refuses)
    clients[1].is_owner = False
    with pytest.raises(UtilityError, match="Engine 1 refused what the others have done"):
        await calls.call("sleep", {"level": 1})
    assert not clients[1].was_killed and not members[1].missed


async def test_no_call_changes_anything_while_an_engine_is_away() -> None:
    calls, members, clients = group(accepts, accepts)
    members[1].state = "restarting"
    with pytest.raises(EngineStalledError, match="Engine 1 of 2"):
        await calls.call("sleep", {})
    assert clients[0].heard == []
    assert (await calls.call("list_adapters", {}))["number"] == 1
    members[1].state = "gone"
    assert await calls.call("sleep", {}) == 7


async def test_an_adapter_is_there_once_all_engines_have_it() -> None:
    later = iter([None, {"digest": "d"}])

    def slow(method: str, arguments: Mapping[str, Any]) -> Any:
        return next(later) if method == "loaded_adapter" else accepts(method, arguments)

    def quick(method: str, arguments: Mapping[str, Any]) -> Any:
        return {"digest": "d"} if method == "loaded_adapter" else accepts(method, arguments)

    calls, _, clients = group(quick, slow)
    ticket = await calls.call("load_adapter", {"name": "a", "path": "/a"})
    assert await calls.call("loaded_adapter", {"ticket": ticket}) is None
    assert await calls.call("loaded_adapter", {"ticket": ticket}) == {"digest": "d"}
    assert clients[0].heard.count("loaded_adapter") == 1, "a ticket is taken back once"
    listed = await calls.call("list_adapters", {})
    assert listed == {"number": 2, "adapters": [{"name": "a", "num_requests": 2}]}


async def test_an_adapter_that_one_engine_cannot_load_is_in_none() -> None:
    def broken(method: str, arguments: Mapping[str, Any]) -> Any:
        return refuses(method, arguments) if method == "loaded_adapter" else accepts(method, arguments)

    def whole(method: str, arguments: Mapping[str, Any]) -> Any:
        return {"digest": "d"} if method == "loaded_adapter" else accepts(method, arguments)

    calls, _, clients = group(whole, broken)
    ticket = await calls.call("load_adapter", {"name": "a", "path": "/a"})
    with pytest.raises(UtilityError, match="No room"):
        await calls.call("loaded_adapter", {"ticket": ticket})
    assert clients[0].heard[-1] == "unload_adapter" and "unload_adapter" not in clients[1].heard
    with pytest.raises(UtilityError, match="unknown"):
        await calls.call("loaded_adapter", {"ticket": ticket})


async def test_answers_of_several_are_one() -> None:
    traces: dict[str, Any] = {"written_profile": None}
    calls, _, _ = group(lambda method, arguments: "/one", lambda method, arguments: traces[method])
    assert await calls.call("written_profile", {}) is None
    traces["written_profile"] = "/two"
    assert await calls.call("written_profile", {}) == "/one, /two"
    places = {"places": {"pool": 8}, "pinned": 4}
    calls, _, _ = group(lambda method, arguments: places, lambda method, arguments: places)
    assert await calls.call("prefix_places", {}) == {"places": {"pool": 16}, "pinned": 8}

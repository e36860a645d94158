"""The lists of tool servers, their addresses, and calls that fail before they are sent."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from core.api.errors import PluginError
from core_apis.tools import making, tool_servers
from core_apis.tools.offered import MOST_LIST, MOST_TOOLS, CallResult, ServerTool, label_of, usable
from core_apis.tools.tool_servers import reason_of
from core_config.served.tool_servers import address_of, tool_server_problems
from tests.apis.responses.test_hosted_tools import SCHEMA, StandIn, started


@pytest.fixture
def place() -> StandIn:
    return StandIn()


def test_what_the_start_refuses() -> None:
    def problems(*given: str) -> str:
        merged = SimpleNamespace(value=lambda name: list(given))
        return " ".join(tool_server_problems(merged))  # type: ignore[arg-type]

    assert not problems() and not problems("http://a:1/mcp", "b=https://b.example/sse", "127.0.0.1:8000", "[::1]:8000")
    assert "no tools of its own" in problems("demo")
    for wrong in ("ftp://a", "http://", "http://u:p@a/mcp", "http://a:99999/", "a:b:c"):
        assert f"{wrong}: expected [LABEL=]http" in problems(wrong)
    assert "'a b' is no label" in problems("a b=http://a") and "'a' is named twice" in problems(
        "a=http://a", "a=http://b"
    )
    assert "expected at most 16" in problems(*["http://a:1/mcp"] * 17)
    assert address_of("h:1") == (None, "http://h:1/sse") and address_of("http://a/?b=c") == (None, "http://a/?b=c")
    assert address_of("x=http://a/mcp") == ("x", "http://a/mcp")


def test_arguments_that_are_no_object(place: StandIn) -> None:
    async def ask() -> list[CallResult]:
        servers = started(place)
        results = [
            await servers.call("place", "weather", given) for given in ("[1]", "{", '{"city": "Köln"}', "[" * 9999)
        ]
        results.append(await servers.call("nowhere", "weather", "{}"))
        await servers.close()
        return results

    a_list, cut, fine, deep, nowhere = asyncio.run(ask())
    for result in (a_list, cut, deep):
        assert result.output is None and "no JSON object" in (result.error or "")
    assert fine.output == "WARM in Köln" and "'nowhere' is not there" in (nowhere.error or "")


def test_servers_that_are_not_there_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_servers, "AGAIN_S", 0.01)
    late = StandIn(name="My late server")
    late.fails = 2
    servers = started(StandIn(), late, StandIn(), StandIn(label="named"))
    first = [server.label for server in servers.offered]
    deadline = time.monotonic() + 10
    while len(servers.offered) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (
        first == ["place", "named"] and servers.offered[-1].label == "My_late_server"
    )  # the second `place` is left out
    asyncio.run(servers.close())


def test_lists_that_lie() -> None:
    fine = ServerTool("fine", "", SCHEMA)
    bad = [
        ServerTool("white space", "", SCHEMA),
        fine,
        ServerTool("array", "", {"type": "array"}),
        ServerTool("large", "x" * MOST_LIST, {}),
        ServerTool("halves", "a lone \ud800", SCHEMA),
    ]
    kept, problems = usable([fine, *bad])
    assert kept == [fine] and len(problems) == len(bad)
    assert len(usable([ServerTool(f"t{index}", "", {}) for index in range(1000)])[0]) == MOST_TOOLS
    assert label_of("My Server / v2") == "My_Server_v2" and label_of("🙂") == ""


def test_a_reason_is_short_and_of_the_first_error() -> None:
    nested = ExceptionGroup("a", [ExceptionGroup("b", [ValueError("x\n" * 1000)]), KeyError("y")])
    told = reason_of(nested)
    assert told.startswith("ValueError: x x") and len(told) < 330 and "\n" not in told


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "find_spec", lambda name: None)
    assert making.tool_servers(()) is None
    with pytest.raises(PluginError, match=r"core-engine-apis\[mcp\]"):
        making.tool_servers(("http://127.0.0.1:1/mcp",))

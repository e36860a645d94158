"""Tools that the server runs for /v1/responses, with connections that stand in for MCP servers.

`test_mcp_servers.py` has real ones (`make test-tools`).
"""

import asyncio
import functools
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import httpx
import pytest

from core.api.errors import EngineDeadError
from core_apis.answers.prompt_output import PromptOutput
from core_apis.generation import PromptRun
from core_apis.protocol.responses import ResponsesRequest
from core_apis.responses.continuing import continue_body
from core_apis.responses.kept_items import Continued
from core_apis.responses.tools import chat_tools
from core_apis.tools.offered import CallResult, ServerTool, ToolServer
from core_apis.tools.tool_servers import MOST_RESULT, Connection, ToolServers
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import make_tokenizer
from tests.apis.responses.checked import added_up, parsed, valid
from tests.apis.responses.test_responses_client import TEMPLATE
from tests.apis.scripted_engine import ConversingClient

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
NAMES = ("weather", "broken", "hangs", "huge", "gone", "again", "long")
MCP = {"type": "mcp", "server_label": "place"}


def call(name: str, arguments: str = '{"city": "Bonn"}') -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# The row whose word comes last in the prompt is the answer.
SCRIPT = [
    ("ASK-ONE", f"<think>\nHm.\n</think>\n\n{call('place__weather')}"),
    ("ASK-TWO", f"Look: {call('place__weather')}\n{call('place__broken')}"),
    ("ASK-BOTH", f"{call('place__weather')}\n{call('mine')}"),
    ("ASK-HANGS", call("place__hangs")),
    ("ASK-HUGE", call("place__huge")),
    ("ASK-GONE", call("place__gone")),
    ("ASK-AGAIN", call("place__again")),
    ("ASK-LONG", call("place__long")),
    ("WARM in Bonn", "It is warm."),
    ("Error: It broke", "It broke, sorry."),
    ("within 0.2 s", "It hung."),
    ("expected at most 1048576", "It was too large."),
    ("RuntimeError: refused", "It is gone."),
]


class StandIn:
    """A tool server in this process. seen: calls that came."""

    address = "http://stand.in/mcp"

    def __init__(self, label: str | None = None, name: str = "place") -> None:
        self.label = label
        self.name = name
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.cancelled = threading.Event()
        self.fails = 0

    async def tools(self) -> tuple[str, list[ServerTool]]:
        if self.fails:
            self.fails -= 1
            raise ConnectionError("nobody there")
        return self.name, [ServerTool(name, f"About {name}.", SCHEMA) for name in NAMES]

    async def call(self, name: str, arguments: dict[str, Any]) -> CallResult:
        self.seen.append((name, arguments))
        if name == "weather":
            return CallResult(f"WARM in {arguments['city']}")
        if name == "broken":
            return CallResult(error="It broke.")
        if name == "again":
            return CallResult("ASK-AGAIN")
        if name == "long":
            return CallResult("long " * 10_000)
        if name == "huge":
            return CallResult("x" * (MOST_RESULT + 1))
        if name == "gone":
            raise ExceptionGroup("several", [RuntimeError("refused")])
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return CallResult("late")


@pytest.fixture(scope="module")
def place() -> StandIn:
    return StandIn()


@pytest.fixture(scope="module")
def server(place: StandIn) -> Iterator[RunningServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("core_apis.app.tool_servers", lambda given: started(place))
        client = functools.partial(ConversingClient, rows=SCRIPT)
        config = ServerConfig(uvicorn_log_level="warning", tool_servers=("http://stand.in/mcp",))
        with run_server(config, client=client, tokenizer=make_tokenizer(TEMPLATE), max_model_len=8192) as running:
            yield running


def started(*connections: Connection, call_s: float = 0.2) -> ToolServers:
    servers = ToolServers(connections, call_s=call_s)
    servers.start()
    return servers


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def post(server: RunningServer, **body: Any) -> httpx.Response:
    return server.http.post("/v1/responses", json={"model": "fake-model", "tools": [MCP], **body})


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def text(response: dict[str, Any]) -> str:
    return "".join(item["content"][0]["text"] for item in response["output"] if item["type"] == "message")


def test_a_call_runs_and_the_model_reads_its_result(server: RunningServer, place: StandIn) -> None:
    place.seen.clear()
    response = post(server, input="ASK-ONE").json()
    valid(response)
    assert response["status"] == "completed"
    assert kinds(response) == ["mcp_list_tools", "reasoning", "mcp_call", "message"]
    listed, _, called, _ = response["output"]
    assert [tool["name"] for tool in listed["tools"]] == list(NAMES) and listed["tools"][0]["input_schema"] == SCHEMA
    told = {name: called[name] for name in ("server_label", "name", "status", "output", "error")}
    assert told == {
        "server_label": "place",
        "name": "weather",
        "status": "completed",
        "output": "WARM in Bonn",
        "error": None,
    }
    assert text(response) == "It is warm." and place.seen == [("weather", {"city": "Bonn"})]
    alone = post(server, input="ASK-ONE", tools=[]).json()  # without tools the call is text, and one run
    assert response["usage"]["input_tokens"] > 2 * alone["usage"]["input_tokens"]


@pytest.mark.parametrize("ask", ["ASK-ONE", "ASK-TWO", "Hi"])
@pytest.mark.parametrize("store", [True, False])
def test_a_stream_adds_up_to_the_whole_answer(server: RunningServer, ask: str, store: bool) -> None:
    whole = post(server, input=ask, store=store).json()
    stream = post(server, input=ask, store=store, stream=True)
    response = added_up(parsed(stream.text))
    changing = {"id": None, "call_id": None}
    assert [{**item, **changing} for item in response["output"]] == [{**item, **changing} for item in whole["output"]]
    for name in ("input_tokens", "output_tokens"):
        assert response["usage"][name] == whole["usage"][name]
    if store:
        assert server.http.get(f"/v1/responses/{response['id']}").json()["output"] == response["output"]


def test_the_official_client_reads_every_event(server: RunningServer) -> None:
    tool: Any = {**MCP, "server_url": ""}  # the client's type demands a URL
    with server.openai().responses.stream(model="fake-model", input="ASK-ONE", tools=[tool]) as stream:
        seen = [event.type for event in stream]
        final = stream.get_final_response()
    order = [kind for kind in seen if ".mcp_" in kind and "delta" not in kind]
    assert order == [
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]
    assert final.output_text == "It is warm."


def test_a_failed_call_is_told_to_the_model(server: RunningServer) -> None:
    rows = [
        ("ASK-HANGS", "within 0.2 s", "It hung."),
        ("ASK-HUGE", "expected at most 1048576", "It was too large."),
        ("ASK-GONE", "RuntimeError: refused", "It is gone."),
    ]
    for ask, reason, answer in rows:
        response = post(server, input=ask).json()
        valid(response)
        called = response["output"][1]
        assert called["status"] == "failed" and called["output"] is None, ask
        assert reason in called["error"]["content"][0]["text"] and text(response) == answer


def test_calls_beyond_the_limit_do_not_run(server: RunningServer, place: StandIn) -> None:
    for most, expected in ((1, 1), (3, 3), (None, 16)):
        place.seen.clear()
        response = post(server, input="ASK-AGAIN", max_tool_calls=most).json()
        assert len(place.seen) == expected and kinds(response).count("mcp_call") == expected
        assert response["status"] == "completed" and kinds(response)[-1] == "message"
    place.seen.clear()
    response = post(server, input="ASK-TWO", max_tool_calls=1).json()
    first, second = (item for item in response["output"] if item["type"] == "mcp_call")
    assert first["status"] == "completed" and "max_tool_calls" in second["error"]["content"][0]["text"]
    assert len(place.seen) == 1


def test_a_call_of_the_client_ends_the_response(server: RunningServer) -> None:
    mine = {"type": "function", "name": "mine", "parameters": SCHEMA}
    first = post(server, input="ASK-BOTH", tools=[MCP, mine]).json()
    assert kinds(first) == ["mcp_list_tools", "mcp_call", "function_call"] and first["status"] == "completed"
    assert first["output"][1]["output"] == "WARM in Bonn"
    given = [{"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "WARM in Bonn"}]
    by_id = post(server, input=given, tools=[MCP, mine], previous_response_id=first["id"]).json()
    items = [{"role": "user", "content": "ASK-BOTH"}, *first["output"], *given]
    by_items = post(server, input=items, tools=[MCP, mine]).json()
    assert text(by_id) == text(by_items) == "It is warm."
    assert by_id["usage"]["input_tokens"] == by_items["usage"]["input_tokens"]


def test_tokens_are_counted_over_all_runs(server: RunningServer) -> None:
    whole = post(server, input="ASK-ONE").json()["usage"]["output_tokens"]
    for limit in (5, whole - 3):
        response = post(server, input="ASK-ONE", max_output_tokens=limit).json()
        valid(response)
        assert response["status"] == "incomplete" and response["usage"]["output_tokens"] == limit
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_in_the_background(server: RunningServer, place: StandIn) -> None:
    begun = post(server, input="ASK-ONE", background=True).json()
    assert begun["status"] in ("queued", "in_progress")
    deadline = time.monotonic() + 10
    while (response := server.http.get(f"/v1/responses/{begun['id']}").json())["status"] != "completed":
        assert time.monotonic() < deadline and response["status"] in ("queued", "in_progress")
        time.sleep(0.01)
    assert text(response) == "It is warm."


def test_a_choice_that_forces_a_call_counts_once() -> None:
    offered = [ToolServer("place", (ServerTool("weather", "", SCHEMA),))]
    named: Any = {"type": "mcp", "server_label": "place", "name": "weather"}
    some: Any = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    function = {"type": "function", "function": {"name": "place__weather"}}
    assert chat_tools([MCP], named, offered).choice == function

    def later(choice: Any, *, auto: bool = True, calls: bool = True) -> Any:
        tools = chat_tools([MCP], choice, offered)
        body = ResponsesRequest(tool_choice=choice, max_output_tokens=9, min_tokens=5)
        continue_body(body, tools, Continued([], calls, 3), auto=auto)
        assert (body.max_output_tokens, body.min_tokens) == (3, None)
        return tools.choice

    assert [later(choice) for choice in (None, "auto", "none")] == [None, "auto", "none"]
    for choice in ("required", named, some):
        assert later(choice) == "auto" and later(choice, auto=False) == "none" and later(choice, calls=False) == "none"
    allowed = {**some, "mode": "auto"}
    assert later(allowed)["allowed_tools"] == {"mode": "auto", "tools": [function]}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"tools": [{**MCP, "server_url": "http://evil"}]}, "only the operator names servers"),
        ({"tools": [{**MCP, "headers": {"a": "b"}}]}, "tools[0].headers is not served"),
        ({"tools": [{**MCP, "server_label": "plaice"}]}, "Did you mean 'place'?"),
        ({"tools": [{**MCP, "allowed_tools": ["wether"]}]}, "Did you mean 'weather'?"),
        ({"tools": [{**MCP, "allowed_tools": {"read_only": True}}]}, "allowed_tools.read_only is not served"),
        ({"tools": [{**MCP, "require_approval": "always"}]}, "asks for no approvals"),
        ({"tools": [{**MCP, "alowed_tools": []}]}, "Did you mean 'allowed_tools'?"),
        ({"tools": [MCP, MCP]}, "names the tool server 'place' again"),
        ({"max_tool_calls": 17}, "expected a whole number from 1 to 16"),
        ({"max_tool_calls": "many"}, "max_tool_calls is many"),
        ({"timings": True}, "timings is about one run of the model"),
        ({"session": "s"}, "A session's turn is one run"),
        ({"input": [{"type": "mcp_call", "id": "a", "name": "b", "arguments": "{}"}]}, "input[0].server_label"),
    ],
)
def test_what_is_refused(server: RunningServer, body: dict[str, Any], told: str) -> None:
    answer = post(server, **{"input": "Hi", **body})
    assert answer.status_code == 400 and told in answer.json()["error"]["message"]


def test_allowed_tools_alone_are_shown(server: RunningServer) -> None:
    tool = {**MCP, "allowed_tools": {"tool_names": ["weather"]}, "require_approval": "never"}
    response = post(server, input="ASK-ONE", tools=[tool]).json()
    assert [each["name"] for each in response["output"][0]["tools"]] == ["weather"] and text(response) == "It is warm."


def test_a_client_that_leaves_ends_its_call(place: StandIn) -> None:
    async def leave() -> None:
        servers = ToolServers([place], call_s=60)
        await asyncio.to_thread(servers.start)
        place.cancelled.clear()
        work = asyncio.ensure_future(servers.call("place", "hangs", "{}"))
        while ("hangs", {}) not in place.seen:
            await asyncio.sleep(0.001)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert await asyncio.to_thread(place.cancelled.wait, 5)
        await servers.close()

    asyncio.run(leave())


@pytest.mark.parametrize("how", ["stream", "whole", "background"])
def test_a_response_that_ends_early_ends_its_call(how: str) -> None:
    place = StandIn()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("core_apis.app.tool_servers", lambda given: started(place, call_s=60))
        client = functools.partial(ConversingClient, rows=SCRIPT)
        with run_server(client=client, tokenizer=make_tokenizer(TEMPLATE), max_model_len=4096) as server:
            body = {"input": "ASK-HANGS", "tools": [MCP], "stream": how == "stream", "background": how == "background"}
            if how == "background":
                begun = server.http.post("/v1/responses", json=body).json()
                wait_for(lambda: place.seen)
                ended = server.http.post(f"/v1/responses/{begun['id']}/cancel").json()
                assert ended["status"] == "cancelled"
            elif how == "stream":
                with server.http.stream("POST", "/v1/responses", json=body) as answer:
                    next(line for line in answer.iter_lines() if "mcp_call.in_progress" in line)
                    wait_for(lambda: place.seen)
            else:
                data = json.dumps(body).encode()
                head = "POST /v1/responses HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                port = httpx.URL(server.url).port
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
                    wait_for(lambda: place.seen)
            assert place.cancelled.wait(5)
            assert text(post(server, input="ASK-ONE").json()) == "It is warm."


def test_an_engine_that_dies_between_runs_fails_the_response(server: RunningServer) -> None:
    outputs = PromptRun._outputs

    async def dying(run: PromptRun) -> AsyncGenerator[PromptOutput, None]:
        if run.again:
            raise EngineDeadError("The engine died.")
        async for item in outputs(run):
            yield item

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PromptRun, "_outputs", dying)
        events = parsed(post(server, input="ASK-ONE", stream=True).text)
        whole = post(server, input="ASK-ONE")
    assert events[-1]["type"] == "response.failed" and whole.status_code >= 500
    last = events[-1]["response"]["output"][-1]
    assert last["type"] == "mcp_call" and last["output"] == "WARM in Bonn"
    assert text(post(server, input="ASK-ONE").json()) == "It is warm."


def test_a_result_that_exceeds_the_context_fails_the_response(server: RunningServer) -> None:
    answer = post(server, input="ASK-LONG")
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
    streamed = parsed(post(server, input="ASK-LONG", stream=True).text)[-1]
    assert streamed["type"] == "response.failed" and streamed["response"]["output"][-1]["type"] == "mcp_call"

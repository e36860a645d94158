"""OpenAI's official client against /v1/responses: its types are the oracle for every answer and event."""

import asyncio
import functools
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from core_apis.responses.kept_items import mentions_items
from core_apis.responses.reasoning import sealed
from core_config.served.server_config import ServerConfig
from core_formats.server_limits import ServerLimits
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import ANSWERS, make_tokenizer
from tests.apis.responses.checked import added_up, parsed, valid
from tests.apis.scripted_engine import ConversingClient

TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}{{ '\\n' }}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content }}"
    "{{ '\\n</think>\\n\\n' }}{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '<tool_call>\\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' + c.function.arguments + '}\\n</tool_call>' }}"
    "{% endfor %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOOLS: list[Any] = [
    {"type": "function", "name": "weather", "description": "Of a city.", "parameters": {"type": "object"}},
    {"type": "custom", "name": "apply_patch", "description": "Edits."},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Others.",
        "tools": [{"type": "function", "name": "close", "parameters": {"type": "object"}}],
    },
]
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin\\n\\"x\\""}}\n</tool_call>\n'
    '<tool_call>\n{"name": "agents__close", "arguments": {}}\n</tool_call>'
)
SCRIPT = [
    ("ASK-THINK", "<think>\nLet me see.\n</think>\n\nIt is 42."),
    ("ASK-CALL", f"<think>\nHm.\n</think>\n\n{CALLS}"),
    ("RESULT", "It is warm."),
]
ASKS = ["Hi", "ASK-THINK", "ASK-CALL"]
UNREADABLE = {"type": "json_schema", "name": "x", "schema": {"type": "string", "pattern": "(a"}}
ITEM = TypeAdapter[Any](ResponseItem)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    config = ServerConfig(uvicorn_log_level="warning")
    client = functools.partial(ConversingClient, rows=SCRIPT)
    with run_server(config, client=client, tokenizer=make_tokenizer(TEMPLATE), max_model_len=4096) as running:
        yield running


def post(server: RunningServer, **body: Any) -> httpx.Response:
    return server.http.post("/v1/responses", json={"model": "fake-model", **body})


def told(response: dict[str, Any]) -> dict[str, Any]:
    """What two answers to the same request have in common."""
    changing = ("id", "created_at", "completed_at")
    output = [{**item, "id": None, "call_id": None} for item in response["output"]]
    return {name: value for name, value in response.items() if name not in changing} | {"output": output}


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("summary", [None, "auto"])
def test_streams_add_up_to_the_whole_answer(server: RunningServer, ask: str, summary: str | None) -> None:
    body = {"input": ask, "reasoning": {"summary": summary}, "include": ["reasoning.encrypted_content"], "tools": TOOLS}
    whole = post(server, **body).json()
    valid(whole)
    stream = post(server, **body, stream=True)
    assert stream.headers["content-type"].startswith("text/event-stream")
    response = added_up(parsed(stream.text))
    response["usage"]["output_tokens_details"] = whole["usage"]["output_tokens_details"]
    assert told(response) == told(whole)
    if ask != "Hi":
        reasoning = whole["output"][0]
        assert ("content" in reasoning) == (summary is None) and bool(reasoning["summary"]) == bool(summary)
        assert reasoning["encrypted_content"].startswith("core1:")


def test_the_official_client_streams(server: RunningServer) -> None:
    client = server.openai()
    with client.responses.stream(model="fake-model", input="ASK-CALL", tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    reasoning, weather, patch, close = final.output
    assert reasoning.type == "reasoning" and reasoning.content and reasoning.content[0].text == "Hm."
    assert weather.type == "function_call" and (weather.name, weather.arguments) == ("weather", '{"city": "Köln"}')
    assert patch.type == "custom_tool_call" and (patch.name, patch.input) == ("apply_patch", '*** Begin\n"x"')
    assert close.type == "function_call" and (close.namespace, close.name) == ("agents", "close")
    assert client.responses.create(model="fake-model", input="Hi").output_text == ANSWERS[0]


def test_a_loop_with_tools_by_items_and_by_id(server: RunningServer) -> None:
    create = functools.partial(server.openai().responses.create, model="fake-model", tools=TOOLS)
    first = create(input="ASK-CALL")
    outputs: list[Any] = []
    for item in first.output[1:]:
        kind = f"{item.type}_output"
        outputs.append({"type": kind, "call_id": getattr(item, "call_id"), "output": "RESULT"})  # noqa: B009
    given = [{"role": "user", "content": "ASK-CALL"}, *(item.to_dict() for item in first.output), *outputs]
    references = [{"type": "item_reference", "id": item.id} for item in first.output]
    by_items = create(input=given)
    by_id = create(input=outputs, previous_response_id=first.id)
    by_reference = create(input=[given[0], *references, *outputs])
    assert by_items.output_text == by_id.output_text == by_reference.output_text == "It is warm."
    counts = [answer.usage.input_tokens for answer in (by_items, by_id, by_reference) if answer.usage]
    assert len(set(counts)) == 1
    items = server.openai().responses.input_items
    listed = list(items.list(by_id.id, order="asc", limit=2))  # the client asks for page after page
    calls = ["function_call", "custom_tool_call", "function_call"]
    assert [item.type for item in listed] == ["message", "reasoning", *calls, *(f"{kind}_output" for kind in calls)]
    for item in listed:
        ITEM.validate_python(item.to_dict())
    assert [item.id for item in items.list(by_id.id)] == [item.id for item in reversed(listed)]


def test_sealed_reasoning_is_in_the_next_prompt(server: RunningServer) -> None:
    hidden = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed("a" * 100)}
    more = post(server, input=[{"role": "user", "content": "Hi"}, hidden], store=False).json()
    less = post(server, input=[{"role": "user", "content": "Hi"}], store=False).json()
    assert more["usage"]["input_tokens"] > less["usage"]["input_tokens"] + 100


def test_what_the_request_set_is_repeated(server: RunningServer) -> None:
    response = post(
        server,
        input="Hi",
        instructions="Be brief.",
        metadata={"a": "b"},
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=3,
        reasoning={"effort": "low"},
        text={"verbosity": "low"},
        user="me",
        store=False,
        parallel_tool_calls=False,
        service_tier="flex",
        truncation="disabled",
        prompt_cache_key="k",
    ).json()
    valid(response)
    expected = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 3,
        "reasoning": {"effort": "low", "summary": None},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "user": "me",
        "store": False,
        "parallel_tool_calls": False,
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
    }
    assert {name: response[name] for name in expected} == expected
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 2


def test_logprobs_are_those_of_the_message(server: RunningServer) -> None:
    body = {"input": "ASK-THINK", "include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": True}
    response = added_up(parsed(post(server, **body).text))
    (part,) = response["output"][1]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]).decode() == part["text"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])


def test_kept_streams_can_be_read_again(server: RunningServer) -> None:
    stream = post(server, input="ASK-CALL", tools=TOOLS, stream=True).text
    events = parsed(stream)
    response_id = events[-1]["response"]["id"]
    path = f"/v1/responses/{response_id}"
    assert server.http.get(path).json() == events[-1]["response"]
    assert server.http.get(path, params={"stream": "true"}).text == stream
    assert parsed(server.http.get(path, params={"stream": "true", "starting_after": 4}).text) == events[5:]
    assert server.http.get(path, params={"stream": "true", "starting_after": 10**6}).text == ""
    for query, param in (
        ({"stream": "maybe"}, "stream"),
        ({"stream": "true", "starting_after": "x"}, "starting_after"),
    ):
        refused = server.http.get(path, params=query)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    whole = post(server, input="Hi").json()
    assert server.http.get(f"/v1/responses/{whole['id']}", params={"stream": "true"}).status_code == 400


def test_a_response_is_deleted_once(server: RunningServer) -> None:
    client = server.openai()
    response = client.responses.create(model="fake-model", input="Hi")
    assert client.responses.retrieve(response.id) == response
    assert server.http.delete(f"/v1/responses/{response.id}").json() == {
        "id": response.id,
        "object": "response",
        "deleted": True,
    }
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="There is no response"):
            call(response.id)
    with pytest.raises(openai.NotFoundError, match="Send the whole conversation") as error:
        client.responses.create(model="fake-model", input="Hi", previous_response_id=response.id)
    assert error.value.param == "previous_response_id"


def test_store_false_keeps_nothing(server: RunningServer) -> None:
    for stream in (False, True):
        answer = post(server, input="Hi", store=False, stream=stream)
        response = parsed(answer.text)[-1]["response"] if stream else answer.json()
        assert server.http.get(f"/v1/responses/{response['id']}").status_code == 404


def wait_for(server: RunningServer, response_id: str, status: str) -> dict[str, Any]:
    deadline = time.monotonic() + 10
    while True:
        response: dict[str, Any] = server.http.get(f"/v1/responses/{response_id}").json()
        if response["status"] == status:
            return response
        assert response["status"] in ("queued", "in_progress") and time.monotonic() < deadline, response
        time.sleep(0.01)


def test_background_goes_on_alone(server: RunningServer) -> None:
    response = post(server, input="ASK-THINK", background=True).json()
    assert valid(response).status == "queued"
    final = wait_for(server, response["id"], "completed")
    assert valid(final).output_text == "It is 42." and final["background"] is True


def test_a_background_stream_outlives_its_reader(server: RunningServer) -> None:
    with server.http.stream(
        "POST", "/v1/responses", json={"input": "SLOW", "background": True, "stream": True}
    ) as answer:
        start = next(answer.iter_text())
    first = parsed(start[: start.rindex("\n\n") + 2])
    assert [event["type"] for event in first[:3]] == ["response.created", "response.queued", "response.in_progress"]
    response_id = first[0]["response"]["id"]
    rest = server.http.get(f"/v1/responses/{response_id}?stream=true&starting_after={len(first) - 1}").text
    assert added_up([*first, *parsed(rest)])["status"] == "completed"


def test_a_reference_is_found_wherever_it_stands_in_a_large_body(server: RunningServer) -> None:
    first = server.openai().responses.create(model="fake-model", input="Hi")
    for padding in (0, 1 << 16, (1 << 20) - 8, 3 << 20):  # the third lies across the border of two pieces
        body = b'{"input":"Hi",' + b" " * padding + f'"previous_response_id":"{first.id}"}}'.encode()
        answer = server.http.post("/v1/responses", content=body, headers={"content-type": "application/json"})
        items = server.http.get(f"/v1/responses/{answer.json()['id']}/input_items").json()["data"]
        assert len(items) == 3, padding  # what was asked before, its answer, and what is asked now
    assert mentions_items(b"x" * 30 + b"previous_resp", b"onse_id")


def test_cancel_ends_the_work(server: RunningServer) -> None:
    client = server.openai()
    response = client.responses.create(model="fake-model", input="SLOW", background=True)
    time.sleep(0.1)
    cancelled = client.responses.cancel(response.id)
    assert cancelled.status == "cancelled" and cancelled.output[0].status == "incomplete"
    server.wait_idle(1)
    assert client.responses.cancel(response.id) == client.responses.retrieve(response.id) == cancelled
    at_once = client.responses.create(model="fake-model", input="SLOW", background=True)
    with pytest.raises(openai.ConflictError, match="has not ended yet"):
        client.responses.create(model="fake-model", input="Hi", previous_response_id=at_once.id)
    client.responses.delete(at_once.id)
    server.wait_idle(1)
    with pytest.raises(openai.BadRequestError, match="not made in the background"):
        client.responses.cancel(client.responses.create(model="fake-model", input="Hi").id)


def test_a_failure_is_told_in_the_stream_and_by_status(server: RunningServer) -> None:
    response = added_up(parsed(post(server, input="FAIL", stream=True).text))
    assert response["status"] == "failed" and "not finite" in response["error"]["message"]
    assert post(server, input="FAIL").status_code == 500
    background = post(server, input="FAIL", background=True).json()
    assert wait_for(server, background["id"], "failed")["error"]["code"] == "server_error"


def test_a_client_that_goes_ends_the_work(server: RunningServer) -> None:
    with server.http.stream("POST", "/v1/responses", json={"input": "SLOW", "stream": True}) as answer:
        start = next(answer.iter_text())
    server.wait_idle(2)
    response_id = parsed(start[: start.rindex("\n\n") + 2])[0]["response"]["id"]
    assert wait_for(server, response_id, "cancelled")["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize(
    ("change", "param", "told"),
    [
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt", "send instructions and input"),
        ({"input": None}, "input", "input is missing"),
        ({"input": []}, "input", "no items"),
        ({"input": 5}, "input", "Expected"),
        ({"include": ["all"]}, "include", "names 'all'"),
        ({"store": False, "background": True}, "store", "background needs store"),
        ({"truncation": "auto", "input": "a" * 9000}, "input", "tokens"),
        ({"truncation": "some"}, "truncation", "Invalid enum"),
        ({"metadata": {"a": "b" * 600}}, "metadata", "length"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "at most 16"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "reasoning.effort is 'huge'"),
        ({"tools": [{**TOOLS[0], "parameters": {"type": "list"}}]}, "tools", "tools[0].parameters is no JSON schema"),
        ({"tools": [{**TOOLS[0], "name": "a b"}]}, "tools", "tools[0].name is 'a b'"),
        ({"tools": [{**TOOLS[0], "name": f"t{i}"} for i in range(2000)]}, "tools", "tools has 2000 entries"),
        ({"tools": {"weather": TOOLS[0]}}, "tools", "$.tools"),
        ({"text": {"format": UNREADABLE}}, "text.format", "text.format cannot be served"),
        ({"temperature": -1}, "temperature", "temperature"),
        ({"input": "a" * 9000}, "input", "tokens"),
        ({"input": [{"type": "web_search_call"}]}, "input", "web_search_call"),
        ({"tools": [{"type": "web_search"}]}, "tools", "web_search"),
        ({"tools": TOOLS, "tool_choice": "weather"}, "tool_choice", "weather"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format", "yaml"),
    ],
)
def test_refusals_name_the_field(server: RunningServer, change: dict[str, Any], param: str, told: str) -> None:
    answer = post(server, **{"input": "Hi", **change})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and told in error["message"], error
    assert error["type"] == "invalid_request_error"


def test_truncation_leaves_out_the_beginning(server: RunningServer) -> None:
    items = [{"role": "developer", "content": "D" * 100}]
    for text in ("A", "B", "C"):
        items += [{"role": "user", "content": text * 1500}, {"role": "assistant", "content": "yes"}]
    items.append({"role": "user", "content": "E"})
    assert post(server, input=items).json()["error"]["code"] == "context_length_exceeded"
    short = post(server, input=[items[0], *items[3:]]).json()
    assert short["usage"]["input_tokens"] > 3000
    cut = post(server, input=items, truncation="auto").json()
    assert cut["usage"] == short["usage"] and cut["truncation"] == "auto"


def test_unknown_fields_are_told_once(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert post(server, input="Hi", brand_new={"a": 1}, client_metadata={}, max_tool_calls=3).status_code == 200
    found = [record.getMessage() for record in caplog.records if "brand_new" in record.getMessage()]
    assert len(found) == 1 and "client_metadata" not in caplog.text


def test_a_large_body_goes_another_way_to_the_same_answer(server: RunningServer) -> None:
    tail = {"type": "x", "padding": "y" * 20_000}
    body = {"input": "ASK-THINK", "client_metadata": tail, "stream": True}
    assert added_up(parsed(post(server, **body).text))["output"][1]["content"][0]["text"] == "It is 42."


def test_each_key_has_its_own_responses() -> None:
    config = ServerConfig(uvicorn_log_level="critical", api_keys=("one", "two"))
    with run_server(config) as server:
        one, two = server.openai(api_key="one"), server.openai(api_key="two")
        response = one.responses.create(model="fake-model", input="Hi")
        item = {"type": "item_reference", "id": response.output[0].id}
        assert one.responses.retrieve(response.id).id == response.id
        assert one.responses.create(model="fake-model", input=[item]).id  # type: ignore[list-item]
        with pytest.raises(openai.NotFoundError):
            two.responses.retrieve(response.id)
        with pytest.raises(openai.NotFoundError):
            two.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            two.responses.create(model="fake-model", input="Hi", previous_response_id=response.id)
        with pytest.raises(openai.NotFoundError):
            two.responses.create(model="fake-model", input=[item])  # type: ignore[list-item]


def test_two_clients_delete_one_response(server: RunningServer) -> None:
    made = post(server, input="SLOW", background=True).json()
    path = f"{server.url}/v1/responses/{made['id']}"

    async def deleted() -> list[int]:
        async with httpx.AsyncClient() as http:
            answers = await asyncio.gather(*[http.delete(path) for _ in range(3)])
        return [answer.status_code for answer in answers]

    assert sorted(asyncio.run(deleted())) == [200, 404, 404]


def test_background_responses_of_one_key_leave_room_for_others() -> None:
    limits = ServerLimits(max_stored_responses=4)
    config = ServerConfig(uvicorn_log_level="critical", api_keys=("one", "two"), limits=limits)
    body = {"input": "SLOW", "background": True}
    with run_server(config) as server:
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        statuses = [server.http.post("/v1/responses", json=body, headers=one).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert server.http.post("/v1/responses", json=body, headers=two).status_code == 200


def test_pages_of_the_items_of_a_conversation(server: RunningServer) -> None:
    items = [{"role": "user", "content": f"text {number}"} for number in range(30)]
    first = post(server, input=items).json()
    made = post(server, input="more", previous_response_id=first["id"]).json()
    path = f"/v1/responses/{made['id']}/input_items"
    page = server.http.get(path, params={"order": "asc", "limit": 3}).json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["text 0", "text 1", "text 2"]
    rest = server.http.get(path, params={"order": "asc", "limit": 100, "after": page["last_id"]}).json()
    assert len(rest["data"]) == 27 + len(first["output"]) + 1 and not rest["has_more"]


def test_fields_that_nobody_reads_have_a_limit(server: RunningServer) -> None:
    item = {"role": "user", "content": "hi", "junk": "x" * 20_000}
    refused = post(server, input=[item])
    assert refused.status_code == 400 and "junk" in refused.json()["error"]["message"]
    item = {"role": "user", "content": [{"type": "input_text", "text": "hi", "junk": "x" * 20_000}]}
    assert post(server, input=[item]).status_code == 400
    assert post(server, input=[{**item, "content": "hi"}], store=False).status_code == 200


def test_a_server_that_keeps_nothing() -> None:
    config = ServerConfig(uvicorn_log_level="warning", limits=ServerLimits(max_stored_responses=0))
    with run_server(config) as server:
        answer = post(server, input="Hi").json()
        assert answer["store"] is False and server.http.get(f"/v1/responses/{answer['id']}").status_code == 404
        for name in ("store", "background"):
            refused = post(server, input="Hi", **{name: True})
            assert refused.status_code == 400 and refused.json()["error"]["param"] == name


def test_what_runs_in_the_background_ends_with_the_server() -> None:
    with run_server(ServerConfig(uvicorn_log_level="warning")) as server:
        post(server, input="SLOW", background=True)
        fake = server.fake
    assert not fake.live and fake.aborted

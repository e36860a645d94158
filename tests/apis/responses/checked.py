"""Streams and responses held against OpenAI's own types, and streams added up by hand."""

import json
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

EVENT = TypeAdapter[Any](ResponseStreamEvent)
ENDS = ("response.completed", "response.incomplete", "response.failed")
TEXT_FIELDS = {
    "response.output_text": ("content", "text"),
    "response.reasoning_text": ("content", "text"),
    "response.reasoning_summary_text": ("summary", "text"),
    "response.function_call_arguments": (None, "arguments"),
    "response.custom_tool_call_input": (None, "input"),
    "response.mcp_call_arguments": (None, "arguments"),
}


def parsed(stream: str) -> list[dict[str, Any]]:
    """The events of a stream, each valid, with the name that its block has."""
    events: list[dict[str, Any]] = []
    for block in stream.split("\n\n"):
        if not block:
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event)
        events.append(event)
    return events


def added_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response at the end of a stream, once everything that was told on the way has been held against it."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    first = kinds.index("response.in_progress")
    assert kinds[:first] in (["response.created"], ["response.created", "response.queued"])
    assert kinds[-1] in ENDS and not set(kinds[:-1]) & set(ENDS)
    output: list[dict[str, Any]] = []
    told: dict[tuple[int, str], str] = {}
    is_open = False
    for event in events[first + 1 : -1]:
        kind, index = event["type"], event["output_index"]
        if kind == "response.output_item.added":
            assert not is_open and index == len(output)
            assert event["item"].get("status") == (None if event["item"]["type"] == "mcp_list_tools" else "in_progress")
            item_id = event["item"]["id"]
            is_open = True
            continue
        assert is_open and index == len(output)
        if kind == "response.output_item.done":
            assert event["item"]["id"] == item_id
            output.append(event["item"])
            is_open = False
            continue
        assert event["item_id"] == item_id
        name, _, what = kind.rpartition(".")
        if what == "delta":
            told[index, name] = told.get((index, name), "") + event["delta"]
        elif name in TEXT_FIELDS:
            _, field = TEXT_FIELDS[name]
            assert event[field] == told.get((index, name), "")
    assert not is_open
    response: dict[str, Any] = events[-1]["response"]
    assert response["output"] == output
    for (index, name), text in told.items():
        holder, field = TEXT_FIELDS[name]
        item = output[index]
        found = item[field] if holder is None else "".join(part[field] for part in item[holder])
        assert found == text
    valid(response)
    return response


def valid(response: dict[str, Any]) -> Response:
    """The response as OpenAI's type."""
    return Response.model_validate(response)

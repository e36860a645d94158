"""Any order of an answer's events becomes a stream that OpenAI's types take, and that adds up to its last response."""

import random
from typing import Any

import msgspec
import pytest

from core.api.errors import EngineDeadError
from core_apis.protocol.response_objects import ResponseObject
from core_apis.responses.output_items import OutputItems
from core_apis.responses.tools import OfferedTool
from core_apis.responses.writer import ResponseWriter
from core_formats.answers.events import AnswerEvent, ArgumentsDelta, CallEnd, CallStart, ReasoningDelta, TextDelta
from core_frontend.api.outputs import CompletionOutput, RequestOutput
from tests.apis.responses.checked import added_up, parsed, valid

TOOLS = {
    "weather": OfferedTool("weather", "function"),
    "apply_patch": OfferedTool("apply_patch", "custom"),
    "agents__close": OfferedTool("close", "function", "agents"),
}


class Scripted:
    """Stands where `AnswerParser` stands: each push yields what is next."""

    def __init__(self, pushes: list[list[AnswerEvent]]) -> None:
        self.pushes = iter(pushes)
        self.reasoning_tokens = 3

    def push(self, completion: CompletionOutput) -> list[AnswerEvent]:
        return next(self.pushes)


def writer_of(pushes: list[list[AnswerEvent]], *, summarized: bool = False, sealed: bool = False) -> ResponseWriter:
    response = ResponseObject(id="resp_1", created_at=1, status="in_progress", model="m")
    items = OutputItems("resp_1", TOOLS, summarized=summarized, sealed=sealed)
    return ResponseWriter(response, Scripted(pushes), items, None)  # type: ignore[arg-type]


def streamed(pushes: list[list[AnswerEvent]], reason: str = "stop", **options: bool) -> dict[str, Any]:
    writer = writer_of(pushes, **options)
    blocks = writer.begin()
    for index in range(len(pushes)):
        ended = reason if index == len(pushes) - 1 else None
        completion = CompletionOutput(0, "", [1], finish_reason=ended)
        blocks += writer.push(RequestOutput("r", None, [1, 2], [completion], ended is not None))
    assert writer.ended
    return added_up(parsed(b"".join(blocks).decode()))


def without_ids(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**item, "id": None} for item in response["output"]]


def call(index: int, name: str, *parts: str, complete: bool = True) -> list[AnswerEvent]:
    deltas = [ArgumentsDelta(index, part) for part in parts]
    return [CallStart(index, f"call_{index}", name), *deltas, CallEnd(index, complete)]


def answer(seed: int) -> list[AnswerEvent]:
    """Items in any order, each in any number of pieces."""
    rng = random.Random(seed)
    events: list[AnswerEvent] = []
    calls = 0
    for _ in range(rng.randrange(6)):
        kind = rng.choice((TextDelta, ReasoningDelta, CallStart))
        pieces = [rng.choice(("a", "é🙂", " ", "\n\n", '{"x": 1}', "\u2028")) for _ in range(rng.randrange(1, 5))]
        if kind is CallStart:
            events += call(calls, rng.choice([*TOOLS, "unknown"]), *pieces)
            calls += 1
        else:
            events += [kind(piece) for piece in pieces]
    return events


@pytest.mark.parametrize("summarized", [False, True])
def test_any_answer_in_any_pieces(summarized: bool) -> None:
    for seed in range(60):
        events = answer(seed)
        rng = random.Random(seed)
        pushes: list[list[AnswerEvent]] = [[]]
        for event in events:
            if rng.random() < 0.5:
                pushes.append([])
            pushes[-1].append(event)
        in_pieces = streamed(pushes, summarized=summarized, sealed=seed % 2 == 0)
        whole = streamed([events], summarized=summarized, sealed=seed % 2 == 0)
        assert without_ids(in_pieces) == without_ids(whole)
        assert in_pieces["status"] == "completed"


def test_kinds_of_items() -> None:
    events = [ReasoningDelta("Hm."), TextDelta("\n\n"), *call(0, "weather", "{", "}"), TextDelta("\n")]
    events += [*call(1, "apply_patch", "*** Begin"), *call(2, "agents__close", "{}"), TextDelta("Done.")]
    output = streamed([events])["output"]
    kinds = ["reasoning", "function_call", "custom_tool_call", "function_call", "message"]
    assert [item["type"] for item in output] == kinds
    assert [item["id"].split("_")[0] for item in output] == ["rs", "fc", "ctc", "fc", "msg"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Hm."}] and output[0]["summary"] == []
    assert (output[1]["call_id"], output[1]["name"], output[1]["arguments"]) == ("call_0", "weather", "{}")
    assert (output[2]["call_id"], output[2]["input"]) == ("call_1", "*** Begin")
    assert (output[3]["namespace"], output[3]["name"]) == ("agents", "close")
    assert output[4]["content"] == [{"type": "output_text", "text": "Done.", "annotations": [], "logprobs": []}]
    assert {item["status"] for item in output} == {"completed"}


def test_white_space_is_text_only_beside_text() -> None:
    spaced = streamed(
        [[TextDelta("\n")], [TextDelta("Hi ")], [TextDelta("\n")], [ReasoningDelta("x")], [TextDelta(" ")]]
    )
    assert [item["type"] for item in spaced["output"]] == ["message", "reasoning"]
    assert spaced["output"][0]["content"][0]["text"] == "\nHi \n"


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_answer_without_items_is_a_message(text: str) -> None:
    events: list[AnswerEvent] = [TextDelta(text)] if text else []
    (item,) = streamed([events])["output"]
    assert item["content"][0]["text"] == text


@pytest.mark.parametrize(
    "events", [[TextDelta("Hello")], [ReasoningDelta("Hm")], call(0, "weather", '{"ci', complete=False), []]
)
def test_an_answer_that_is_cut(events: list[AnswerEvent]) -> None:
    response = streamed([events], reason="length")
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["completed_at"] is None
    assert [item["status"] for item in response["output"]] == ["incomplete"] * (1 if events else 0)


def test_a_failure_ends_the_item_and_the_response() -> None:
    writer = writer_of([[TextDelta("Hel")]])
    blocks = writer.begin()
    blocks += writer.push(RequestOutput("r", None, [1], [CompletionOutput(0, "", [1])], False))
    blocks += writer.fail(EngineDeadError("The engine process ended with signal 9."))
    response = added_up(parsed(b"".join(blocks).decode()))
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "The engine process ended with signal 9."}
    assert response["output"][0]["status"] == "incomplete"


def test_a_cancelled_response_has_no_last_event() -> None:
    writer = writer_of([[TextDelta("Hel")]])
    writer.begin()
    writer.push(RequestOutput("r", None, [1], [CompletionOutput(0, "", [1])], False))
    kinds = [event["type"] for event in parsed(b"".join(writer.end("cancelled")).decode())]
    assert kinds[-1] == "response.output_item.done"
    response = msgspec.to_builtins(writer.response)
    assert valid(response).status == "cancelled" and response["output"][0]["content"][0]["text"] == "Hel"


def test_usage_counts_reasoning() -> None:
    usage = streamed([[ReasoningDelta("a")], [TextDelta("b")]])["usage"]
    assert usage["output_tokens"] == 2 and usage["input_tokens"] == 2 and usage["total_tokens"] == 4
    assert usage["output_tokens_details"] == {"reasoning_tokens": 3}

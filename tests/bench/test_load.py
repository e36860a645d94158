"""One request of a load, against servers that write their streams in different ways."""

import json

import pytest

from core_commands.bench.load import Shape, send
from core_commands.bench.workload import Prompt
from core_commands.client.app_endpoint import AppEndpoint

SHAPE = Shape("/v1/completions", {}, {}, keeps_text=True)


def part(text, finish_reason=None):
    return {"choices": [{"text": text, "finish_reason": finish_reason}]}


def usage(tokens):
    return {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}}


async def answered(*chunks):
    async def app(scope, receive, send_message):
        await send_message({"type": "http.response.start", "status": 200, "headers": []})
        for chunk in chunks:
            data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
            await send_message({"type": "http.response.body", "body": data, "more_body": True})
        await send_message({"type": "http.response.body", "body": b""})

    return await send(AppEndpoint(app), SHAPE, SHAPE.body(Prompt("hi", 9)))


@pytest.mark.parametrize(
    "chunks, num_arrivals, num_tokens, text",
    [
        ([part("a b"), part("c d"), part("", "stop"), usage(4)], 2, 4, "a bc d"),
        ([part("a b"), part("c d", "stop")], 2, 2, "a bc d"),  # no usage: a part is a token
        ([part("", "stop"), usage(1)], 1, 1, ""),  # nothing but its end, which is an answer too
        ([part("", "stop")], 1, 0, ""),
    ],
)
async def test_answers_are_counted_as_the_server_tells_them(chunks, num_arrivals, num_tokens, text):
    outcome = await answered(*chunks)
    assert (outcome.error, outcome.text, outcome.has_text) == ("", text, bool(text))
    assert (len(outcome.arrivals), outcome.output_tokens) == (num_arrivals, num_tokens)
    assert outcome.sent <= outcome.arrivals[0] <= outcome.arrivals[-1] <= outcome.ended


@pytest.mark.parametrize(
    "chunks, expected",
    [
        ([part("a")], "before the answer was whole"),
        ([part("a"), {"error": {"message": "no memory"}}], "no memory"),
        ([{"choices": 5}], "no chunk"),
        ([], "before the answer was whole"),
    ],
)
async def test_a_stream_that_breaks_off_is_a_failure(chunks, expected):
    assert expected in (await answered(*chunks)).error

"""Every size that comes from outside has a limit, which is told by name before any work is done."""

import asyncio
import http.client
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from subprocess import Popen
from typing import Any

import pytest
from fastapi import Request
from starlette.types import Message

from core.api.config import SchedulerConfig
from core.api.errors import RequestError
from core_apis.body import BodyRoom, read_body
from core_apis.prepare.helper import PreparationHelper
from core_config.served.server_config import ServerConfig
from core_formats.server_limits import ServerLimits
from tests.apis.conftest import RunningServer, run_server

LIMITS = ServerLimits(max_body_size=1 << 20, max_messages=20, max_list_length=50, max_request_tokens=2000)
COMPLETION: dict[str, Any] = {"prompt": "Hi", "max_tokens": 2}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
PADDING = "x" * 20_000  # a body with it is not small


@pytest.fixture(scope="module")
def limited() -> Iterator[RunningServer]:
    config = ServerConfig(uvicorn_log_level="warning", limits=LIMITS)
    with run_server(config, scheduler=SchedulerConfig(max_num_queued_reqs=8)) as running:
        yield running


def refusal(server: RunningServer, path: str, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    answer = server.http.post(path, json=body)
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize(
    ("change", "param", "argument"),
    [
        ({"stop": ["a"] * 51}, "stop", "--max-list-length"),
        ({"stop": "a" * 801}, "stop", "800 (16 times --max-list-length)"),
        ({"stop_token_ids": [5] * 51}, "stop_token_ids", "--max-list-length"),
        ({"bad_words": ["a"] * 51}, "bad_words", "--max-list-length"),
        ({"logit_bias": {str(i): 1 for i in range(51)}}, "logit_bias", "--max-list-length"),
        ({"allowed_token_ids": [5] * 500}, "allowed_token_ids", "more than there are tokens"),
        ({"user": "a" * 51}, "user", "at most 50"),
        ({"cache_salt": "a" * 51}, "cache_salt", "at most 50"),
        ({"n": 20, "max_tokens": 101}, "max_tokens", "--max-request-tokens"),
        ({"n": 10, "max_tokens": 20, "logprobs": 10}, "max_tokens", "--max-request-tokens"),
    ],
)
def test_lists_and_amounts(limited: RunningServer, change: dict[str, Any], param: str, argument: str) -> None:
    error = refusal(limited, "/v1/completions", COMPLETION | change)
    assert error["param"] == param and argument in error["message"]
    if "logprobs" in change:
        change = change | {"logprobs": True, "top_logprobs": 10}
    error = refusal(limited, "/v1/chat/completions", CHAT | change)
    assert error["param"] == param and argument in error["message"]


def test_messages(limited: RunningServer) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        error = refusal(limited, path, {"messages": CHAT["messages"] * 21})
        assert error["param"] == "messages" and "--max-messages" in error["message"]


@pytest.mark.parametrize("size", [15_000, 500_000])
def test_a_text_that_cannot_fit_is_not_tokenized(limited: RunningServer, size: int) -> None:
    """The larger one is refused for its characters alone, in a fraction of the time that its tokens would take."""
    text = "word " * (size // 5)
    for path, body in (
        ("/v1/completions", {"prompt": text}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
    ):
        error = refusal(limited, path, body)
        assert error["code"] == "context_length_exceeded"
        assert ("characters" if size > 100_000 else "tokens") in error["message"]


def test_the_end_of_a_long_text_is_enough_where_only_that_counts(limited: RunningServer) -> None:
    body = {"prompt": "word " * 100_000, "truncate_prompt_tokens": 7, "max_tokens": 1, "return_token_ids": True}
    answer = limited.http.post("/v1/completions", json=body).json()
    ids = limited.engine.tokenizer.encode("d word ", add_special_tokens=False)
    assert answer["choices"][0]["prompt_token_ids"] == ids


def test_more_prompts_than_may_ever_wait_are_no_matter_of_patience(limited: RunningServer) -> None:
    error = refusal(limited, "/v1/completions", COMPLETION | {"prompt": ["Hi"] * 9})
    assert error["param"] == "prompt" and "--max-num-queued-reqs" in error["message"]
    assert limited.http.post("/v1/completions", json=COMPLETION | {"prompt": ["Hi"] * 8}).status_code == 200


def test_bodies(limited: RunningServer) -> None:
    error = refusal(limited, "/v1/completions", {"prompt": "x" * (1 << 20)}, 413)
    assert "--max-body-size" in error["message"]

    def pieces() -> Iterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(17):
            yield b"x" * (1 << 16)

    answer = limited.http.post("/v1/completions", content=pieces(), headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_a_body_that_says_it_is_too_large_is_not_read(limited: RunningServer) -> None:
    connection = http.client.HTTPConnection(limited.url.removeprefix("http://"), timeout=10)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", str(1 << 40))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_all_bodies_together_have_a_limit_too() -> None:
    room = BodyRoom(1000)
    with room.body() as first, room.body() as second, room.body() as third, room.body() as fourth:
        for body in (first, second, third, fourth):
            body.add(b"x" * 1000)
        with room.body() as fifth, pytest.raises(RequestError, match="busy") as caught:
            fifth.add(b"x")
        assert caught.value.status == 503 and caught.value.retry_after
    assert room.num_bytes == 0


def test_what_ends_in_429_costs_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_server(scheduler=SchedulerConfig(max_num_queued_reqs=1)) as server:
        work: list[int] = []
        encode = server.engine.tokenizer.encode

        def counting(text: str, add_special_tokens: bool = True) -> list[int]:
            work.append(len(text))
            return encode(text, add_special_tokens)

        monkeypatch.setattr(server.engine.tokenizer, "encode", counting)
        with server.engine.queue.arriving():
            for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
                assert server.http.post(path, json=body).status_code == 429
                assert server.http.post(path, json=body | {"metadata": PADDING}).status_code == 429
        assert not work
        assert server.http.post("/v1/completions", json=COMPLETION).status_code == 200
        assert work


def test_large_bodies_are_answered_like_small_ones(limited: RunningServer) -> None:
    paths = {
        "/v1/completions": COMPLETION | {"prompt": ["Hi", "there"], "echo": True, "logprobs": 2, "seed": 1},
        "/v1/chat/completions": CHAT | {"logprobs": True, "top_logprobs": 1, "stop": ["zz"], "echo": True},
    }
    for path, body in paths.items():
        small, large = (limited.http.post(path, json=given).json() for given in (body, body | {"metadata": PADDING}))
        for answer in (small, large):
            del answer["id"], answer["created"]
        assert small == large and small["choices"]
    streams = [
        limited.http.post("/v1/chat/completions", json=CHAT | {"stream": True} | more).text
        for more in ({}, {"metadata": PADDING})
    ]
    assert streams[0].count("data: ") == streams[1].count("data: ") > 2
    text = "long " * 800
    answer = limited.http.post("/tokenize", json={"prompt": text, "add_special_tokens": False})
    assert answer.json()["tokens"] == limited.engine.tokenizer.encode(text, add_special_tokens=False)
    answer = limited.http.post("/detokenize", json={"tokens": answer.json()["tokens"] * 2})
    assert answer.json() == {"prompt": text * 2}


@pytest.mark.parametrize("padding", ["", PADDING])
def test_errors_are_the_same_wherever_a_body_is_read(limited: RunningServer, padding: str) -> None:
    assert refusal(limited, "/v1/completions", {"promt": padding}, 400)["code"] == "unknown_field"
    assert (
        refusal(limited, "/v1/completions", COMPLETION | {"model": "x", "metadata": padding}, 404)["param"] == "model"
    )
    assert refusal(limited, "/v1/completions", COMPLETION | {"temperature": -1, "metadata": padding})["param"]
    nested: Any = "x"
    for _ in range(sys.getrecursionlimit() - 100):  # libraries that other tests load raise it
        nested = [nested]
    body = CHAT | {"metadata": padding, "messages": [{"role": "user", "content": "Hi", "more": nested}]}
    assert "nested too deeply" in refusal(limited, "/v1/chat/completions", body)["message"]
    answer = limited.http.post("/v1/completions", content=b'{"metadata":' + b"[" * 100_000)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_json"


def test_a_helper_that_dies_is_replaced_and_nobody_notices(limited: RunningServer) -> None:
    body = COMPLETION | {"metadata": PADDING}
    first = _process(limited)
    first.kill()
    first.wait()
    assert limited.http.post("/v1/completions", json=body).status_code == 200
    assert _process(limited).pid != first.pid


def test_a_request_at_which_helpers_die_is_refused(limited: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    body = COMPLETION | {"metadata": PADDING}
    helper = _helper(limited)
    _process(limited)
    place = helper._place

    async def place_and_kill() -> Any:
        link = await place()
        assert helper.process is not None
        helper.process.kill()
        helper.process.wait()
        return link

    with monkeypatch.context() as patch:
        patch.setattr(helper, "_place", place_and_kill)
        assert refusal(limited, "/v1/completions", body, 503)["code"] == "server_busy"
    assert limited.http.post("/v1/completions", json=body).status_code == 200


def test_the_memory_of_the_helper_goes_with_it_when_nobody_needs_it(
    limited: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = _helper(limited)
    monkeypatch.setattr(helper, "lane", replace(helper.lane, idle_seconds=0.05))
    assert limited.http.post("/v1/completions", json=COMPLETION | {"metadata": PADDING}).status_code == 200
    process = helper.process
    assert process is None or process.wait(10) is not None


def test_clients_that_leave_do_not_confuse_the_helper(limited: RunningServer) -> None:
    """Their jobs end before the next one begins, so nobody gets another one's answer."""

    async def leave_and_ask() -> list[Any]:
        bodies = [json.dumps({"prompt": f"text {i}", "metadata": PADDING}).encode() for i in range(6)]
        tasks = [asyncio.ensure_future(limited.preparer.prepare("completion", body)) for body in bodies]
        await asyncio.sleep(0)
        for task in tasks[:5]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    *gone, last = asyncio.run_coroutine_threadsafe(leave_and_ask(), limited.loop).result(30)
    assert all(isinstance(result, asyncio.CancelledError) for result in gone)
    assert last.prompts[0].text == "text 5"


async def test_a_large_body_is_read_in_pieces_of_one_mib(limited: RunningServer) -> None:
    """A buffer that grows to 32 MB is moved again and again, each time for tens of milliseconds of the event loop."""
    parts = [b" " * 65_536] * 40 + [b'{"prompt": "the end"}']
    messages = [{"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts]

    async def receive() -> Message:
        return messages.pop(0)

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with BodyRoom(32 << 20).body() as body:
        pieces = await read_body(request, body)
        assert [len(piece) >> 20 for piece in pieces] == [1, 1, 0]
        assert b"".join(pieces) == b"".join(parts)
        first = pieces[0]
        preparing = limited.preparer.prepare("completion", *pieces)
        prepared = asyncio.run_coroutine_threadsafe(preparing, limited.loop).result(30)
    assert prepared.prompts[0].text == "the end"
    assert not first, "the bytes are freed although somebody still refers to them"


def _helper(server: RunningServer) -> PreparationHelper:
    return server.preparer.large


def _process(server: RunningServer) -> Popen[bytes]:
    """Return the process for large bodies; its start goes on after the first of them is answered."""
    deadline = time.monotonic() + 30
    while True:
        assert server.http.post("/v1/completions", json=COMPLETION | {"metadata": PADDING}).status_code == 200
        process = _helper(server).process
        if process is not None:
            return process
        assert time.monotonic() < deadline, "no process for large bodies"
        time.sleep(0.01)

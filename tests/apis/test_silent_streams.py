"""Streams that say something in silence (`--sse-keep-alive-interval`), and the log of answers."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer
from tests.apis.fake_engine import ANSWERS, FakeClient

Starter = Callable[..., Any]
INTERVAL = 0.05


class LateClient(FakeClient):
    """Gives its first token late: a long prompt is computed. `FAIL` in the prompt: it fails then."""

    async def run(self, request: Any) -> None:
        await asyncio.sleep(4 * INTERVAL)
        await super().run(request)


def quiet(**settings: Any) -> ServerConfig:
    return ServerConfig(uvicorn_log_level="warning", **settings)


def streamed(running: RunningServer, prompt: str, seconds: float, **fields: Any) -> tuple[int, list[str]]:
    """The status and the lines of a stream, of which no more is read after that time."""
    body = {"prompt": prompt, "max_tokens": 40, "stream": True, **fields}
    lines: list[str] = []
    end = time.monotonic() + seconds
    with running.http.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line:
                lines.append(line)
            if time.monotonic() > end:
                break
    return response.status_code, lines


def test_a_silent_stream_sends_comments_that_clients_skip(start_server: Starter) -> None:
    with start_server(quiet(sse_keep_alive_interval=INTERVAL), client=LateClient) as running:
        status, lines = streamed(running, "Hi", 10)
        assert status == 200 and lines[-1] == "data: [DONE]"
        first = next(index for index, line in enumerate(lines) if line.startswith("data:"))
        assert first and set(lines[:first]) == {": keep-alive"}
        texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines[first:-1] if line.startswith("data:")]
        assert "".join(texts) == ANSWERS[0]
        # The official client reads events alone.
        chunks = running.client.completions.create(model="alias", prompt="Hi", max_tokens=40, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == ANSWERS[0]


def test_comments_also_come_between_tokens_and_end_with_the_client(start_server: Starter) -> None:
    with start_server(quiet(sse_keep_alive_interval=INTERVAL)) as running:
        _, lines = streamed(running, "STUCK", 6 * INTERVAL)
        assert sum(line.startswith("data:") for line in lines) == 3
        assert lines.count(": keep-alive") >= 2
        running.wait_idle()
        assert running.fake.aborted


def test_errors_keep_their_status_before_the_stream_begins_and_are_events_after(start_server: Starter) -> None:
    with start_server(quiet(sse_keep_alive_interval=INTERVAL), client=LateClient) as running:
        assert streamed(running, "Hi", 5, temperature=-1)[0] == 400
        status, lines = streamed(running, "FAIL", 5)
        assert status == 200 and '"error"' in lines[-1]


def test_a_client_that_leaves_while_the_first_token_is_awaited_ends_its_request(start_server: Starter) -> None:
    with start_server(quiet(sse_keep_alive_interval=INTERVAL), client=LateClient) as running:
        _, lines = streamed(running, "STUCK", 2 * INTERVAL)
        assert lines and set(lines) == {": keep-alive"}
        running.wait_idle()
        assert running.fake.aborted


def test_without_the_argument_streams_carry_events_alone(server: RunningServer) -> None:
    _, lines = streamed(server, "SLOW", 10)
    assert all(line.startswith("data:") for line in lines)


@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_logged_up_to_the_limit(
    start_server: Starter, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    settings = {"enable_log_outputs": True, "enable_log_deltas": True, "max_log_len": 5}
    with caplog.at_level(logging.INFO, "core_apis"), start_server(quiet(**settings)) as running:
        body = {"prompt": "Hi", "max_tokens": 4, "n": 2, "stream": stream}
        running.http.post("/v1/completions", json=body)
    ends = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Answer ")]
    assert len(ends) == 2 and all(end.endswith("4 tokens, length") for end in ends)
    assert any("'Hell'" in end for end in ends) and any("'Seco'" in end for end in ends)
    pieces = [record for record in caplog.records if record.getMessage().startswith("Piece of answer")]
    assert len(pieces) >= (8 if stream else 2)


def test_answers_are_not_logged_unasked(start_server: Starter, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "core_apis"), start_server(quiet(enable_log_requests=True)) as running:
        running.http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 4})
    assert not any("Hello"[:4] in record.getMessage() for record in caplog.records)

"""A server that is asked to end: what runs goes on, new work is refused, and time runs out."""

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import httpx
import pytest

from core.api.errors import RequestError
from core_apis.server.drain import Drain
from tests.apis.serving_processes import Start, fake_server, ready_url, shells

SLOW = {"prompt": "SLOW", "max_tokens": 40, "stream": True}


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the fake server."""
    with shells() as shell:
        yield partial(fake_server, shell)


@contextmanager
def running_stream(url: str) -> Iterator[Iterator[str]]:
    """The lines of a slow stream, which has begun."""
    with httpx.stream("POST", f"{url}/v1/completions", json=SLOW, timeout=20) as answer:
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        yield lines


def until_draining(url: str) -> httpx.Response:
    """The answer of /health that says so."""
    deadline = time.monotonic() + 5
    while (health := httpx.get(f"{url}/health")).status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return health


def ended_well(process: subprocess.Popen[str]) -> str:
    """What it wrote to standard error."""
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    return errors


def test_new_work_is_refused_while_a_stream_ends(start: Start) -> None:
    process = start("0", "0.05", "0", "0", "30")
    url = ready_url(process)
    with httpx.Client(base_url=url) as kept, running_stream(url) as lines:
        assert kept.get("/v1/models").status_code == 200
        process.send_signal(signal.SIGTERM)
        health = until_draining(url)
        assert health.json()["error"]["code"] == "server_draining"
        assert httpx.get(f"{url}/ready").json()["error"]["code"] == "server_draining"
        for client in (kept, httpx):
            refused = client.post(f"{url}/v1/completions", json=SLOW)
            assert (refused.status_code, refused.headers["connection"]) == (503, "close")
            assert 1 <= int(refused.headers["retry-after"]) <= 30
            assert "1 request may still run" in refused.json()["error"]["message"]
        assert httpx.get(f"{url}/v1/models").status_code == 200
        assert httpx.get(f"{url}/metrics").status_code == 200
        assert list(lines)[-1] == "data: [DONE]"
    assert "Requests that run: 1; they have 30 s (--shutdown-timeout)" in ended_well(process)


def test_what_does_not_end_in_time_gets_an_error(start: Start) -> None:
    process = start("0", "0.5", "0", "0", "0.4")
    url = ready_url(process)
    with running_stream(url) as lines:
        process.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        last = list(lines)[-1]
    assert "error" in json.loads(last.removeprefix("data: "))
    assert time.monotonic() - begin >= 0.4, "it was ended before its time was up"
    assert "ended now, since they still run: 1" in ended_well(process)


@pytest.mark.slow
def test_responses_in_the_background_are_waited_for(start: Start) -> None:
    process = start("0", "0.05", "0", "0", "30")
    url = ready_url(process)
    body = {"input": "SLOW", "background": True}
    response = httpx.post(f"{url}/v1/responses", json=body).json()["id"]
    process.send_signal(signal.SIGTERM)
    until_draining(url)
    with httpx.stream("GET", f"{url}/v1/responses/{response}", timeout=20) as answer:
        assert json.loads(answer.read())["status"] in ("queued", "in_progress")
    begin = time.monotonic()
    ended_well(process)
    assert time.monotonic() - begin > 0.3


def test_the_refusal_says_when_the_server_is_gone() -> None:
    now = 100.0
    drain = Drain(clock=lambda: now)
    drain.check()
    assert drain.enter()
    drain.begin(12.5)
    assert not drain.enter()
    for later, seconds in ((0.0, 13), (10.0, 3), (20.0, 1)):
        now = 100.0 + later
        with pytest.raises(RequestError, match="1 request may still run") as refusal:
            drain.check()
        assert refusal.value.retry_after == seconds


def test_a_long_drain_keeps_clients_away_for_a_minute_at_most() -> None:
    drain = Drain()
    drain.begin(3600)
    with pytest.raises(RequestError) as refusal:
        drain.check()
    assert refusal.value.retry_after == 60


async def test_only_requests_from_before_are_waited_for() -> None:
    drain = Drain()
    drain.enter()
    drain.begin(1.0)
    waiting = asyncio.ensure_future(drain.idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert not drain.enter()
    drain.leave()
    await asyncio.wait_for(waiting, 1.0)

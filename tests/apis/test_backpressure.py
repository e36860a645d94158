"""More than the server may queue is told to come back; time limits end requests; users reach the scheduler."""

import asyncio
import threading
import time
from typing import Any

import openai
import pytest

from core.api.config import SchedulerConfig
from core.api.errors import RequestError
from core_config.served.server_config import ServerConfig
from core_frontend.queue.limit import QueueLimit
from tests.apis.conftest import run_server

SLOW = {"model": "fake-model", "prompt": "SLOW"}


def test_a_full_queue_answers_429_with_retry_after_and_drains() -> None:
    with run_server(scheduler=SchedulerConfig(max_num_queued_reqs=2)) as server:
        statuses: list[int] = []
        hold = threading.Event()
        fake_run = server.fake.run

        async def wait_first(request: Any) -> None:
            import asyncio

            while not hold.is_set():
                await asyncio.sleep(0.01)
            await fake_run(request)

        server.fake.run = wait_first  # type: ignore[method-assign]
        body = {"model": "fake-model", "prompt": "hi", "max_tokens": 2}
        threads = [
            threading.Thread(target=lambda: statuses.append(server.http.post("/v1/completions", json=body).status_code))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 5
        while len(server.engine.queue) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for stream in (False, True):
            answer = server.http.post("/v1/completions", json=body | {"stream": stream})
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["type"] == "rate_limit_error"
            assert "--max-num-queued-reqs" in answer.json()["error"]["message"]
        with pytest.raises(openai.RateLimitError):
            server.openai().completions.create(**body)
        hold.set()
        for thread in threads:
            thread.join(10)
        assert statuses == [200, 200]
        assert server.http.post("/v1/completions", json=body).status_code == 200
        assert len(server.engine.queue) == 0


def test_tokens_are_limited_too_but_one_request_always_may_wait() -> None:
    limit = QueueLimit(0, 100)
    limit.enter({"huge": 5000})
    with pytest.raises(RequestError, match="5000 prompt tokens wait already, and this request has 1") as caught:
        limit.enter({"small": 1})
    assert caught.value.status == 429
    limit.leave("huge")
    limit.leave("huge")
    limit.enter({"a": 60})
    limit.enter({"b": 40})
    with pytest.raises(RequestError):
        limit.enter({"c": 1})


def test_retry_after_follows_the_speed_of_the_queue() -> None:
    now = [0.0]
    limit = QueueLimit(10, 0, clock=lambda: now[0])

    def retry_after(seconds_each: float) -> int:
        limit.enter({"r0": 1})
        for number in range(40):
            limit.enter({f"r{number + 1}": 1})
            now[0] += seconds_each
            limit.leave(f"r{number}")
        now[0] += seconds_each
        limit.leave("r40")
        for number in range(10):
            limit.enter({f"w{number}": 1})
        with pytest.raises(RequestError) as caught:
            limit.enter({"late": 1})
        for number in range(10):
            limit.leave(f"w{number}")
        assert caught.value.retry_after is not None
        return caught.value.retry_after

    assert retry_after(0.01) == 1
    assert 2 <= retry_after(2.0) <= 3
    assert 100 <= retry_after(100.0) <= 103


@pytest.mark.parametrize("own", [True, False])
def test_a_timeout_answers_408_or_ends_the_stream(own: bool) -> None:
    scheduler = SchedulerConfig() if own else SchedulerConfig(request_timeout_s=0.05)
    timeout = {"timeout": 0.05} if own else {}
    with run_server(scheduler=scheduler) as server:
        answer = server.http.post("/v1/completions", json=SLOW | timeout)
        assert answer.status_code == 408
        assert answer.json()["error"]["code"] == "request_timeout"
        with server.http.stream("POST", "/v1/completions", json=SLOW | timeout | {"stream": True}) as stream:
            lines = [line for line in stream.iter_lines() if line]
        assert "time was up" in lines[-1]
        bad = server.http.post("/v1/completions", json=SLOW | {"timeout": -1})
        assert bad.status_code == 400
        assert 'finished_reason="timeout"' in server.http.get("/metrics").text


def test_the_user_is_the_field_or_one_of_several_keys() -> None:
    def users(config: ServerConfig, *calls: tuple[str, dict[str, str]]) -> list[str]:
        seen: list[str] = []
        with run_server(config) as server:
            add = server.fake.add

            async def spy(requests: Any) -> None:
                seen.extend(request.user for request in requests)
                await add(requests)

            server.fake.add = spy  # type: ignore[method-assign]
            for key, more in calls:
                headers = {"authorization": f"Bearer {key}"}
                body = {"model": "fake-model", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
                assert server.http.post("/v1/chat/completions", json=body | more, headers=headers).status_code == 200
        return seen

    assert users(ServerConfig(), ("none", {"user": "ann"}), ("none", {})) == ["ann", ""]
    one, two, again = users(
        ServerConfig(api_keys=("k1", "k2")), ("k1", {"user": "ann"}), ("k2", {"user": "ann"}), ("k1", {"user": "bob"})
    )
    assert one == again != two
    assert "k1" not in one


def test_the_time_in_which_a_request_is_prepared_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_server() as server:
        prepare = server.preparer.prepare

        async def slow(kind: str, *pieces: bytes) -> Any:
            await asyncio.sleep(0.3)
            return await prepare(kind, *pieces)

        monkeypatch.setattr(server.preparer, "prepare", slow)
        answer = server.http.post("/v1/completions", json=SLOW | {"timeout": 0.25})
        assert answer.status_code == 408
        assert server.http.post("/v1/completions", json=SLOW | {"timeout": 30}).status_code == 200

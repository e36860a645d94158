"""What one API key may have at once, over HTTP, and when it is told to come back."""

import threading
import time
from collections.abc import Iterator

import pytest

from core.api.config import SchedulerConfig
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer, run_server

BODY = {"model": "fake-model", "prompt": "SLOW", "max_tokens": 20}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    keys = ServerConfig(api_keys=("one", "two"))
    with run_server(keys, scheduler=SchedulerConfig(max_num_reqs_per_key=2)) as running:
        yield running


def send(server: RunningServer, key: str, **more: object) -> tuple[int, dict[str, str], str]:
    headers = {"authorization": f"Bearer {key}"}
    answer = server.http.post("/v1/completions", json=BODY | more, headers=headers)
    return answer.status_code, dict(answer.headers), answer.text


def test_a_key_at_its_limit_is_told_when_to_come_back_and_others_are_served(server: RunningServer) -> None:
    for _ in range(2):
        assert send(server, "one")[0] == 200  # so that it is known how long they take
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(send(server, "one")[0])) for _ in range(2)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 5
    while len(server.fake.live) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    status, headers, text = send(server, "one")
    assert status == 429
    assert "key_limit_reached" in text and "--max-num-reqs-per-key" in text
    assert send(server, "two", max_tokens=1)[0] == 200
    time.sleep(int(headers["retry-after"]))
    assert send(server, "one", max_tokens=1)[0] == 200
    for thread in threads:
        thread.join(10)
    assert statuses == [200, 200]


def test_what_no_wait_would_help_is_refused_as_a_mistake(server: RunningServer) -> None:
    status, _, text = send(server, "one", prompt=["a", "b", "c"], max_tokens=1)
    assert status == 400
    assert "--max-num-reqs-per-key" in text
    assert send(server, "one", prompt=["a", "b"], max_tokens=1)[0] == 200


def test_a_client_that_leaves_gives_its_place_back(server: RunningServer) -> None:
    headers = {"authorization": "Bearer one"}
    for _ in range(3):
        body = BODY | {"stream": True}
        with server.http.stream("POST", "/v1/completions", json=body, headers=headers) as stream:
            next(stream.iter_lines())
    server.wait_idle()
    assert send(server, "one", prompt=["a", "b"], max_tokens=1)[0] == 200

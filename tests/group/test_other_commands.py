"""One API server with engines of several commands, as on several machines: deaths of commands, and who gets which place."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from tests.apis.serving_processes import free_port, free_ports
from tests.apis.test_apart import Begin, Command, expected, stream, text

ADDRESS = "127.0.0.2"


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    commands: list[Command] = []
    port = free_port()

    def start(role: str, **options: object) -> Command:
        commands.append(Command(role, port, tmp_path, address=ADDRESS, **options))
        return commands[-1]

    yield start
    for command in commands:
        if command.process.poll() is None:
            command.process.kill()
        command.process.wait()


def states(url: str) -> list[str]:
    return [each["state"] for each in httpx.get(f"{url}/live").json()["engines"]]


def until_states(url: str, *wanted: str) -> None:
    deadline = time.monotonic() + 60
    while (found := states(url)) != list(wanted):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


@pytest.mark.slow
def test_streams_of_a_command_that_is_killed_go_on_in_the_others_at_once(begin: Begin) -> None:
    front = begin("api_server", size=3, own=1)
    others = begin("engine", size=3, own=2, first=1)
    others.says(r"Engines 1 to 2 of 3 of fake for the API server at 127\.0\.0\.2")
    url = front.url()
    assert states(url) == ["running"] * 3
    with ExitStack() as streams:
        texts = [streams.enter_context(stream(url, 100)) for _ in range(6)]
        begun = [next(each) for each in texts]
        running = [each["num_running"] for each in httpx.get(f"{url}/health").json()["engines"]]
        assert all(running), "each engine has some of the six"
        others.process.kill()
        front.says(r"The engine 1 of 3 of process \d+ of .* is gone: the connection was lost")
        whole = [start + "".join(rest) for start, rest in zip(begun, texts, strict=True)]
    assert whole == [expected(100)] * 6
    assert states(url) == ["running", "restarting", "restarting"]
    assert httpx.get(f"{url}/health").status_code == httpx.get(f"{url}/ready").status_code == 200
    assert text(url, 7) == expected(7)
    begin("engine", size=3, own=2, first=1)
    until_states(url, "running", "running", "running")
    os.kill(front.engine_pid(), signal.SIGKILL)
    assert text(url, 7) == expected(7)
    until_states(url, "running", "running", "running")
    assert front.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["moved", "computed"])
def test_streams_leave_an_engine_whose_command_is_asked_to_end(begin: Begin, how: str) -> None:
    first = free_ports(2)
    ports = first, first + 1
    roles = [{"kv_port": port, "kv_peer": f"127.0.0.1:{peer}"} for port, peer in (ports, ports[::-1])]
    if how == "computed":
        roles = [{}, {}]
    front = begin("api_server", size=2, own=1, **roles[0])

    def other() -> Command:
        return begin("engine", size=2, own=1, first=1, shutdown_timeout=30, **roles[1])

    leaving = other()
    url = front.url()
    with ExitStack() as streams:
        texts = [streams.enter_context(stream(url, 200)) for _ in range(4)]
        begun = [next(each) for each in texts]
        running = [each["num_running"] for each in httpx.get(f"{url}/health").json()["engines"]]
        assert running == [2, 2]
        assert leaving.end() == 0
        assert "engine 1 of 2 of process" in front.log and "is about to end" in front.log
        page = httpx.get(f"{url}/metrics").text
        assert f'request_moves_total{{model_name="fake",outcome="{how}"}} 2.0' in page
        next_one = other()
        until_states(url, "running", "running")
        assert [start + "".join(rest) for start, rest in zip(begun, texts, strict=True)] == [expected(200)] * 4
        assert text(url, 7) == expected(7)
    drained = httpx.post(f"{url}/drain_engine?engine=0").json()
    assert drained["stayed"] == 0 and states(url) == ["drained", "running"]
    with stream(url, 100) as alone:
        begun = [next(alone)]
        next_one.process.terminate()
        assert begun[0] + "".join(alone) == expected(100), "without another engine they go on to their end"
    assert next_one.ended() == 0


@pytest.mark.slow
def test_streams_leave_an_engine_of_another_command_that_gets_sigterm(begin: Begin) -> None:
    front = begin("api_server", size=2, own=1)
    other = begin("engine", size=2, own=1, first=1, shutdown_timeout=30)
    url = front.url()
    with ExitStack() as streams:
        texts = [streams.enter_context(stream(url, 200)) for _ in range(4)]
        begun = [next(each) for each in texts]
        asked = other.engine_pid()
        os.kill(asked, signal.SIGTERM)
        other.says(r"Engine 1 was asked to end \(SIGTERM\)")
        deadline = time.monotonic() + 20
        while psutil.pid_exists(asked):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        until_states(url, "running", "running")
        assert [start + "".join(rest) for start, rest in zip(begun, texts, strict=True)] == [expected(200)] * 4
    health = httpx.get(f"{url}/health").json()
    assert (health["engine_restarts"], health["last_deaths"]) == (0, [])
    assert text(url, 7) == expected(7)
    assert (other.end(), front.end()) == (0, 0)


@pytest.mark.slow
def test_an_engine_of_each_command_and_none_of_the_api_server(begin: Begin) -> None:
    front = begin("api_server", size=2, patience_s=10.0, sleeps=1)
    engines = [begin("engine", size=2, own=1, first=rank, sleeps=1) for rank in range(2)]
    url = front.url()
    assert len({text(url, 5) for _ in range(4)}) == 1
    assert 'engine="1"' in httpx.get(f"{url}/metrics").text
    with stream(url, 150) as texts:
        begun = next(texts)
        assert engines[1].end() == 0
        assert begun + "".join(texts) == expected(150)
    assert httpx.post(f"{url}/pause").status_code == 503, "it would not reach all engines"
    engines[1] = begin("engine", size=2, own=1, first=1, sleeps=1)
    until_states(url, "running", "running")
    assert httpx.post(f"{url}/pause").status_code == 200
    engines[1].process.kill()
    until_states(url, "running", "restarting")
    engines[1] = begin("engine", size=2, own=1, first=1, sleeps=1)
    until_states(url, "running", "running")
    assert httpx.get(f"{url}/is_paused").json()["is_paused"]
    resumed = httpx.post(f"{url}/resume")
    assert resumed.status_code == 200, resumed.text
    os.kill(engines[0].engine_pid(), signal.SIGKILL)
    assert text(url, 5) == expected(5), "the other one computes it"
    engines[0].process.kill()
    engines[1].process.kill()
    assert front.ended() == 1
    assert "No connection in 10 s (--engine-connect-timeout): engine" in front.log


@pytest.mark.slow
def test_a_command_that_is_silent_is_given_up_and_comes_back(begin: Begin) -> None:
    front = begin("api_server", size=2, own=1)
    other = begin("engine", size=2, own=1, first=1)
    url = front.url()
    with stream(url, 200) as first, stream(url, 200) as second:
        begun = next(first), next(second)
        os.kill(other.process.pid, signal.SIGSTOP)
        assert [begun[0] + "".join(first), begun[1] + "".join(second)] == [expected(200)] * 2
    assert "is gone: it has said nothing for 10 s" in front.log or "connection was lost" in front.log
    os.kill(other.process.pid, signal.SIGCONT)
    until_states(url, "running", "running")
    refused = begin("engine", size=2, own=1, first=0)
    assert refused.ended() == 1 and "the API server's command starts the engines 0 to 0 itself" in refused.log
    refused = begin("engine", size=3, own=1, first=1)
    assert refused.ended() == 1 and "--data-parallel-size is 2 at the API server and 3 at the engine" in refused.log
    assert front.end() == 0

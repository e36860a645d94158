"""Orders of operators where several API processes use the engines: any takes them, and each moves its own requests."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.apis.test_several_processes import Several, expected, several, until


def states(server: Several) -> set[tuple[str, ...]]:
    """The states of the engines, as the processes tell them which happen to answer."""
    answers = [httpx.get(f"{server.url}/live").json()["engines"] for _ in range(6)]
    return {tuple(each["state"] for each in engines) for engines in answers}


def order(server: Several, what: str) -> Any:
    answer = httpx.post(f"{server.url}/{what}", timeout=40)
    assert answer.status_code == 200, answer.text
    return answer.json()


def placed(server: Several) -> list[int]:
    return [each["num_running"] for each in httpx.get(f"{server.url}/live").json()["engines"]]


def test_streams_of_all_processes_leave_a_drained_engine(tmp_path: Path) -> None:
    with several(tmp_path, num_engines=2) as server, ExitStack() as streams:
        texts = [streams.enter_context(server.stream(240)) for _ in range(8)]
        begun = [next(each) for each in texts]
        until("all run", lambda: sum(placed(server)) == 8)
        counts = placed(server)
        busiest = counts.index(max(counts))
        found = order(server, f"drain_engine?engine={busiest}")
        assert found["computed"] > 0 and not found["stayed"] and "died" not in found
        out = ("running", "drained") if busiest else ("drained", "running")
        assert states(server) == {out}
        refused = httpx.post(f"{server.url}/drain_engine?engine={1 - busiest}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "last_engine")
        assert httpx.post(f"{server.url}/drain_engine?engine=2").status_code == 404
        order(server, f"undrain_engine?engine={busiest}")
        assert states(server) == {("running", "running")}
        # Without a connector for pages a request that has begun stays where it is.
        evened = order(server, "rebalance_engines")
        assert not evened["moved"] and not evened["computed"] and evened["stayed"] <= 4
        assert [start + "".join(rest) for start, rest in zip(begun, texts, strict=True)] == [expected(240)] * 8


def test_an_engine_is_ended_and_started_for_all_processes(tmp_path: Path) -> None:
    with several(tmp_path, num_engines=2) as server:
        order(server, "drain_engine?engine=1&end=true")
        assert states(server) == {("running", "ended")}
        until("its process has ended", lambda: len(server.pids("core.engine.process")) == 1)
        assert server.text(20) == expected(20)
        first, _ = server.api_pids
        os.kill(first, signal.SIGKILL)
        until("there are two again", lambda: len(server.api_pids) == 2 and first not in server.api_pids)
        until("both know it", lambda: states(server) == {("running", "ended")})
        order(server, "undrain_engine?engine=1")
        assert states(server) == {("running", "running")}
        assert len(server.pids("core.engine.process")) == 2
        order(server, "drain_engine?engine=0&end=true")
        assert server.text(20) == expected(20)
        (engine,) = server.pids("core.engine.process")
        os.kill(engine, signal.SIGKILL)
        assert server.text(20) == expected(20), "it is started again, as no other one serves"
        server.process.send_signal(signal.SIGTERM)
        server.end()
        assert not list(tmp_path.iterdir())


def test_a_process_that_dies_while_it_drains_is_told(tmp_path: Path) -> None:
    with several(tmp_path, num_engines=2) as server, ThreadPoolExecutor(1) as other:
        stopped, _ = server.api_pids
        os.kill(stopped, signal.SIGSTOP)
        answer = other.submit(order, server, "drain_engine?engine=1")
        until("the other one has drained it", lambda: states(server) == {("running", "drained")})
        assert not answer.done(), "it waits for all"
        os.kill(stopped, signal.SIGKILL)
        assert answer.result(40) == {"moved": 0, "computed": 0, "stayed": 0, "died": 1, "engine": 1}
        until("there are two again", lambda: len(server.api_pids) == 2 and stopped not in server.api_pids)
        until("the new one knows it", lambda: states(server) == {("running", "drained")})
        order(server, "undrain_engine?engine=1")
        assert states(server) == {("running", "running")}


def test_streams_of_all_processes_leave_an_engine_that_gets_sigterm(tmp_path: Path) -> None:
    with several(tmp_path, num_engines=2) as server, ExitStack() as streams:
        texts = [streams.enter_context(server.stream(240)) for _ in range(6)]
        begun = [next(each) for each in texts]
        until("all run", lambda: sum(placed(server)) == 6)
        before = server.pids("core.engine.process")
        os.kill(before[1], signal.SIGTERM)
        until("it has ended", lambda: before[1] not in server.pids("core.engine.process"))
        until("another one runs", lambda: len(server.pids("core.engine.process")) == 2)
        until("it takes requests", lambda: states(server) == {("running", "running")})
        assert [start + "".join(rest) for start, rest in zip(begun, texts, strict=True)] == [expected(240)] * 6
        health = httpx.get(f"{server.url}/health").json()
        assert (health["engine_restarts"], health["last_deaths"]) == (0, [])
        after = server.pids("core.engine.process")
        with server.stream(60) as last:
            start = next(last)
            for pid in (*after, server.process.pid):  # as a service manager does
                os.kill(pid, signal.SIGTERM)
            assert start + "".join(last) == expected(60)
        assert "goes on in others" not in server.end().partition("Shutting down")[2]

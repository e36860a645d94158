"""The number of engines behind several API processes: any of them takes the order, and the streams of all go on."""

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.apis.test_orders_in_several import order, placed, states
from tests.apis.test_several_processes import Several, expected, several, until

ENGINE = "core.engine.process"


def scaled(server: Several, size: Any, drain_timeout: float = 0.0) -> httpx.Response:
    body = {"new_data_parallel_size": size, "drain_timeout": drain_timeout}
    return httpx.post(f"{server.url}/scale_elastic_ep", json=body, timeout=40)


def test_streams_of_all_processes_go_on_while_engines_come_and_go(tmp_path: Path) -> None:
    with several(tmp_path, 3, 1) as server, ExitStack() as streams:
        assert states(server) == {("running", "ended", "ended")} and len(server.pids(ENGINE)) == 1
        texts = [streams.enter_context(server.stream(240)) for _ in range(2)]
        begun = [next(each) for each in texts]
        assert scaled(server, 3).json() == {
            "message": "Scaled to 3 data parallel engines",
            "data_parallel_size": 3,
            **dict.fromkeys(("moved", "computed", "stayed"), 0),
        }
        assert states(server) == {("running", "running", "running")} and len(server.pids(ENGINE)) == 3
        has_some = False
        for _ in range(6):
            texts.append(streams.enter_context(server.stream(240)))
            begun.append(next(texts[-1]))
            has_some |= any(placed(server)[1:])
        assert has_some, "new engines get requests"
        first, _ = server.api_pids
        answer = scaled(server, 1)
        assert answer.status_code == 200, answer.text
        assert states(server) == {("running", "ended", "ended")} and len(server.pids(ENGINE)) == 1
        assert [start + "".join(rest) for start, rest in zip(begun, texts, strict=True)] == [expected(240)] * 8
        os.kill(first, signal.SIGKILL)
        until("there are two again", lambda: len(server.api_pids) == 2 and first not in server.api_pids)
        until("both know it", lambda: states(server) == {("running", "ended", "ended")})
        assert scaled(server, 2).status_code == 200
        assert states(server) == {("running", "running", "ended")}
        refused = scaled(server, 4)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "new_data_parallel_size")
        server.process.send_signal(signal.SIGTERM)
        server.end()
        assert not list(tmp_path.iterdir())


def test_a_second_change_is_refused_and_a_killed_start_changes_nothing(tmp_path: Path) -> None:
    with several(tmp_path, 2, 1) as server, ThreadPoolExecutor(1) as other, ExitStack() as streams:
        text = streams.enter_context(server.stream(240))
        begun = next(text)
        (old,) = server.pids(ENGINE)
        os.kill(old, signal.SIGSTOP)  # a new engine asks the others for their state, so it cannot join yet
        growing = other.submit(scaled, server, 2)
        until("another one starts", lambda: len(server.pids(ENGINE)) == 2)
        until(
            "it is said",
            lambda: httpx.get(f"{server.url}/is_scaling_elastic_ep").json() == {"is_scaling_elastic_ep": True},
        )
        for what in ("scale_elastic_ep", "drain_engine?engine=0"):
            body = {"new_data_parallel_size": 1} if what.startswith("scale") else None
            refused = httpx.post(f"{server.url}/{what}", json=body, timeout=40)
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "is_scaling"), refused.text
        (new,) = set(server.pids(ENGINE)) - {old}
        os.kill(new, signal.SIGKILL)
        os.kill(old, signal.SIGCONT)
        answer = growing.result(40)
        assert answer.status_code == 503 and "goes on with the engines that it has (1)" in answer.text
        assert states(server) == {("running", "ended")} and server.pids(ENGINE) == [old]
        assert begun + "".join(text) == expected(240)
        assert scaled(server, 2).status_code == 200
        order(server, "drain_engine?engine=0")
        assert server.text(20) == expected(20), "the new one answers"


def test_a_death_while_engines_leave(tmp_path: Path) -> None:
    with several(tmp_path, 2, 0) as server, ThreadPoolExecutor(1) as other, ExitStack() as streams:
        texts = [streams.enter_context(server.stream(200)) for _ in range(6)]
        begun = [next(each) for each in texts]
        shrinking = other.submit(scaled, server, 1, 0.5)
        until("it leaves", lambda: any(each[1] != "running" for each in states(server)))
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pids(ENGINE)[-1], signal.SIGKILL)
        answer = shrinking.result(40)
        assert answer.status_code in (200, 503), answer.text
        assert [start + "".join(rest) for start, rest in zip(begun, texts, strict=True)] == [expected(200)] * 6
        until("one is left", lambda: scaled(server, 1).status_code == 200)
        assert len(server.pids(ENGINE)) == 1 and server.text(20) == expected(20)

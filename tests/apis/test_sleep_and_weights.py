"""Sleep, pauses and new weights over HTTP, with an engine in a process of its own that dies in between."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from engine.fakes import byte_source, make_config, reference
from engine.mortal import MortalSource, mortal_engine
from engine.sleeping import SleepingExecutor

from core import SharedTensors
from core.api.config import WeightTransferConfig
from core.api.errors import RequestError
from core.api.weights import WeightUpdate
from core_apis.app import create_app
from core_apis.routes.weights import checked_update
from core_config.resolve import resolve
from core_config.served.server_config import ServerConfig
from core_frontend.async_engine import AsyncEngine
from core_tokens.tokenizer import Tokenizer
from tests.apis.conftest import run_server
from tests.new_weights import mixed, weights_of
from tests.tiny_models import save_checkpoint

PROMPT = {
    "model": "m",
    "prompt": [7, 100, 3, 55],
    "max_tokens": 12,
    "temperature": 0,
    "logprobs": 2,
    "ignore_eos": True,
}
SETTINGS = {"max_model_len": 64, "num_gpu_blocks_override": 24, "max_num_seqs": 4, "served_model_name": ["m"]}


@asynccontextmanager
async def serving(path: Path, **settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, AsyncEngine]]:
    resolution = resolve({"model": str(path), **SETTINGS, **settings}, context="serve", environ={})
    engine = await AsyncEngine.start(resolution)
    app = create_app(engine, ServerConfig(), engine.model_config)
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine", timeout=60) as http:
            yield http, engine
    finally:
        await app.state.context.close()
        await engine.close()


async def posted(http: httpx.AsyncClient, path: str, body: Any = None, status: int = 200) -> httpx.Response:
    answer = await http.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer


async def completed(http: httpx.AsyncClient) -> dict[str, Any]:
    """What the model says, with every log-probability."""
    choice: dict[str, Any] = (await posted(http, "/v1/completions", PROMPT)).json()["choices"][0]
    return choice


async def metric(http: httpx.AsyncClient, line: str) -> bool:
    return line in (await http.get("/metrics")).text


@pytest.mark.slow
async def test_a_server_sleeps_and_learns_across_a_death(tiny_llama: Path, tmp_path: Path) -> None:
    newer = save_checkpoint(tmp_path / "newer", seed=11)
    Q = "model.layers.1.self_attn.q_proj.weight"
    both = mixed(tmp_path / "both", newer, tiny_llama, [Q])
    changing = {"enable_sleep_mode": True, "weight_transfer_config": {"directory": str(tmp_path)}}
    async with serving(both) as (http, _):
        of_both = await completed(http)
    async with serving(tiny_llama, **changing) as (http, engine):
        first = await completed(http)
        assert (await http.get("/version")).json().keys() == {"version"}
        assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False, "state": "serving"}

        assert (await posted(http, "/sleep?level=1&mode=keep")).json() == {"status": "asleep"}
        assert (await http.get("/is_sleeping")).json()["is_sleeping"]
        assert await metric(http, 'core:engine_sleep_state{model_name="m",sleep_state="weights_offloaded"} 1.0')
        assert (await http.get("/health")).json()["state"] == "sleeping"
        waiting = asyncio.create_task(completed(http))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        os.kill(engine.pid, signal.SIGKILL)
        while not engine.restarts.latest or engine.restarts.paused_since is not None:
            await asyncio.sleep(0.02)
        assert (await http.get("/is_sleeping")).json()["is_sleeping"], "the next engine sleeps, too"
        assert not waiting.done()
        await posted(http, "/wake_up?tags=weights")
        assert (await posted(http, "/wake_up?tags=kv_cache")).json() == {"status": "awake"}
        assert await asyncio.wait_for(waiting, 30) == first
        assert await metric(http, 'core:engine_sleep_state{model_name="m",sleep_state="awake"} 1.0')

        await posted(http, "/init_weight_transfer_engine", {"init_info": {}})
        await posted(http, "/pause?mode=keep")
        assert (await http.get("/is_paused")).json()["is_paused"]
        waiting = asyncio.create_task(completed(http))
        answer = await posted(http, "/update_weights", {"update_info": {"path": str(newer)}})
        assert answer.json() == {"message": "Weights updated", "weight_version": "1"}
        with SharedTensors({Q: weights_of(tiny_llama)[Q]}) as shared:
            told = msgspec.to_builtins(shared.update("mixed"))
            await posted(http, "/start_weight_update")
            del told["weight_version"]
            await posted(http, "/update_weights", {"update_info": told})
        answer = await posted(http, "/finish_weight_update", {"weight_version": "mixed"})
        assert answer.headers["x-weight-version"] == "mixed"
        await posted(http, "/resume")
        assert await waiting == of_both
        os.kill(engine.pid, signal.SIGKILL)
        assert await completed(http) == of_both, "the next engine has the new weights"
        answer = await posted(http, "/v1/completions", PROMPT)
        assert answer.json()["system_fingerprint"] == answer.headers["x-weight-version"] == "mixed"
        assert (await http.get("/version")).json()["weight_version"] == "mixed"
        assert (await http.get("/v1/models")).json()["data"][0]["weight_version"] == "mixed"
        streamed = await posted(http, "/v1/completions", {**PROMPT, "stream": True})
        assert '"system_fingerprint":"mixed"' in streamed.text
        assert (await posted(http, "/collective_rpc", {"method": "reload_weights"})).json() == {"results": ["mixed"]}

        answer = await posted(http, "/update_weights", {"update_info": {"path": str(newer), "names": ["no"]}}, 400)
        assert "has no tensor 'no'" in answer.json()["error"]["message"]
        assert (await posted(http, "/update_weights", {"update_info": {"path": "/etc"}}, 403)).json()
        for path, told in (
            ("/sleep?level=3", "level"),
            ("/sleep?mode=x", "mode"),
            ("/pause?clear_cache=x", "clear_cache"),
        ):
            assert (await posted(http, path, status=400)).json()["error"]["param"] == told
        assert "tag 'x' is unknown" in (await posted(http, "/wake_up?tags=x", status=400)).text
        running = asyncio.create_task(posted(http, "/v1/completions", {**PROMPT, "max_tokens": 50}))
        await asyncio.sleep(0)
        await posted(http, "/pause?mode=abort")
        await posted(http, "/resume")
        await posted(http, "/sleep?level=2&mode=wait")
        reason = (await running).json()["choices"][0]["finish_reason"]
        assert reason in ("abort", "length")
        await posted(http, "/wake_up")
        assert await completed(http) == of_both


@asynccontextmanager
async def operated(directory: Path, **options: Any) -> AsyncIterator[tuple[httpx.AsyncClient, AsyncEngine, Any]]:
    """A server over a fake model that sleeps and learns. options: of its executor."""
    config = make_config(max_model_len=64, options=options)
    transfer = WeightTransferConfig(directory=str(directory))
    config = msgspec.structs.replace(config, sleeps=True, weight_transfer=transfer)
    tokenizer = Tokenizer.from_source(byte_source(), None)
    engine = mortal_engine(MortalSource(config, SleepingExecutor), tokenizer)
    app = create_app(engine, ServerConfig(), engine.model_config)
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as http:
            yield http, engine, app
    finally:
        await app.state.context.close()
        await engine.close()


async def test_what_operators_ask_for_over_http(tmp_path: Path) -> None:
    body = {"model": "fake", "prompt": [5, 6], "max_tokens": 8, "return_token_ids": True}

    async with operated(tmp_path) as (http, engine, _):

        async def token_ids() -> list[int]:
            choice = (await posted(http, "/v1/completions", body)).json()["choices"][0]
            assert choice["finish_reason"] == "length"
            found: list[int] = choice["token_ids"]
            return found

        for begin, end, asked in (("/sleep?mode=keep", "/wake_up", "is_sleeping"), ("/pause", "/resume", "is_paused")):
            await posted(http, begin)
            assert (await http.get(f"/{asked}")).json()[asked]
            waiting = asyncio.create_task(token_ids())
            await asyncio.sleep(0.02)
            assert not waiting.done()
            await posted(http, end)
            assert await waiting == reference([5, 6], 8)
            assert (await http.get(f"/{asked}")).json() == {asked: False, "state": "serving"}
        running = asyncio.create_task(token_ids())
        await asyncio.sleep(0.002)
        await posted(http, "/sleep?level=2&mode=wait")
        assert await running == reference([5, 6], 8)
        assert await metric(http, 'core:engine_sleep_state{model_name="fake",sleep_state="discard_all"} 1.0')
        await posted(http, "/wake_up")
        running = asyncio.create_task(posted(http, "/v1/completions", {**body, "max_tokens": 60}))
        while not engine.num_live:
            await asyncio.sleep(0)
        await posted(http, "/pause?mode=abort")
        assert (await running).json()["choices"][0]["finish_reason"] == "abort"
        await posted(http, "/resume")
        assert (await http.get("/version")).json().keys() == {"version"}
        for no_path in ("", "a\0b"):
            await posted(http, "/update_weights", {"update_info": {"path": no_path}}, 400)
        update = {"update_info": {"path": "step-1", "weight_version": "v1"}, "mode": "wait"}
        answer = await posted(http, "/update_weights", update)
        assert answer.json() == {"message": "Weights updated", "weight_version": "v1"}
        answer = await posted(http, "/v1/completions", body)
        assert answer.json()["system_fingerprint"] == answer.headers["x-weight-version"] == "v1"
        for path, status, told in (
            ("/sleep?level=3", 400, "level"),
            ("/sleep?mode=x", 400, "mode"),
            ("/pause?clear_cache=x", 400, "clear_cache"),
            ("/wake_up?tags=x", 400, None),
            ("/wake_up?tag=weights", 400, "tag"),
            ("/sleep?levl=2", 400, "levl"),
            ("/sleep?level=1&level=2", 400, "level"),
            ("/resume?all=1", 400, "all"),
            ("/update_weights", 400, "body"),
            ("/finish_weight_update", 400, None),
        ):
            answer = await posted(http, path, status=status)
            assert told is None or answer.json()["error"]["param"] == told
        assert (await http.get("/openapi.json")).status_code == 200


async def test_health_tells_who_holds_requests_since_when_and_until_what(tmp_path: Path) -> None:
    body = {"model": "fake", "prompt": [5, 6], "max_tokens": 50, "ignore_eos": True}
    async with operated(tmp_path, delay_s=0.02) as (http, engine, _):

        async def health() -> tuple[str, list[tuple[str, str]]]:
            answer = await http.get("/health")
            assert answer.status_code == 200, "what is only paused is not to be killed"
            holders = answer.json().get("holders", [])
            assert all(begin <= each["since"] <= time.time() for each in holders)
            return answer.json()["state"], [(each["holder"], each["ends_with"]) for each in holders]

        begin = time.time()
        assert await health() == ("serving", [])
        await posted(http, "/pause")
        assert await health() == ("paused", [("operator", "POST /resume")])
        await posted(http, "/sleep")
        both = [("operator", "POST /resume"), ("operator", "POST /wake_up")]
        assert await health() == ("sleeping", both)
        told = (await http.get("/is_sleeping")).json()
        assert (told["state"], [each["reason"] for each in told["holders"]]) == ("sleeping", ["pause", "sleep"])
        await posted(http, "/resume")
        assert await health() == ("sleeping", both[1:])
        await posted(http, "/wake_up")
        assert await health() == ("serving", [])

        running = asyncio.create_task(posted(http, "/v1/completions", body))
        while not engine.stats.num_running:
            await asyncio.sleep(0.01)
        pausing = asyncio.create_task(posted(http, "/pause?mode=wait"))
        while (seen := await health())[0] == "serving":
            await asyncio.sleep(0.01)
        assert seen == ("draining", [("a waiting call", "its end, or POST /resume")])
        await pausing
        await running
        told = (await http.get("/is_paused")).json()
        assert (told["state"], told["holders"][0]["holder"]) == ("paused", "operator"), "the call has made its pause"


async def hung_up_on(app: Any, path: str, query: str, holds: asyncio.Event) -> None:
    """A request whose client goes once `holds` is set; returns when the server has done with it."""
    gone: list[bool] = []

    async def receive() -> dict[str, Any]:
        if not gone:
            gone.append(True)
            return {"type": "http.request", "body": b"", "more_body": False}
        await holds.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        """To nobody."""

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": [],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {},
    }  # fmt: skip
    await app(scope, receive, send)


@pytest.mark.parametrize("path", ["/pause", "/sleep"])
async def test_who_hangs_up_before_the_others_have_ended_takes_the_pause_back(tmp_path: Path, path: str) -> None:
    body = {"model": "fake", "prompt": [5, 6], "max_tokens": 50, "ignore_eos": True}
    async with operated(tmp_path, delay_s=0.02) as (http, engine, app):

        async def is_paused() -> bool:
            return bool((await http.get("/is_paused")).json()["is_paused"])

        running = asyncio.create_task(posted(http, "/v1/completions", body))
        while not engine.stats.num_running:
            await asyncio.sleep(0.01)
        leaves, also_leaves = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(hung_up_on(app, path, "mode=wait", leaves))
        while not await is_paused():
            await asyncio.sleep(0.01)
        second = asyncio.create_task(hung_up_on(app, "/pause", "mode=wait", also_leaves))
        await asyncio.sleep(0.05)
        leaves.set()
        await first
        assert await is_paused(), "somebody else still wants it"
        also_leaves.set()
        await second
        assert not await is_paused()
        assert not (await http.get("/is_sleeping")).json()["is_sleeping"]
        assert (await posted(http, "/v1/completions", {**body, "max_tokens": 2})).json()["choices"], (
            "the engine goes on"
        )

        late = asyncio.create_task(posted(http, "/pause?mode=wait", status=409))
        while not await is_paused():
            await asyncio.sleep(0.01)
        await posted(http, "/resume")
        assert "ended before" in (await late).text
        await running


async def test_methods_are_called_by_name_and_no_others(tmp_path: Path) -> None:
    async def called(http: httpx.AsyncClient, method: str, status: int = 200, **given: Any) -> Any:
        answer = await posted(http, "/collective_rpc", {"method": method, **given}, status)
        return answer.json()["results"] if status == 200 else answer.json()["error"]

    async with operated(tmp_path) as (http, _, _):
        assert await called(http, "sleep", args=[2]) == [None]
        assert (await http.get("/is_sleeping")).json()["is_sleeping"]
        assert await called(http, "wake_up", kwargs={"tags": ["weights", "kv_cache"]}, timeout=20) == [None]
        assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False, "state": "serving"}
        update = {"update_info": {"path": "step-1", "weight_version": "v1"}}
        assert await called(http, "update_weights", kwargs=update) == ["v1"]
        assert await called(http, "init_weight_transfer_engine", args=[{}]) == [None]
        assert (await called(http, "update_weights", 403, args=[{"path": "/etc"}]))["param"] == "path"
        for method, given, told in (
            ("__init__", {}, "reload_weights, sleep, wake_up"),
            ("relod_weights", {}, "did you mean"),
            ("sleep", {"args": ["deep"]}, "level"),
            ("sleep", {"args": [1], "kwargs": {"level": 1}}, "twice"),
            ("wake_up", {"kwargs": {"nap": 1}}, "nap"),
            ("reload_weights", {"args": [1]}, "expected: none"),
        ):
            assert told in (await called(http, method, 400, **given))["message"].lower()


@pytest.mark.parametrize("path", ["/sleep", "/wake_up", "/pause", "/resume", "/update_weights", "/collective_rpc"])
def test_a_server_that_did_not_ask_for_it_has_no_such_path(path: str) -> None:
    with run_server() as running:
        assert running.http.post(path).status_code == 404


def test_the_operator_says_where_weights_come_from(tmp_path: Path) -> None:
    only = WeightTransferConfig(backend="shared_memory", directory=str(tmp_path))
    with pytest.raises(RequestError, match="from shared_memory only"):
        checked_update(WeightUpdate(path="x"), only)
    files = WeightTransferConfig(backend="file", directory=str(tmp_path))
    (tmp_path / "link").symlink_to("/etc")
    for path in ("../x", "/etc/passwd", "link/passwd"):
        with pytest.raises(RequestError, match="expected one below"):
            checked_update(WeightUpdate(path=path), files)
    assert checked_update(WeightUpdate(path="step-1"), files).path == str(tmp_path.resolve() / "step-1")


EXTENSION = """
class Mine:
    def __init__(self):
        self.calls = 0

    def blocks(self, more=0):
        self.calls += 1
        return {"blocks": self.num_blocks + more, "calls": self.calls}

    def fails(self):
        raise ValueError("no such thing")

    def odd(self):
        return object

    def _hidden(self):
        return 1
"""


@pytest.mark.slow
async def test_methods_of_the_users_own_run_on_the_worker(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_extension.py").write_text(EXTENSION)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with serving(tiny_llama, worker_extension_cls="my_extension.Mine") as (http, _):
        first = await posted(http, "/collective_rpc", {"method": "blocks"})
        second = await posted(http, "/collective_rpc", {"method": "blocks", "kwargs": {"more": 2}})
        assert (first.json(), second.json()) == (
            {"results": [{"blocks": 24, "calls": 1}]},
            {"results": [{"blocks": 26, "calls": 2}]},
        )
        assert "object" in (await posted(http, "/collective_rpc", {"method": "odd"})).json()["results"][0]
        for method, words in (
            ("fails", "ValueError: no such thing"),
            ("_hidden", "has no method '_hidden'"),
            ("reload_weights", "it has blocks, fails, odd"),  # only --weight-transfer-config allows it
        ):
            refused = await posted(http, "/collective_rpc", {"method": method}, 400)
            assert words in refused.json()["error"]["message"]
        assert (await posted(http, "/update_weights", {"update_info": {"path": "x"}}, 404)).status_code == 404
        assert len((await posted(http, "/v1/completions", PROMPT)).json()["choices"]) == 1

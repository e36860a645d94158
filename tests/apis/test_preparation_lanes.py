"""Templates are rendered in processes that can be ended: a template or a large body harms nobody else."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from core.api.errors import RequestError
from core_apis.prepare.helper import ApartPreparation
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.preparer import NUM_UNRENDERED, SMALL_LANE
from core_config.served.server_config import ServerConfig
from core_supervision.helpers.lane import Lane, Spawned, spawn
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import make_tokenizer
from tests.tokenizers.plugged_tokenizer import opened

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
PADDING = "x" * 20_000  # a body with it is not small
NESTED = (
    "{% set ns = namespace(l=['a']) %}{% for i in range(45) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{% set a = ns.l %}"
    "{% set ns.l = ['a'] %}{% for i in range(45) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ a == ns.l }}"
)
TEMPLATE = (
    "{% set ask = messages[0].content %}{% if ask == 'work' %}"
    "{% set s = 'a' * 1000 %}{% for a in s %}{% for b in s %}{% for c in s %}{% endfor %}{% endfor %}{% endfor %}"
    "{% elif ask == 'memory' %}{% set ns = namespace(s='abc') %}"
    "{% for i in range(40) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}"
    "{% elif ask == 'operation' %}" + NESTED + "{% endif %}{{ ask }}"
)
"""A template that is hostile when it is asked to be."""


@pytest.fixture(scope="module")
def lanes() -> Iterator[RunningServer]:
    config = ServerConfig(uvicorn_log_level="warning", chat_template=TEMPLATE)
    with run_server(config, max_model_len=32768) as running:
        yield running


def chat(server: RunningServer, content: str = "Hi", **more: Any) -> Any:
    return server.http.post(
        "/v1/chat/completions", json=CHAT | {"messages": [{"role": "user", "content": content}]} | more
    )


@pytest.mark.parametrize(
    ("ask", "padding", "words"),
    [
        ("work", "", "s of computing"),
        ("memory", "", "MiB of memory"),
        ("operation", PADDING, "one operation in it takes too long"),
    ],
)
def test_a_hostile_template_is_refused_and_the_next_request_served(
    lanes: RunningServer, ask: str, padding: str, words: str
) -> None:
    answer = chat(lanes, ask, metadata=padding)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["code"] == "too_much_work", answer.text
    assert words in error["message"] and error["param"] == "messages"
    assert chat(lanes, metadata=padding).status_code == 200


def test_other_jobs_of_a_process_that_ends_are_done_by_the_next_one(lanes: RunningServer) -> None:
    """Several are given to the process at once; only the one that ends it is refused."""

    async def all_at_once() -> list[Any]:
        asks = ["Hi", "operation", "you", "memory", "there"]
        bodies = [json.dumps({"messages": [{"role": "user", "content": ask}]}).encode() for ask in asks]
        return await asyncio.gather(*(lanes.preparer.prepare("chat", body) for body in bodies), return_exceptions=True)

    results = asyncio.run_coroutine_threadsafe(all_at_once(), lanes.loop).result(60)
    texts = [str(result) if isinstance(result, Exception) else result.prompts[0].text for result in results]
    assert [texts[i] for i in (0, 2, 4)] == ["Hi", "you", "there"]
    assert "one operation" in texts[1] and "MiB" in texts[3]


def test_nothing_that_renders_does_so_in_the_process_of_the_server(
    lanes: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> str:
        raise AssertionError("rendered beside the event loop")

    monkeypatch.setattr("core_tokens.chat.chat_template.ChatTemplate.render", refuse)
    message = {"role": "user", "content": "Hi"}
    for path, body in {
        "/v1/chat/completions": CHAT,
        "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
        "/v1/messages": {"model": "fake-model", "messages": [message], "max_tokens": 2},
        "/v1/messages/count_tokens": {"model": "fake-model", "messages": [message]},
        "/tokenize": {"messages": [message]},
    }.items():
        assert lanes.http.post(path, json=body).status_code == 200, path


def test_a_tokenizer_that_is_a_plugin_harms_its_own_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is called in a process that can be ended, even for tiny bodies."""
    with run_server(ServerConfig(uvicorn_log_level="warning"), tokenizer=opened(tmp_path)) as server:

        def complete(prompt: str, **more: Any) -> Any:
            return server.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2, **more})

        before = complete("hello, hell and wörld").json()
        assert before["usage"]["prompt_tokens"] == len(["hello", ",", " ", "hell", *" and ", "wörld"])
        failed = complete("RAISE")
        assert failed.status_code == 500 and "no such word" not in failed.text
        assert "ZeroDivisionError" in caplog.text
        refused = complete("REFUSE")
        assert refused.status_code == 400 and "no language of mine" in refused.text
        monkeypatch.setattr(server.preparer.small, "lane", replace(SMALL_LANE, job_seconds=0.5))
        hung = complete("HANG")
        assert hung.status_code == 400 and hung.json()["error"]["code"] == "too_much_work", hung.text
        hung = complete("hello", bad_words=["a HANG"])  # not in the server's own process, which all clients share
        assert hung.status_code == 400 and hung.json()["error"]["code"] == "too_much_work", hung.text
        monkeypatch.undo()
        assert complete("hello, hell and wörld").json()["choices"] == before["choices"]


def test_what_renders_nothing_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_server(ServerConfig(uvicorn_log_level="warning")) as server:
        assert server.http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2}).status_code == 200
        assert server.http.post("/detokenize", json={"tokens": [65]}).status_code == 200
        assert server.preparer.small.process is None and server.preparer.large.process is None


def test_a_server_of_completions_alone_keeps_no_process_for_chats() -> None:
    with run_server(ServerConfig(uvicorn_log_level="warning", chat_template="{{ messages[0].content }}")) as server:
        small = server.preparer.small
        server.loop.call_soon_threadsafe(server.preparer.warm, None)
        _until(lambda: small.process is not None)
        process = small.process
        assert process is not None
        for _ in range(NUM_UNRENDERED):
            assert process.poll() is None
            assert server.http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1}).status_code == 200
        assert process.wait(30) is not None
        assert chat(server).status_code == 200 and small.process is not None
        for _ in range(NUM_UNRENDERED):
            server.http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1})
        assert small.process is not None and small.process.poll() is None, "whoever has chatted may chat again"


def _until(happens: Callable[[], bool]) -> None:
    for _ in range(3000):
        if happens():
            return
        time.sleep(0.01)
    raise AssertionError("it has not happened")


def test_without_a_template_the_first_process_reads_large_bodies() -> None:
    with run_server(ServerConfig(uvicorn_log_level="warning"), tokenizer=make_tokenizer(None)) as server:
        spawned = spawn(SMALL_LANE)
        server.loop.call_soon_threadsafe(server.preparer.warm, spawned)
        body = {"prompt": "Hi", "max_tokens": 1}
        assert server.http.post("/v1/completions", json=body | {"metadata": PADDING}).status_code == 200
        for _ in range(NUM_UNRENDERED):
            assert server.http.post("/v1/completions", json=body).status_code == 200
        assert server.preparer.large.process is spawned.process and spawned.process.poll() is None


def test_a_process_that_was_started_ahead_ends_when_nobody_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_server(ServerConfig(uvicorn_log_level="warning"), tokenizer=make_tokenizer(None)) as server:
        large = server.preparer.large
        monkeypatch.setattr(large, "lane", replace(large.lane, idle_seconds=0.05))
        spawned = spawn(SMALL_LANE)
        server.loop.call_soon_threadsafe(server.preparer.warm, spawned)
        assert spawned.process.wait(30) is not None


def test_a_large_chat_does_not_wait_for_the_start_of_its_process(
    lanes: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(lane: Lane) -> Spawned:
        raise OSError("no process starts")

    assert chat(lanes).status_code == 200
    large = lanes.preparer.large
    lanes.loop.call_soon_threadsafe(large.rest)
    _until(lambda: large.process is None)
    with monkeypatch.context() as patch:
        patch.setattr("core_supervision.helpers.helper.spawn", refuse)
        assert chat(lanes, metadata=PADDING).status_code == 200
    # A chat begins no start while the one that fails is still under way, so one of the next chats does.
    _until(lambda: chat(lanes, metadata=PADDING).status_code == 200 and large.process is not None)


def large_process(lanes: RunningServer) -> Popen[bytes]:
    """Return the process for large bodies, once it runs."""
    assert chat(lanes, metadata=PADDING).status_code == 200
    large = lanes.preparer.large
    _until(lambda: large.process is not None)
    assert large.process is not None
    return large.process


def test_a_small_chat_does_not_wait_for_a_large_one(lanes: RunningServer) -> None:
    large = large_process(lanes)
    os.kill(large.pid, signal.SIGSTOP)
    try:
        body = json.dumps(CHAT | {"metadata": PADDING}).encode()
        waiting = asyncio.run_coroutine_threadsafe(lanes.preparer.prepare("chat", body), lanes.loop)
        assert chat(lanes).status_code == 200
        assert not waiting.done()
    finally:
        os.kill(large.pid, signal.SIGCONT)
    assert waiting.result(30).prompts[0].text == "Hi"


def test_a_process_that_hangs_is_ended_and_replaced(lanes: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = lanes.preparer.large
    os.kill(large_process(lanes).pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(helper, "lane", replace(helper.lane, job_seconds=0.1))
        answer = chat(lanes, metadata=PADDING)
    assert answer.status_code == 400 and "could not be read within 0.1 s" in answer.json()["error"]["message"]
    assert chat(lanes, metadata=PADDING).status_code == 200


def test_a_process_that_dies_idle_leaves_no_zombie(lanes: RunningServer) -> None:
    assert chat(lanes).status_code == 200
    first = lanes.preparer.small.process
    assert first is not None
    first.kill()
    gone(first.pid)
    assert chat(lanes).status_code == 200
    second = lanes.preparer.small.process
    assert second is not None and second.pid != first.pid


def test_a_helper_that_nobody_reads_from_leaves_no_zombie() -> None:
    process, connection = spawn(SMALL_LANE)
    with connection:
        process.kill()
        gone(process.pid)


def gone(pid: int) -> None:
    """Wait until a process is no more, not even as a zombie."""
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} stays"
        time.sleep(0.01)


def test_a_caller_that_leaves_again_and_again_confuses_nobody(lanes: RunningServer) -> None:
    """Each answer is for the job that was asked, however a caller is cancelled meanwhile."""

    async def leave() -> str:
        tasks = []
        for i in range(12):
            body = json.dumps({"messages": [{"role": "user", "content": f"text {i}"}]}).encode()
            tasks.append(asyncio.ensure_future(lanes.preparer.prepare("chat", body)))
        for _ in range(3):
            await asyncio.sleep(0)
            for task in tasks[:-1]:
                task.cancel()
        prepared = await tasks[-1]
        return str(prepared.prompts[0].text)

    assert asyncio.run_coroutine_threadsafe(leave(), lanes.loop).result(60) == "text 11"
    assert chat(lanes).status_code == 200


def test_small_bodies_are_read_as_in_this_process(lanes: RunningServer) -> None:
    body = json.dumps(CHAT | {"temperature": 0.5, "stop": ["x"], "seed": 1}).encode()
    here = Preparation(lanes.preparer.here.settings, lanes.engine.tokenizer).run("chat", body)
    there = asyncio.run_coroutine_threadsafe(lanes.preparer.prepare("chat", body), lanes.loop).result(30)
    assert here == there


def test_public_prompts_are_rendered_apart_too(lanes: RunningServer) -> None:
    """At the start of a server, where nothing may go on for ever either."""
    with ApartPreparation(lanes.preparer.here.settings, lanes.engine.tokenizer) as apart:
        assert apart.run("chat", json.dumps(CHAT).encode()).prompts[0].text == "Hi"
        with pytest.raises(RequestError, match="too much time or memory"):
            apart.run("chat", json.dumps({"messages": [{"role": "user", "content": "operation"}]}).encode())

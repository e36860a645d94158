"""kill -9 of everything while a real model answers: what the next server adds makes the undisturbed answer, to the bit."""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.apis.durable.reading import Reading, read, read_again
from tests.apis.test_real_server import START_LIMIT_SECONDS, command, free_port

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
RESPONSE = "/v1/responses"
STORY = [{"role": "user", "content": "Tell me a story about a river."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}

STREAMS: dict[str, tuple[str, dict[str, Any], int]] = {
    "greedy": (CHAT, {"messages": STORY, "temperature": 0, "max_tokens": 48, "logprobs": True, "top_logprobs": 3}, 12),
    "seeded": (CHAT, {"messages": STORY, "temperature": 1, "seed": 7, "n": 3, "max_tokens": 24}, 20),
    "penalties": (
        COMPLETION,
        {"prompt": "One, two, one,", "temperature": 0.8, "seed": 3, "max_tokens": 40, "frequency_penalty": 0.7, "logprobs": 2},
        9,
    ),
    "prompts": (COMPLETION, {"prompt": ["The sea", "A hill is"], "n": 2, "temperature": 0.9, "seed": 5, "max_tokens": 24}, 23),
    "stop": (CHAT, {"messages": STORY, "temperature": 0, "max_tokens": 64, "stop": ["the river was", "mountain"]}, 8),
    "schema": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "Invent a person, as JSON."}],
            "temperature": 0.7,
            "seed": 11,
            "max_tokens": 48,
            "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
        },
        6,
    ),
    "usage": (CHAT, {"messages": STORY, "temperature": 0, "max_tokens": 30, "stream_options": {"include_usage": True}}, 10),
    "barely": (CHAT, {"messages": STORY, "temperature": 0, "max_tokens": 20}, 1),
}  # fmt: skip


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    http: httpx.Client
    log: Path

    def kill(self) -> None:
        """kill -9 of the server and of all its processes."""
        every = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        for process in every:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(10)
        psutil.wait_procs(every, timeout=10)


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Server]:
    """A server with a journal. arguments: of the model; without them the usual one is served."""
    port = free_port()
    log = folder / f"log-{port}"
    journal = ("--request-journal", str(folder / "journal"))
    with log.open("wb") as out:
        words = command("serve", "--port", str(port), *(arguments or ("--max-model-len", "2048")), *journal)
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT)
    server = Server(process, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60), log)
    try:
        deadline = time.monotonic() + START_LIMIT_SECONDS
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            with contextlib.suppress(httpx.TransportError):
                server.http.get("/health")
                break
            time.sleep(0.05)
        yield server
    finally:
        server.http.close()
        if process.poll() is None:
            server.kill()


def told(reading: Reading) -> list[Any]:
    """What the events say, by choice: between choices the order is that of the steps in which they ran."""
    choices = [choice for body in reading.bodies for choice in body["choices"]]
    usage = [body["usage"] for body in reading.bodies if body.get("usage")]
    for counts in usage:
        counts.pop("prompt_tokens_details", None)
    return [sorted(choices, key=lambda choice: choice["index"]), usage]


def begin(server: Server, names: Sequence[str]) -> tuple[dict[str, Reading], dict[str, Reading]]:
    """The undisturbed answers, and the same requests once more, each left in the middle."""
    whole: dict[str, Reading] = {}
    cut: dict[str, Reading] = {}
    for name in names:
        path, body, _ = STREAMS[name]
        whole[name] = read(server.http, path, body, Reading())
    for name in names:
        path, body, most = STREAMS[name]
        cut[name] = read(server.http, path, body, Reading(), most)
    return whole, cut


def check(server: Server, whole: dict[str, Reading], cut: dict[str, Reading]) -> None:
    """What is still to come makes the same answers."""
    for name, reading in cut.items():
        path, body, _ = STREAMS[name]
        read(server.http, path, body, reading)
        reading.check_numbers()
        assert told(reading) == told(whole[name]), name
        again = read_again(server.http, f"{path}/{reading.answer_id}")
        assert [event.data for event in again.events] == [event.data for event in reading.events], name
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_streams_go_on_after_kill_9(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        whole, cut = begin(server, ["seeded", "prompts"])
        server.kill()
    with serving(tmp_path) as server:
        check(server, whole, cut)


@pytest.mark.slow
def test_everything_goes_on_after_two_kills(tmp_path: Path) -> None:
    background = {"input": "Count to thirty.", "temperature": 0, "max_output_tokens": 60, "background": True}
    with serving(tmp_path) as server:
        sought = finished(server, server.http.post(RESPONSE, json=background).json()["id"])
        whole, cut = begin(server, list(STREAMS))
        made = server.http.post(RESPONSE, json=background).json()
        apart = read(server.http, RESPONSE, background, Reading(), 3)
        server.kill()
    with serving(tmp_path) as server:
        for name in list(STREAMS)[:4]:
            path, body, most = STREAMS[name]
            read(server.http, path, body, cut[name], most + 3)
        server.kill()
    with serving(tmp_path) as server:
        check(server, whole, cut)
        found = finished(server, made["id"])
        assert found["created_at"] == made["created_at"]
        assert texts(found) == texts(sought)
        assert found["usage"]["output_tokens"] == sought["usage"]["output_tokens"]
        rest = read_again(server.http, f"{RESPONSE}/{apart.answer_id}?stream=true", **{"Last-Event-ID": apart.last_id})
        assert texts(rest.events[-1].body["response"]) == texts(sought)
        numbers = [body["sequence_number"] for body in [*apart.bodies, *rest.bodies]]
        assert numbers == list(range(len(numbers)))


def finished(server: Server, name: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        response: dict[str, Any] = server.http.get(f"{RESPONSE}/{name}").json()
        if response["status"] not in ("queued", "in_progress"):
            return response
        assert time.monotonic() < deadline, response
        time.sleep(0.05)


def texts(response: dict[str, Any]) -> list[str]:
    return [part["text"] for item in response["output"] for part in item["content"]]

"""`core serve` as a stranger uses it: the embedded model in a process of its own, and the official client."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import psutil
import pytest

from tests.apis.serving_processes import free_port

START_LIMIT_SECONDS = 120
OTHER_MEMORY_LIMIT = 450 * 2**20


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    base: str

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.base + path, timeout=10) as answer:
            return answer.read().decode()

    def metric(self, name: str) -> float:
        line = next(line for line in self.get("/metrics").splitlines() if line.startswith(f"core:{name}{{"))
        return float(line.rsplit(" ", 1)[1])


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "core", *arguments]


@contextmanager
def serving(log: Path, *arguments: str) -> Iterator[Server]:
    port = free_port()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command("serve", "--port", str(port), "--max-model-len", "2048", *arguments),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    running = Server(process, f"http://127.0.0.1:{port}")
    deadline = time.monotonic() + START_LIMIT_SECONDS
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        try:
            running.get("/health")
            break
        except OSError:
            time.sleep(0.05)
    yield running
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0, log.read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server") / "log") as running:
        yield running


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0)


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return client_of(server)


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    question = [{"role": "user", "content": "What is the capital city of Japan?"}]
    answer = client.chat.completions.create(model=model, messages=question, temperature=0)
    assert "Tokyo" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(model=model, messages=question, temperature=0, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert streamed == answer.choices[0].message.content


def test_tools_work_although_the_model_was_never_shown_any(client: openai.OpenAI) -> None:
    """The embedded model's template shows no tools: a message describes them, and a grammar holds the answer to a call."""
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tools = [
        {"type": "function", "function": {"name": "forecast", "parameters": parameters}},
        {"type": "function", "function": {"name": "now", "description": "The time."}},
    ]
    asked = {"model": client.models.list().data[0].id, "tools": tools, "temperature": 0, "max_tokens": 60}
    history = [{"role": "user", "content": "How warm will it be in Rome?"}]
    free = client.chat.completions.create(**asked, messages=history, extra_body={"explain": True})
    assert free.choices[0].message.content or free.choices[0].message.tool_calls
    assert "shows no tools" in free.model_extra["explain"]["tools"]
    named = {"type": "function", "function": {"name": "forecast"}}
    for choice in ("required", named):
        one_call = {"tool_choice": choice, "parallel_tool_calls": False}
        answer = client.chat.completions.create(**asked, **one_call, messages=history).choices[0]
        assert answer.finish_reason == "tool_calls"
        call = answer.message.tool_calls[0]
        assert call.function.name in ("forecast", "now")
    given = json.loads(call.function.arguments)
    assert call.function.name == "forecast"
    assert given["city"] in ("Paris", "Rome") and 1 <= given["days"] <= 5
    history += [
        answer.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "20 °C"},
    ]
    assert client.chat.completions.create(**asked, messages=history, tool_choice="none").choices[0].message.content


async def test_many_at_once_are_answered_as_alone(server: Server) -> None:
    client = openai.AsyncOpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0)
    model = (await client.models.list()).data[0].id

    async def one(index: int) -> str:
        answer = await client.completions.create(
            model=model, prompt=f"Count: {index},", max_tokens=24, temperature=0.8, seed=index, logprobs=1
        )
        return answer.choices[0].text

    alone = [await one(index) for index in range(6)]
    assert await asyncio.gather(*(one(index) for index in range(6))) == alone


def test_a_client_that_leaves_gives_its_blocks_back(server: Server, client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    stream = client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
    )
    for _, _chunk in zip(range(3), stream, strict=False):
        assert server.metric("num_requests_running") >= 0
    assert server.metric("kv_cache_usage_perc") > 0
    stream.close()
    deadline = time.monotonic() + 10
    while server.metric("num_requests_running") or server.metric("kv_cache_usage_perc"):
        assert time.monotonic() < deadline, server.get("/metrics")
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"temperature": -1}, 400),
        ({"n": 100000}, 400),
        ({"logprobs": 1000}, 400),
        ({"prompt": ""}, 400),
        ({"prompt": "word " * 4000}, 400),
        ({"model": "no-such-model"}, 404),
        ({"max_tokens": "many"}, 400),
        ({"top_p": 7}, 400),
        ({"prompt": [2**40]}, 400),
    ],
)
def test_bad_requests_are_refused_and_the_engine_goes_on(client: openai.OpenAI, change: dict, status: int) -> None:
    model = client.models.list().data[0].id
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(**{"model": model, "prompt": "Hello", "max_tokens": 4, **change})
    assert caught.value.status_code == status
    assert set(caught.value.response.json()["error"]) == {"message", "type", "param", "code"}
    assert client.completions.create(model=model, prompt="Hello", max_tokens=4).usage.completion_tokens <= 4


def test_a_port_in_use_is_a_sentence(server: Server) -> None:
    port = server.base.rsplit(":", 1)[1]
    done = subprocess.run(command("serve", "--port", port), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert port in done.stderr and "--port" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads proportional set sizes from /proc")
def test_memory_is_weights_plus_cache_plus_little(tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--platform-config.prefault-mib", "0") as server:
        client = client_of(server)
        client.completions.create(model=client.models.list().data[0].id, prompt=[5] * 1500, max_tokens=8)
        root = psutil.Process(server.process.pid)
        total = sum(process.memory_full_info().pss for process in [root, *root.children(recursive=True)])
    weights = 98_362_432  # bytes of the checkpoint's file
    touched_kv = 1600 * 30 * 2 * 3 * 64 * 2 * 4  # tokens so far, rounded up
    assert total - weights - touched_kv < OTHER_MEMORY_LIMIT, f"{total / 2**20:.0f} MiB in all"


def test_the_server_process_needs_no_torch(server: Server) -> None:
    maps = Path(f"/proc/{server.process.pid}/maps")
    if not maps.exists():
        pytest.skip("reads /proc")
    assert "libtorch" not in maps.read_text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/no/such/model"], "/no/such/model"),
        (["--dtype", "bfloat61"], "bfloat16"),
        (["--max-model-length", "100"], "--max-model-len"),
        (["--attention-backend", "torch_spda"], "torch_sdpa"),
        (["--max-model-len", "9000"], "8192"),
        (["--speculative-config", '{"method": "ngrm", "num_speculative_tokens": 2}'], "ngram"),
    ],
)
def test_wrong_arguments_are_sentences(arguments: list[str], expected: str) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command("serve", *arguments), capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2
    assert expected in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("make", ["empty directory", "unknown architecture", "not a model"])
def test_checkpoints_that_are_none_are_sentences(tmp_path: Path, make: str) -> None:
    target = tmp_path / "model"
    if make == "not a model":
        target.write_bytes(b"GGUF" + b"\xff" * 100)
    else:
        target.mkdir()
        if make == "unknown architecture":
            (target / "config.json").write_text('{"architectures": ["GemmaaForCausalLM"], "model_type": "gemmaa"}')
            (target / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    done = subprocess.run(command("serve", str(target)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and done.stderr.strip()

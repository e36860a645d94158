"""A batch on a real server whose engine and processes are killed has the answers of one that nobody disturbed."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.apis.test_real_server import Server, serving

COUNT = 40
WAYS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "api processes": ("--api-server-count", "2"),
    "two engines": ("--data-parallel-size", "2"),
    "drafts": ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'),
    "fair": ("--scheduling-policy", "fair", "--max-stall-ms", "100"),
}


def lines() -> bytes:
    rows = []
    for number in range(COUNT):
        body = {
            "prompt": f"Story number {number}: once upon a time",
            "max_tokens": 120,
            "temperature": 0.7,
            "seed": number,
        }
        rows.append(json.dumps({"custom_id": f"r{number}", "url": "/v1/completions", "body": body}))
    return "\n".join(rows).encode()


def begin(client: openai.OpenAI) -> str:
    name = client.files.create(file=("in.jsonl", lines()), purpose="batch").id
    return client.batches.create(input_file_id=name, endpoint="/v1/completions", completion_window="1h").id


def until(client: openai.OpenAI, name: str, count: int) -> Any:
    """The batch, once it has ended or has so many results."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(name)
        if batch.status == "completed" or batch.request_counts.completed >= count:
            return batch
        time.sleep(0.1)
    raise AssertionError(batch)


def finished(client: openai.OpenAI, name: str) -> dict[str, str]:
    batch = until(client, name, COUNT + 1)
    assert batch.status == "completed" and batch.error_file_id is None, batch
    found = {}
    for row in client.files.content(batch.output_file_id).text.splitlines():
        result = json.loads(row)
        found[result["custom_id"]] = result["response"]["body"]["choices"][0]["text"]
    return found


def insist(url: str) -> None:
    """Post until it is done: an engine that starts again cannot sleep yet."""
    deadline = time.monotonic() + 60
    while httpx.post(url, timeout=60).status_code != 200:
        assert time.monotonic() < deadline, url
        time.sleep(0.2)


def engines_of(server: Server) -> Iterator[psutil.Process]:
    for child in psutil.Process(server.process.pid).children(recursive=True):
        if "core.engine.process" in child.cmdline():
            yield child


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The answers, each asked for alone and in the ordinary class."""
    with serving(tmp_path_factory.mktemp("alone") / "log", "--served-model-name", "model") as server:
        client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="none")
        found = {}
        for row in lines().splitlines():
            asked = json.loads(row)
            answer = client.completions.create(model="model", **asked["body"])
            found[asked["custom_id"]] = answer.choices[0].text
        return found


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_outlives_engines_and_servers(way: str, tmp_path: Path, alone: dict[str, str]) -> None:
    arguments = ("--served-model-name", "model", "--engine-restart-backoff", "0", "--enable-sleep-mode")
    arguments += ("--batch-directory", str(tmp_path / "batches"), *WAYS[way])
    # It is killed, so its end is not waited for as that of others is.
    server = serving(tmp_path / "log", *arguments).__enter__()
    client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="none")
    name = begin(client)
    until(client, name, 2)
    next(engines_of(server)).kill()
    until(client, name, 6)
    insist(f"{server.base}/sleep?level=1")
    insist(f"{server.base}/wake_up")
    before = until(client, name, 8).request_counts.completed
    for child in psutil.Process(server.process.pid).children(recursive=True):
        child.kill()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    with serving(tmp_path / "log2", *arguments) as server:
        client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="none")
        assert client.batches.retrieve(name).request_counts.completed >= before - 8
        found = finished(client, name)
        assert [name for name in alone if found[name] != alone[name]] == []

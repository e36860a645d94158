"""What the tests with Ray look at: processes of actors, placement groups, and a server in the cluster."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.apis.serving_processes import ROOT, free_port

LIMIT_S = 120
HOST_ACTOR, ENGINE_ACTOR = "ray::HostActor", "ray::EngineActor"
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a token of more than thirty-two characters"}
os.environ.update(TOKEN)
"""Ray reads these when it is imported, and processes that join the cluster inherit them."""
BODY = {"prompt": [1, 2, 3, 4, 5], "max_tokens": 200, "ignore_eos": True, "temperature": 0, "return_token_ids": True}


@contextmanager
def one_node() -> Iterator[str]:
    """A cluster of one node with four processors, protected by a token as Ray's clusters are; its address."""
    import ray

    try:
        ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, logging_level="WARNING")
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def words_of(process: psutil.Process) -> list[str]:
    """The command line of a process that runs."""
    try:
        return list(process.cmdline()) if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.NoSuchProcess:
        return []


def actors_of(kind: str) -> list[psutil.Process]:
    """The processes of all actors of a kind on this machine."""
    return [each for each in psutil.process_iter() if " ".join(words_of(each)).startswith(kind)]


def actors() -> list[psutil.Process]:
    """The processes of all actors with ranks."""
    return actors_of(HOST_ACTOR)


def ranks() -> list[psutil.Process]:
    """The processes of all ranks."""
    return [each for each in psutil.process_iter() if "core_distributed.rank" in words_of(each)]


def groups() -> list[str]:
    """The states of the placement groups that there are."""
    import ray

    states = [group["state"] for group in ray.util.placement_group_table().values()]
    return [state for state in states if state != "REMOVED"]


def until(what: str, check: Callable[[], bool]) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + LIMIT_S
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def nothing_is_left() -> None:
    """Wait until no actor, rank and placement group is left."""
    until("no actors are left", lambda: not actors() and not actors_of(ENGINE_ACTOR))
    until("no ranks are left", lambda: not ranks())
    until("no placement group is left", lambda: not groups())


@contextmanager
def serving(
    model: Path, address: str, log: Path, words: Sequence[str]
) -> Iterator[tuple[httpx.Client, "subprocess.Popen[bytes]"]]:
    """A server in the cluster at this address, with a client."""
    port = free_port()
    command = [sys.executable, "-m", "core", "serve", str(model), "--port", str(port), *words]
    command += ["--max-model-len", "256", "--kv-cache-memory-bytes", "8M", "--served-model-name", "model"]
    with log.open("wb") as file:
        environment = {**os.environ, "RAY_ADDRESS": address}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S)
    try:
        until("the server is ready", lambda: process.poll() is not None or is_ready(client))
        assert process.poll() is None, log.read_text()
        yield client, process
    finally:
        client.close()
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)


def is_ready(client: httpx.Client) -> bool:
    """Whether the server takes requests."""
    try:
        return client.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def answer(client: httpx.Client) -> list[int]:
    """The token ids of the answer."""
    found: Any = client.post("/v1/completions", json={"model": "model", **BODY}).raise_for_status().json()
    return list(found["choices"][0]["token_ids"])


def streamed(client: httpx.Client, meanwhile: Callable[[], None] | None = None) -> list[int]:
    """The token ids of the same answer, as a stream. meanwhile: called after the first pieces."""
    found: list[int] = []
    with client.stream("POST", "/v1/completions", json={"model": "model", **BODY, "stream": True}) as stream:
        for place, line in enumerate(line for line in stream.iter_lines() if line.startswith("data: {")):
            found += json.loads(line[6:])["choices"][0].get("token_ids") or []
            if place == 5 and meanwhile is not None:
                meanwhile()
    return found

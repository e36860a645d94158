"""examples/ray_serve.py with a real Ray: `make test-ray`, or `python -m tests.deploy.ray_serve` where Ray Serve is installed.

Checks that answers stream, that a stream goes on when the engine is killed, that a client who leaves ends its request, that a
second replica comes with the load, that a stream ends whole in a replica that is taken away, of which nothing is left, and that
a replica whose engines are given up is replaced.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import ray
from ray import serve

from examples.ray_serve import build

LIMIT_S = 600
ENGINE = "core.engine.process"
ARGUMENTS = {
    "arguments": "--max-model-len 2048 --kv-cache-memory-bytes 128M --max-num-seqs 8 --served-model-name model "
    "--platform-config.threads 1",
    "cpus": "1",
    "target_requests": "2",
    "drain_s": "60",
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def engines() -> list[psutil.Process]:
    """The engine processes of all replicas."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if ENGINE in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def wait_for(what: str, check: Callable[[], Any]) -> None:
    begin = time.monotonic()
    while not check():
        assert time.monotonic() - begin < LIMIT_S, what
        time.sleep(0.2)
    print(f"{what}: {time.monotonic() - begin:.1f} s", flush=True)


class Client:
    """A client of the application."""

    def __init__(self, port: int) -> None:
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S)

    def body(self, tokens: int, **further: Any) -> dict[str, Any]:
        return {
            "model": "model",
            "prompt": "The sea is",
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            **further,
        }

    def whole(self, tokens: int) -> str:
        answer = self.http.post("/v1/completions", json=self.body(tokens)).raise_for_status()
        text: str = answer.json()["choices"][0]["text"]
        return text

    def stream(self, tokens: int) -> Iterator[str]:
        """Yield the pieces of an answer; an answer that breaks off raises."""
        with self.http.stream("POST", "/v1/completions", json=self.body(tokens, stream=True)) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    yield json.loads(line[6:])["choices"][0]["text"]
        raise AssertionError("the stream broke off")

    def running(self) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("core:num_requests_running"))


def main() -> None:
    """Run all checks in turn."""
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, logging_level="WARNING")
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    begin = time.monotonic()
    serve.run(build(ARGUMENTS))
    print(f"the first replica: {time.monotonic() - begin:.1f} s", flush=True)
    client = Client(port)
    for path in ("/health", "/ready", "/v1/models"):
        client.http.get(path).raise_for_status()
    assert client.http.post("/v1/completions", json={"model": "other", "prompt": "x"}).status_code == 404
    expected = client.whole(200)
    check_streams(client, expected)
    check_a_client_who_leaves(client)
    check_a_second_replica(client)
    check_the_end(client, expected)
    check_a_new_replica(client)
    ray.shutdown()
    print("examples/ray_serve.py works")


def check_streams(client: Client, expected: str) -> None:
    """Pieces come one by one, also across the death of the engine, and are the answer that comes as a whole."""
    for kill in (False, True):
        times, text = [], ""
        for number, piece in enumerate(client.stream(200)):
            times.append(time.monotonic())
            text += piece
            if kill and number == 20:
                (engine,) = engines()
                engine.kill()
        assert text == expected, "a stream has other text"
        assert len(set(times)) > 50, "the pieces came together"
    print("streams: equal text, also when the engine is killed", flush=True)


def check_a_client_who_leaves(client: Client) -> None:
    """A request whose client has gone is not computed any more."""
    stream = client.stream(1900)
    next(stream)
    assert client.running() == 1
    stream.close()
    wait_for("a client who leaves frees its place", lambda: client.running() == 0)


def check_a_second_replica(client: Client) -> None:
    """With more requests than a replica should have, Ray starts another one."""
    enough = threading.Event()

    def load() -> None:
        while not enough.is_set():
            client.whole(200)

    threads = [threading.Thread(target=load) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        wait_for("a second replica", lambda: running_replicas() == 2)
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def running_replicas() -> int:
    """The number of replicas that take requests."""
    (application,) = serve.status().applications.values()
    (deployment,) = application.deployments.values()
    return deployment.replica_states.get("RUNNING", 0)


def check_the_end(client: Client, expected: str) -> None:
    """A replica that is taken away finishes its stream."""
    stream = client.stream(200)
    text = next(stream)
    ending = threading.Thread(target=serve.delete, args=("default",))
    ending.start()
    text += "".join(stream)
    assert text == expected, "the stream of a replica that ends has other text"
    ending.join()
    wait_for("no engine is left", lambda: not engines())


def check_a_new_replica(client: Client) -> None:
    """A replica with a group of engines, all of which are given up, is replaced: its health check fails."""
    serve.run(build(ARGUMENTS | {"arguments": ARGUMENTS["arguments"] + " --data-parallel-size 2 --engine-restarts 0"}))
    assert len(engines()) == len(client.http.get("/health").json()["engines"]) == 2
    for engine in engines():
        engine.kill()
    assert client.http.post("/v1/completions", json=client.body(8)).status_code == 503
    wait_for("a new replica", lambda: client.http.get("/health").status_code == 200)
    client.whole(8)


if __name__ == "__main__":
    main()

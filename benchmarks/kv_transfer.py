"""What a prompt costs whose blocks another engine has: `python -m benchmarks.kv_transfer`.

Owns: two servers on this machine, one of which offers its blocks over TCP to the other, and three times to the first token
there: of a prompt that nobody knows, of one whose blocks come from the first server, and of one in its own cache. Never does:
compare with another engine.

Both servers run with one thread, so that neither waits for the other's; only one of them computes at a time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from typing import Any

import httpx

READY_S = 120.0
PAUSE_S = 0.2


class Server:
    """A server of the embedded model, or of `model`. connector: keys of --kv-connectors-config.tcp."""

    def __init__(self, port: int, model: str | None, connector: dict[str, Any]) -> None:
        arguments = [
            "--port",
            str(port),
            "--host",
            "127.0.0.1",
            "--max-model-len",
            "8192",
            "--platform-config.threads",
            "1",
        ]
        sharing = ["--kv-connectors", "tcp", "--kv-connectors-config", json.dumps({"tcp": connector})]
        command = [sys.executable, "-m", "core", "serve", *([model] if model else []), *arguments, *sharing]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit("A server does not start.")
            time.sleep(PAUSE_S)
        self._model = self._http.get("/v1/models").json()["data"][0]["id"]

    def first_token_ms(self, prompt: list[int]) -> float:
        """Milliseconds until one token is there."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        begin = time.perf_counter()
        self._http.post("/v1/completions", json=body).raise_for_status()
        return (time.perf_counter() - begin) * 1e3

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()

    def _is_ready(self) -> bool:
        try:
            return self._http.get("/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


def main() -> None:
    """Measure and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: the embedded model")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument(
        "--saved-s", type=float, default=2.0, help="seconds that the first server has to offer its blocks"
    )
    parser.add_argument("--port", type=int, default=8311)
    options = parser.parse_args()
    place = f"127.0.0.1:{options.port + 2}"
    servers: list[Server] = []
    try:
        servers.append(Server(options.port, options.model, {"listen": place}))
        servers.append(Server(options.port + 1, options.model, {"peers": [place]}))
        first, second = servers
        times: dict[str, list[float]] = {"computed": [], "from the other engine": [], "own cache": []}
        for turn in range(options.turns + 1):
            drawn = random.Random(turn)
            unknown, known = ([drawn.randrange(300, 30_000) for _ in range(options.tokens)] for _ in range(2))
            first.first_token_ms(known)
            time.sleep(options.saved_s)
            told = [second.first_token_ms(unknown), second.first_token_ms(known), second.first_token_ms(known)]
            if turn:  # the first one warms up
                for values, value in zip(times.values(), told, strict=True):
                    values.append(value)
    finally:
        for server in servers:
            server.close()
    medians = {name: round(statistics.median(values), 1) for name, values in times.items()}
    print(json.dumps({"tokens": options.tokens, "turns": options.turns, "first token, ms": medians}))


if __name__ == "__main__":
    main()

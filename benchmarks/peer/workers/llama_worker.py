"""llama.cpp as a worker: a `llama-server` of its own, asked for whole completions over loopback.

Options: command (the server without port), cache_prompt, log. Every request has its own thread and connection, and the
answer comes in one piece, so HTTP costs about a millisecond a request.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from worker_loop import Options, serve

START_LIMIT_S = 120.0
REQUEST_LIMIT_S = 300.0


class Engine:
    def __init__(self, options: Options) -> None:
        self.imported = time.perf_counter()
        self._cache_prompt = options["cache_prompt"]
        self._drafts: list[tuple[int, int]] = []
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self._port = listener.getsockname()[1]
        command = [*options["command"], "--host", "127.0.0.1", "--port", str(self._port)]
        with open(options["log"], "wb") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self._wait(options["log"])
        self.version = self._request("GET", "/props").get("build_info", "unknown")

    def generate(self, prompts: list[list[int]], max_tokens: int, adapters: list[str] | None = None) -> list[list[int]]:
        def one(ids: list[int], adapter: str | None) -> list[int]:
            body: dict[str, Any] = {
                "prompt": ids,
                "n_predict": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": self._cache_prompt,
                "return_tokens": True,
            }
            if adapter is not None:
                body["lora"] = [{"id": self._adapter(adapter), "scale": 1.0}]
            answer = self._request("POST", "/completion", body)
            times = answer.get("timings", {})
            self._drafts.append((times.get("draft_n", 0), times.get("draft_n_accepted", 0)))
            return list(answer["tokens"])

        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(one, prompts, adapters or [None] * len(prompts)))

    def _adapter(self, name: str) -> int:
        """Return the number of an adapter, which was loaded when the server began."""
        for known in self._request("GET", "/lora-adapters"):
            if Path(known["path"]).stem == name:
                return int(known["id"])
        raise RuntimeError(f"llama-server loads adapters only when it starts; '{name}' was not there")

    def drafts(self) -> list[int]:
        return [sum(drafted for drafted, _ in self._drafts), sum(accepted for _, accepted in self._drafts)]

    def close(self) -> None:
        self._server.terminate()
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self._server.kill()

    def _wait(self, log: str) -> None:
        start = time.perf_counter()
        while time.perf_counter() - start < START_LIMIT_S:
            if self._server.poll() is not None:
                raise RuntimeError(f"llama-server ended with {self._server.returncode}; see {log}")
            try:
                if self._request("GET", "/health").get("status") == "ok":
                    return
            except (OSError, RuntimeError):
                time.sleep(0.02)
        self.close()
        raise RuntimeError(f"llama-server was not ready within {START_LIMIT_S:g} s; see {log}")

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_LIMIT_S)
        try:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, path, payload, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"llama-server answered {answer.status}: {text[:300].decode(errors='replace')}")
            parsed: dict[str, Any] = json.loads(text)
            return parsed
        finally:
            connection.close()


if __name__ == "__main__":
    serve(Engine)

"""Start of the server: from spawn to the first completion, and the memory of all its processes.

Owns: `Server`, any OpenAI-compatible server as a child process, and the reading of /proc. Called by: `benchmarks.run`,
`benchmarks.peers`; `python -m benchmarks.startup`. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_LIMIT_S = 120.0
STOP_LIMIT_S = 20.0
REQUEST_LIMIT_S = 300.0


class ServerError(Exception):
    """A server did not start, ended, or answered with an error. status: of HTTP, or 0."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """A server on 127.0.0.1:port, as a context manager. start_seconds: spawn to the first completion.

    command: what starts it, port included; environment: added to ours; log: kept when named, else temporary.
    """

    def __init__(
        self,
        command: list[str],
        port: int,
        *,
        environment: dict[str, str] | None = None,
        start_limit_s: float = START_LIMIT_S,
        log: Path | None = None,
    ) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.start_seconds = 0.0
        self.model = ""
        self._command = command
        self._environment = os.environ | (environment or {})
        self._limit = start_limit_s
        self._keep_log = log is not None
        self._log = open(log, "wb") if log else tempfile.NamedTemporaryFile(prefix="server-", delete=False)  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        start = time.perf_counter()
        self._process = subprocess.Popen(
            self._command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=self._environment,
        )
        try:
            while not self._completes():
                self._require_patience(start)
                time.sleep(0.02)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.perf_counter() - start
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def get(self, path: str) -> Any:
        """The JSON answer to GET."""
        with urllib.request.urlopen(self.base + path, timeout=60) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer to POST."""
        request = urllib.request.Request(
            self.base + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_LIMIT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read()[:400].decode(errors="replace")
            raise ServerError(f"{path} answered {error.code}: {text}", error.code) from error

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, by the server's tokenizer."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        return list(self.post("/tokenize", body)["tokens"])

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        if self._process is None:
            raise RuntimeError("The server is not running; enter the context first.")
        return self._process.pid

    def memory(self) -> dict[str, float]:
        """{process: proportional set size in MB} of the server's process tree, and their sum."""
        sizes = {f"{pid} {command_name(pid)}": pss_megabytes(pid) for pid in process_tree(self.pid)}
        return sizes | {"total": sum(sizes.values())}

    def pause(self) -> None:
        """Stop all its processes where they are, so that they neither compute nor spin."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _completes(self) -> bool:
        """Whether a completion of one token comes back; False while nobody listens or the model is being loaded."""
        try:
            self.model = self.get("/v1/models")["data"][0]["id"]
            self.post("/v1/completions", {"model": self.model, "prompt": "Hello", "max_tokens": 1, "temperature": 0})
        except (urllib.error.URLError, ConnectionError):
            return False
        except ServerError as error:
            if error.status != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return False
        return True

    def _require_patience(self, start: float) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise ServerError(f"The server ended with {self._process.returncode}: {self._last_words()}")
        if time.perf_counter() - start > self._limit:
            raise ServerError(f"The server did not answer within {self._limit:g} s: {self._last_words()}")

    def _last_words(self) -> str:
        return Path(self._log.name).read_text(errors="replace")[-1500:]

    def stop(self) -> None:
        """Interrupt it, then end its process group; harmless before the start and the second time."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGCONT)
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):  # whoever is left in the server's own session
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._log.close()
        if not self._keep_log:
            os.unlink(self._log.name)


def core_server(
    model: str | None = None, arguments: list[str] | None = None, environment: dict[str, str] | None = None
) -> Server:
    """`core serve` of this checkout on a free port. environment: see `Server`."""
    port = free_port()
    command = [sys.executable, "-P", "-m", "core", "serve", *([model] if model else [])]
    command += ["--port", str(port), *(arguments or [])]
    checkout = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    return Server(command, port, environment=checkout | (environment or {}))


def with_bytecode(folder: Path) -> dict[str, str]:
    """The environment of a program that keeps its compiled modules in `folder`, whatever the caller's own says.

    Installers compile modules. A checkout is compiled by its first start, but not under PYTHONDONTWRITEBYTECODE, where every
    start compiles a thousand of them.
    """
    return {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def process_tree(pid: int) -> list[int]:
    """The process and all its living descendants."""
    found, todo = [], [pid]
    while todo:
        current = todo.pop()
        with contextlib.suppress(OSError):
            for children in Path(f"/proc/{current}/task").glob("*/children"):
                todo += [int(child) for child in children.read_text().split()]
            found.append(current)
    return found


def command_name(pid: int) -> str:
    """The process's name as the kernel shows it."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "gone"


def pss_megabytes(pid: int) -> float:
    """Proportional set size: shared pages are divided among those who share them."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1000
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="model reference; the embedded default when left out")
    parser.add_argument("--repeats", type=int, default=3, help="starts that count, after one that is not")
    parser.add_argument("arguments", nargs="*", help="for `core serve`, after --")
    options = parser.parse_args()
    seconds, memory = [], {}
    with tempfile.TemporaryDirectory(prefix="core-bytecode-") as folder:
        for _ in range(options.repeats + 1):
            with core_server(options.model, options.arguments, with_bytecode(Path(folder))) as server:
                seconds.append(server.start_seconds)
                memory = server.memory()
    print(f"spawn to first completion: {statistics.median(seconds[1:]):.2f} s (first start {seconds[0]:.2f} s)")
    for name, size in memory.items():
        print(f"PSS {name}: {size:.0f} MB")


if __name__ == "__main__":
    main()

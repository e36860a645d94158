"""A `core serve` of this checkout that is there to be attacked, and what can be measured about it.

Owns: its start, end, directories, processes, memory, log. Never does: attack. Linux only: it reads /proc.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from tests.attack.make import completion
from tests.attack.row import KEY, SETUPS, Answer, Row
from tests.attack.send import Target, send
from tests.attack.slow import SlowCallback, slow_callbacks

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 180.0
END_LIMIT_S = 25.0
MAX_MODEL_LEN = 2048
ARGUMENTS = {
    "host": "127.0.0.1", "port": 0, "api_key": KEY, "max_model_len": MAX_MODEL_LEN, "kv_cache_memory_bytes": "128M",
    "kv_offloading_disk_size": 0.05, "request_read_timeout": 5, "keep_alive_timeout": 5,
    "disable_uvicorn_access_log": True, "max_callback_ms": 20,
}  # fmt: skip
HEALTH = Row("health", "/health", method="GET", allowed=frozenset({200}))
METRICS = Row("metrics", "/metrics", method="GET", allowed=frozenset({200}))
TOKENS = Row("tokens", "/v1/completions", completion(prompt="Once upon a time", max_tokens=24, return_token_ids=True))


class Server:
    """One server process with directories of its own below `home`.

    shell: how a shell starts it, with "$@" as its command, for limits and redirections.
    arguments: those that differ from `ARGUMENTS`; None leaves one out.
    """

    def __init__(self, home: Path, *, shell: str = 'exec "$@"', log: int | None = None, **arguments: Any) -> None:
        self.temporary = home / "tmp"  # a new server finds what a killed one left behind
        self.tier = Path(arguments.get("kv_offloading_disk_path") or home / "kv")
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.others = set(self.run_directories())
        self.log_file = home / f"log-{time.monotonic_ns()}"
        merged = {**ARGUMENTS, "kv_offloading_disk_path": self.tier, **arguments}
        command = [sys.executable, "-P", "-m", "core", "serve", *flags(merged)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary), "HF_HUB_OFFLINE": "1"}
        with self.log_file.open("wb") as stream:
            output = stream if log is None else log
            self.process = subprocess.Popen(
                ["sh", "-c", shell, "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self.temporary,
            )
        key = merged["api_key"]
        self.target = Target("127.0.0.1", 0, key[0] if isinstance(key, list) else key)

    def wait(self, limit_s: float = START_LIMIT_S) -> Target:
        """Wait until it serves. Raises RuntimeError with its last words when it does not."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self.process.poll() is None:
            port = self._port()
            if port is not None:
                self.target = Target("127.0.0.1", port, self.target.key)
                if send(self.target, HEALTH, deadline - time.monotonic()).status == 200:
                    return self.target
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start (code {self.process.poll()}): {self.log()[-2000:]}")

    def _port(self) -> int | None:
        with suppress(psutil.Error):
            connections = psutil.Process(self.process.pid).net_connections("tcp")
            return next((found.laddr.port for found in connections if found.status == psutil.CONN_LISTEN), None)
        return None

    @property
    def engine(self) -> psutil.Process:
        """The engine's process. Raises StopIteration while there is none."""
        return next(child for child, words in self.children() if "core.engine.process" in words)

    def children(self) -> list[tuple[psutil.Process, list[str]]]:
        """Processes that it started and that live, each with its command line."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):  # one that has just ended has none
                found.append((child, child.cmdline()))
        return found

    def memory(self) -> dict[str, float]:
        """MB of the server's and of the engine's process, pages that they share divided between them."""
        return {"server": _pss(self.process.pid), "engine": _pss(self.engine.pid)}

    def log(self) -> str:
        """All it has printed so far."""
        return self.log_file.read_text(errors="replace")

    def slow_callbacks(self) -> tuple[list[SlowCallback], int]:
        """What its event loops say of callbacks that took too long, one line for each name in a minute; and how many they
        count besides."""
        found = slow_callbacks(self.log() if self.log_file.is_file() else "", datetime.now())
        counted = 0.0
        if self.process.poll() is None and self.target.port:
            counted = metric(self.target, "slow_callbacks")
        return found, max(0, int(counted) - len(found)) if counted == counted else 0

    def run_directories(self) -> list[str]:
        """What lies in its temporary directory."""
        return sorted(path.name for path in self.temporary.glob("core-*"))

    def left_behind(self) -> list[str]:
        """What lies there since it began."""
        return [name for name in self.run_directories() if name not in self.others]

    def orphans(self) -> list[int]:
        """Processes that were started with its temporary directory and still run, itself left out."""
        mark = f"TMPDIR={self.temporary}".encode()
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                if mark in environment and process.pid != self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found

    def end(self, number: signal.Signals = signal.SIGTERM, limit_s: float = END_LIMIT_S) -> int | None:
        """Send a signal and wait; the exit code, or None when it went on and had to be killed."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def kill(self) -> None:
        """End whatever still runs of it; each process by its id."""
        pids = self.orphans()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait_for_orphans(self, limit_s: float = 8.0) -> list[int]:
        """Processes that are left after a while."""
        deadline = time.monotonic() + limit_s
        while (left := self.orphans()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left


@contextmanager
def running(home: Path, **options: Any) -> Iterator[Server]:
    """A server that serves; ended, by force if need be, at the end."""
    server = Server(home, **options)
    try:
        server.wait()
        yield server
    finally:
        if server.process.poll() is None:
            server.end()
        server.kill()


def flags(arguments: Mapping[str, Any]) -> Sequence[str]:
    """Arguments as the command line takes them."""
    found: list[str] = []
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            found.append(flag)
        elif isinstance(value, list):
            found += [flag, *map(str, value)]
        elif value is not None:
            found += [flag, str(value)]
    return found


def setup_arguments(setup: str) -> dict[str, Any]:
    """The arguments of a setup of rows."""
    return dict(SETUPS[setup])


def metric(target: Target, name: str) -> float:
    """One number of /metrics; NaN when it is not there."""
    answer: Answer = send(target, METRICS)
    for line in answer.body.decode(errors="replace").splitlines():
        if line.startswith((f"core:{name}{{", f"core:{name}_total{{")):
            return float(line.rsplit(" ", 1)[1])
    return float("nan")


def _pss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1000
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no line 'Pss:'")

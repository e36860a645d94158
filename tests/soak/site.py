"""Where the server of a soak lives: its processes, its disk and its clock.

Owns: starting it, again after it was killed, and what is left of it. Never does: injure it, or ask it anything but its health.
Called by: the injuries, the clients, the run.
"""

import asyncio
import json
import mmap
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from core_config.locating.default_model import default_model
from tests.adapters.drawn import shapes_of, write_adapter
from tests.attack.row import Row
from tests.attack.send import Target, send
from tests.attack.server import METRICS, START_LIMIT_S, Server
from tests.soak.cases import ADAPTERS, CHANGES
from tests.soak.deaths import Deaths

LIVE = Row("live", "/live", method="GET")
DISK_MB = 64
GONE_LIMIT_S = 10.0
ADAPTER_SCALE = 0.02
ARGUMENTS: dict[str, Any] = {
    "max_model_len": 2048, "kv_cache_memory_bytes": "48M", "kv_offloading_disk_size": DISK_MB / 1024,
    "engine_restarts": 100_000, "engine_restart_backoff": 0.1, "engine_wedge_timeout": 4,
    "tool_call_parser": "hermes", "enable_sleep_mode": True, "weight_transfer_config": "{}", "api_server_count": 2,
    "enable_lora": True, "max_loras": 2, "max_cpu_loras": 4, "allow_runtime_lora_updating": True,
}  # fmt: skip
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Shows tools, which the embedded model's own does not."""
API, RANK, ENGINE = "core_apis.processes.api_process", "core_distributed.rank", "core.engine.process"
LIVES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


class Site:
    """One server after the other, of which one runs.

    generation: how many servers were killed. deaths: those that cut connections.
    clock_moves: whether its wall clock can be moved.
    notes: what this machine does not allow.
    """

    def __init__(self, home: Path, **arguments: Any) -> None:
        self.home = home
        self.generation = 0
        self.deaths = Deaths()
        self.notes: list[str] = []
        self.disk = home / "disk"
        template = home / "template.jinja"
        template.write_text(TEMPLATE)
        self.adapters = home / "adapters"
        self._arguments = {
            **ARGUMENTS,
            "chat_template": template,
            "kv_offloading_disk_path": self.disk / "kv",
            "lora_directory": self.adapters,
            "lora_modules": _written(self.adapters),
            **arguments,
        }
        self._is_mounted = self._mount()
        self._clock = self._make_clock()
        self._up = threading.Event()
        self.server = self.start()

    @property
    def target(self) -> Target:
        """The server that runs; waits while there is none."""
        return self.reach()[0]

    def reach(self) -> tuple[Target, int]:
        """The server that runs, and `Deaths.mark` of before a connection is made to it; waits while there is none."""
        self._up.wait(START_LIMIT_S)
        mark = self.deaths.mark()
        return self.server.target, mark

    @property
    def is_up(self) -> bool:
        """Whether there is a server just now."""
        return self._up.is_set()

    @property
    def clock_moves(self) -> bool:
        """Whether the wall clock of the server can be moved."""
        return self._clock is not None

    def has(self, name: str) -> bool:
        """Whether the server was given an argument."""
        return bool(self._arguments.get(name))

    def number(self, name: str) -> int:
        """An argument that is a number."""
        return int(self._arguments[name])

    def start(self) -> Server:
        """Start a server and wait until it serves."""
        shell = 'exec "$@"'
        if self._clock is not None:
            shell = f"export LD_PRELOAD={self.home}/clock.so SOAK_CLOCK={self.home}/clock; {shell}"
        self.server = Server(self.home, shell=shell, **self._arguments)
        self.server.wait()
        self._up.set()
        return self.server

    def kill_server(self) -> list[str]:
        """Kill the server and start another one; returns what the killed one left running."""
        with self.deaths.one():
            self._up.clear()
            self.generation += 1
            self.server.process.kill()
            self.server.process.wait()
            left = self.server.wait_for_orphans()
            self.server.kill()
            self.start()
        return [f"process {pid} outlived its server" for pid in left]

    def move_clock(self, seconds: int) -> None:
        """Let the wall clock jump. seconds: from the true time."""
        if self._clock is not None:
            self._clock[:8] = struct.pack("=q", seconds)

    def fill_disk(self) -> Path:
        """Take all room of the disk, or the directory itself where none could be mounted; returns what is to be deleted."""
        filler = self.disk / "filler"
        if not self._is_mounted:
            shutil.rmtree(self.disk / "kv", ignore_errors=True)
            return filler
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
        return filler

    def health(self) -> dict[str, Any]:
        """The answer of /live; empty when there is none."""
        with suppress(ValueError):
            answer = send(self.server.target, LIVE, 5.0)
            if answer.status == 200:
                return dict(json.loads(answer.body))
        return {}

    def api_processes(self) -> list[psutil.Process]:
        """Processes that answer HTTP requests."""
        return self._children(lambda words: API in words)

    def kill_api_process(self, number: int) -> None:
        """Kill one of them, whose connections are cut; the server starts another one."""
        processes = self.api_processes()
        if processes:
            with self.deaths.one():
                dying = processes[number % len(processes)]
                dying.kill()
                dying.wait(GONE_LIMIT_S)

    def ranks(self) -> list[psutil.Process]:
        """Ranks of the engine other than the first, which is its own process."""
        return self._children(lambda words: RANK in words)

    def helpers(self) -> list[psutil.Process]:
        """Processes of the server other than the engine with its ranks and those that answer requests."""
        return self._children(lambda words: not {API, RANK, ENGINE}.intersection(words))

    def _children(self, is_wanted: Callable[[list[str]], bool]) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return [child for child, words in self.server.children() if is_wanted(words)]
        return []

    def memory(self) -> float:
        """MB of the server process that are its own. Raises psutil.Error when it has gone."""
        return psutil.Process(self.server.process.pid).memory_full_info().uss / 1e6

    def descriptors(self, until: int = 0, limit_s: float = 0.0) -> list[str]:
        """Open files of the server process. until: wait for as few as that; silent connections take some seconds to end."""
        deadline = time.monotonic() + limit_s
        folder = Path(f"/proc/{self.server.process.pid}/fd")
        while True:
            found = []
            for link in folder.iterdir():
                with suppress(OSError):
                    found.append(str(link.readlink()))
            if len(found) <= until or time.monotonic() >= deadline:
                return sorted(found)
            time.sleep(0.5)

    def until_idle(self, limit_s: float) -> dict[str, float]:
        """Wait until nothing runs, waits or holds blocks; returns what still does."""
        deadline = time.monotonic() + limit_s
        while True:
            left = {name: self._total(name) for name in LIVES}
            if self.has("kv_transfer_config"):
                left["kv_leases"] = self._total("kv_leases")
            if not any(left.values()) or time.monotonic() > deadline:
                return {name: value for name, value in left.items() if value}
            time.sleep(0.2)

    def _total(self, name: str) -> float:
        """The sum of a metric over all engines; 0 while there is none."""
        lines = send(self.server.target, METRICS).body.decode(errors="replace").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"core:{name}{{"))

    def check_integrity(self) -> str:
        """What the engine's own check of blocks, tables and queues finds, and pins, asked over its socket; empty: nothing."""
        sockets = list(self.server.temporary.glob("core-*/engine.sock"))
        return asyncio.run(_check(str(sockets[-1]))) if sockets else "there is no engine to ask"

    def end(self) -> list[str]:
        """End the server in order; returns what it leaves."""
        code = self.server.end()
        left = [] if code == 0 else [f"the server ended with {code}"]
        left += [f"process {pid}" for pid in self.server.wait_for_orphans()]
        left += [f"directory {name}" for name in self.server.run_directories()]
        return left

    def close(self) -> None:
        """Give everything back, whatever happened."""
        self.server.kill()
        shutil.rmtree(shared_memory(self.home), ignore_errors=True)
        if self._is_mounted:
            subprocess.run(["umount", "-l", str(self.disk)], capture_output=True, check=False)

    def _mount(self) -> bool:
        self.disk.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(self.disk)]
        with suppress(OSError):
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return True
        self.notes.append("Nothing can be mounted here: instead of a full disk, the tier's directory is deleted.")
        return False

    def _make_clock(self) -> mmap.mmap | None:
        source = Path(__file__).with_name("clock.c")
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(self.home / "clock.so"), str(source)]
        try:
            subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            self.notes.append("There is no C compiler here: the wall clock does not jump.")
            return None
        path = self.home / "clock"
        path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), mmap.PAGESIZE)


def shared_memory(home: Path) -> Path:
    """The directory for pages in shared memory of the server that lives in `home`."""
    return Path("/dev/shm") / home.name


def _written(folder: Path) -> list[str]:
    """Write the adapters; returns them as the argument that names them."""
    shapes = shapes_of(str(default_model()))
    for seed, name in enumerate(ADAPTERS):
        write_adapter(folder / name, shapes, rank=8 + 8 * seed, seed=seed, scale=ADAPTER_SCALE)
    paths = {name: str(folder / name) for name in ADAPTERS} | {CHANGES: str(folder / ADAPTERS[0])}
    return [f"{name}={path}" for name, path in paths.items()]


async def _check(path: str) -> str:
    from core.api.errors import CoreError
    from core_supervision.link.zmq_client import ZmqClient

    try:
        client = await ZmqClient.connect(f"ipc://{path}", timeout_s=10.0)
    except CoreError as error:
        return str(error)
    client.listen(lambda _: None, lambda _: None)
    try:
        await asyncio.wait_for(client.call("check_integrity"), 10.0)
        num_pins, num_blocks = await asyncio.wait_for(client.call("num_pins"), 10.0)
    except (CoreError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        await client.close()
    return f"{num_pins} pins of sessions that are gone hold {num_blocks} blocks" if num_pins else ""

"""A share of the machine's processors for a server: a real control group, or a stand-in that stops and continues it.

Owns: groups that it makes (and removes), the stand-in's thread, and a library that lets a process see 32 processors.
Called by: `benchmarks.quota`, `benchmarks.neighbour`. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.startup import process_tree

PERIOD_S = 0.1
GROUPS = Path("/sys/fs/cgroup")
VISIBLE = """
#define _GNU_SOURCE
#include <sched.h>
#include <sys/sysinfo.h>
#include <unistd.h>
#include <dlfcn.h>
#define SEEN %d
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) {
    (void)pid;
    CPU_ZERO_S(size, set);
    for (int i = 0; i < SEEN; i++) CPU_SET_S(i, size, set);
    return 0;
}
int get_nprocs(void) { return SEEN; }
int get_nprocs_conf(void) { return SEEN; }
long sysconf(int name) {
    long (*real)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF ? SEEN : real(name);
}
"""


class Group:
    """A control group for processor time. quota: processors' worth. path: its folder. Raises OSError where none can be made."""

    kind = "control group"

    def __init__(self, quota: float | None) -> None:
        name = f"core-quota-{os.getpid()}-{time.monotonic_ns()}"
        self.path = _version_1() / name if _is_version_1() else GROUPS / name
        self.path.mkdir()
        try:
            self._limit(quota)
        except OSError:
            self.path.rmdir()
            raise

    def _limit(self, quota: float | None) -> None:
        period = round(PERIOD_S * 1e6)
        allowed = None if quota is None else round(quota * period)
        if _is_version_1():
            (self.path / "cpu.cfs_period_us").write_text(str(period))
            (self.path / "cpu.cfs_quota_us").write_text(str(allowed or -1))
        else:
            (GROUPS / "cgroup.subtree_control").write_text("+cpu")
            (self.path / "cpu.max").write_text(f"{allowed or 'max'} {period}")

    def watch(self, pid: int) -> None:
        """Nothing: the system does it."""

    def prefix(self) -> list[str]:
        """Words before a command that put it into the group before it starts."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]

    def throttled(self) -> int:
        """Periods in which the group had to wait."""
        for line in (self.path / "cpu.stat").read_text().splitlines():
            if line.startswith("nr_throttled "):
                return int(line.split()[1])
        return 0

    def close(self) -> None:
        for _ in range(100):
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.05)


class StandIn:
    """Stops a process tree for the rest of each 100 ms in which it has used its quota, as the system would.

    The processes see no limit, so this is a quota that they cannot read.
    """

    kind = "stand-in (SIGSTOP)"

    def __init__(self, quota: float | None) -> None:
        self._quota, self._pid, self._periods = quota, 0, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def prefix(self) -> list[str]:
        return []

    def watch(self, pid: int) -> None:
        """Begin to hold the process and its children to the quota."""
        self._pid = pid
        if self._quota is not None:
            self._thread.start()

    def throttled(self) -> int:
        return self._periods

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.is_set():
            self._period()

    def _period(self) -> None:
        tree = process_tree(self._pid)
        end, before = time.monotonic() + PERIOD_S, processor_time(tree)
        while time.monotonic() < end and not self._ended.is_set():
            if processor_time(tree) - before >= self._quota * PERIOD_S:
                self._periods += 1
                _signal(tree, signal.SIGSTOP)
                time.sleep(max(end - time.monotonic(), 0))
                _signal(tree, signal.SIGCONT)
                return
            time.sleep(0.001)


def share(quota: float | None) -> Group | StandIn:
    """A group, or the stand-in where none can be made."""
    try:
        return Group(quota)
    except OSError:
        return StandIn(quota)


@contextlib.contextmanager
def neighbour(nice: int | None = 0) -> Iterator[int]:
    """A program that keeps one processor busy; yields its process id. None: no program, and 0.

    The kernel may compare nice values within a session only, and sessions by a value of their own, so both are set.
    """
    if nice is None:
        yield 0
        return
    process = subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True)
    try:
        os.setpriority(os.PRIO_PROCESS, process.pid, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
        session = Path(f"/proc/{process.pid}/autogroup")
        if session.exists():
            session.write_text(str(nice))
        yield process.pid
    finally:
        process.kill()
        process.wait()


def many_visible(directory: Path, seen: int = 32) -> dict[str, str]:
    """Environment in which a process sees that many processors. Needs a C compiler."""
    source, library = directory / "visible.c", directory / "visible.so"
    source.write_text(VISIBLE % seen)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def _is_version_1() -> bool:
    return (GROUPS / "cpu").is_dir()


def _version_1() -> Path:
    """The group that this process is in: what is made below it competes with nobody else."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return GROUPS / "cpu" / path.lstrip("/")
    return GROUPS / "cpu"


def processor_time(pids: list[int]) -> float:
    """Seconds that the processes have computed, by their clocks."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += time.clock_gettime(
                ~pid << 3 | 2
            )  # the clock of the process's time, as clock_getcpuclockid makes it
    return total


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

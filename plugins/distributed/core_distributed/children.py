"""The processes of a host's ranks, but for the first rank of all, which is the engine's own process.

Owns: their start, the watch over them, and their end. Never does: move plans. Called by: the executor, and the commands of
further nodes.

A child ends when its standard input is closed, so none outlives the engine, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from core.processes import child_environment, python_command
from core_distributed.hosts.meeting import Meeting
from core_distributed.layout import Layout
from core_supervision.death import how_ended

END_S = 2.0
"""Seconds that children get to end by themselves."""
LOOKS = 8
"""How often within the patience the watch looks whether a child is stopped."""
NOTICE_S = 1.0
"""Limit of seconds until the watch has named a child that has ended."""


class Children:
    """The ranks of a host that are processes of their own. The executor owns them, or a node's command.

    memory: descriptor of the host's memory. on_death: called in the watching thread when a child ends before `end`.
    host, meeting: which host this is, and where the processes of several find each other; None: there is one host.
    patience_s: how long a child may be stopped by a signal.
    pages: descriptor of the file of KV pages; -1: there is none.

    death: what happened to the first child that ended by itself; empty while all run.
    step: number of the present step; 0: unknown.
    """

    def __init__(
        self,
        layout: Layout,
        memory: int,
        slot_bytes: int,
        on_death: Callable[[], None],
        host: int = 0,
        meeting: Meeting | None = None,
        patience_s: float = 30.0,
        pages: int = -1,
    ) -> None:
        self.death = ""
        self._patience_s = patience_s
        self._pages = pages
        self._stopped_s: dict[int, float] = {}
        self.step = 0
        self._meeting = meeting
        self._of_host = "" if meeting is None else f" of node {host}, {platform.node() or 'a host without a name'}"
        self._size = layout.size
        self._on_death = on_death
        self._ending = False
        self._noticed = threading.Event()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._words: dict[int, int] = {}
        self._alarm, self._bell = os.pipe()
        first = layout.of_host * host
        for rank in range(max(first, 1), first + layout.of_host):
            self._start(rank, layout, memory, slot_bytes)
        self._watcher = threading.Thread(target=self._watch, name="ranks-watch", daemon=True)
        self._watcher.start()

    def _start(self, rank: int, layout: Layout, memory: int, slot_bytes: int) -> None:
        reading, writing = os.pipe()
        numbers = (memory, writing, rank, layout.tensor, layout.stages, layout.hosts, slot_bytes, self._pages)
        names = ("memory", "words", "rank", "tensor", "stages", "hosts", "slot-bytes", "pages")
        options = [f"--{name}={number}" for name, number in zip(names, numbers, strict=True)]
        if self._meeting is not None:
            options.append(f"--meeting={msgspec.json.encode(self._meeting).decode()}")
        self._processes[rank] = subprocess.Popen(
            python_command("core_distributed.rank", *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=child_environment(),
            pass_fds=[descriptor for descriptor in (memory, writing, self._pages) if descriptor >= 0],
        )
        os.close(writing)
        os.set_blocking(reading, False)
        self._words[rank] = reading

    def pid(self, rank: int) -> int:
        """Return the process id of a rank."""
        return self._processes[rank].pid if rank else os.getpid()

    def words(self) -> list[str]:
        """Return what ranks have said about failures since the last call."""
        said: list[str] = []
        for rank, descriptor in self._words.items():
            with contextlib.suppress(BlockingIOError):
                text = os.read(descriptor, 1 << 16).decode(errors="replace").strip()
                said += [f"rank {rank} ({self.name(rank)}): {text}"] if text else []
        return said

    def name(self, rank: int) -> str:
        """Return a rank's process, for people."""
        return f"process {self.pid(rank)}{self._of_host}"

    def names(self) -> dict[int, str]:
        """Return the processes for people, by rank."""
        return {rank: self.name(rank) for rank in self._processes}

    def states(self, *, stacks: bool) -> dict[int, str]:
        """Return the states of the processes, by rank. stacks: have them write their stacks to the log."""
        if stacks:
            for process in self._processes.values():
                with contextlib.suppress(OSError):
                    process.send_signal(signal.SIGUSR1)
        return {rank: _state(self.pid(rank)) for rank in self._processes}

    def silence(self, rank: int, seconds: float) -> str:
        """Describe a rank that did not answer, and have all ranks write their stacks to the log.

        The rank that rank 0 waits for may itself wait for an earlier stage, whose process has been stopped.
        """
        states = self.states(stacks=True)
        stopped = [other for other, state in states.items() if state.startswith(("T", "t"))]
        rank = stopped[0] if stopped and rank not in stopped else rank
        return (
            f"Rank {rank} of {self._size} ({self.name(rank)}) did not answer within {seconds:g} s in step {self.step}; "
            f"its process is {states.get(rank, 'unknown')}."
        )

    def look(self) -> None:
        """Let the watch name a child that has just ended: what it did to the others may be seen first."""
        if any(process.poll() is not None for process in self._processes.values()):
            self._noticed.wait(NOTICE_S)

    def _watch(self) -> None:
        """Wait for a child that ends by itself, or is stopped for too long.

        A step has a limit of its own. Other calls have none, since reading weights takes as long as it takes.
        """
        poller = select.poll()
        poller.register(self._alarm, select.POLLIN)
        ranks: dict[int, int] = {}
        for rank, process in self._processes.items():
            descriptor = os.pidfd_open(process.pid)
            ranks[descriptor] = rank
            poller.register(descriptor, select.POLLIN)
        while not self._ending and not self.death:
            for descriptor, _ in poller.poll(self._patience_s * 1000 / LOOKS):
                if descriptor in ranks and not self._ending and not self.death:
                    rank = ranks[descriptor]
                    how = how_ended(self._processes[rank].wait())
                    self.bury(f"Rank {rank} of {self._size} ({self.name(rank)}) {how}")
            self._look_for_stopped()
        for descriptor in ranks:
            os.close(descriptor)

    def _look_for_stopped(self) -> None:
        """Report a child that was stopped at all looks within the patience: this process may have stood still, too."""
        for rank, state in self.states(stacks=False).items():
            stopped_s = self._stopped_s.get(rank, 0.0) + self._patience_s / LOOKS
            self._stopped_s[rank] = stopped_s if state.startswith(("T", "t")) else 0.0
            if self._stopped_s[rank] > self._patience_s:
                self.bury(f"Rank {rank} of {self._size} ({self.name(rank)}) was stopped for {self._patience_s:g} s")

    def bury(self, how: str) -> None:
        """Note the first death, and report it. how: a clause."""
        if not self.death and not self._ending:
            self.death = how + (f" in step {self.step}." if self.step else "")
            self._on_death()
            self._noticed.set()

    def expect_ends(self) -> None:
        """Stop the watch: from now on children may end."""
        if not self._ending:
            self._ending = True
            os.write(self._bell, b"!")
            self._watcher.join()

    def end(self) -> None:
        """End all children; those that do not end by themselves are killed. Called once."""
        self.expect_ends()
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for descriptor in (self._alarm, self._bell, *self._words.values()):
            os.close(descriptor)


def _state(pid: int) -> str:
    """Return the state of a process as the system names it, such as `T (stopped)`."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "gone"
    for line in status.splitlines():
        if line.startswith("State:"):
            return line.partition(":")[2].strip()
    return "unknown"

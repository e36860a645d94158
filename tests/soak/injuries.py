"""What is done to a server while it serves.

Owns: the kinds of injury, and how long the server takes to get over each. Never does: ask for tokens.
Called by: the run, in a thread of its own.
"""

import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.soak.site import Site
from tests.soak.tally import Tally

HOURS = 3600
RECOVERY_LIMIT_S = 60.0
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
REST_S = (2.0, 6.0)
"""Least and most between two injuries."""
NEXT_ANSWER_S = 60.0
"""Longest wait for an answer after an injury. An engine that dies again and again before anybody got on is taken to be
killed by a request, as it otherwise was on a busy machine."""


class Injuries:
    """One after the other, until told to stop.

    dice:         what comes next.
    kill_servers: whether whole servers are killed too.
    rest_s:       see `REST_S`.
    """

    def __init__(
        self,
        site: Site,
        tally: Tally,
        dice: random.Random,
        *,
        kill_servers: bool = True,
        rest_s: tuple[float, float] = REST_S,
    ) -> None:
        self.site = site
        self.rest_s = rest_s
        self.tally = tally
        self.dice = dice
        self.over = threading.Event()
        self.kinds: list[tuple[str, int, Callable[[], None]]] = [
            ("kill the engine", 8, self.kill_engine),
            ("stop the engine for a moment", 3, self.pause_engine),
            ("stop the engine for good", 1, self.stop_engine),
            ("stop the server for a moment", 2, self.pause_server),
            ("kill a helper", 2, self.kill_helper),
            ("kill an API process", 2, self.kill_api_process),
        ]
        if site.has("kv_offloading_disk_size"):
            self.kinds.append(("fill the disk", 2, self.fill_disk))
        if site.has("tensor_parallel_size") or site.has("pipeline_parallel_size"):
            self.kinds += [("kill a rank", 8, self.kill_rank), ("stop a rank for good", 1, self.stop_rank)]
        if site.clock_moves:
            self.kinds.append(("move the clock", 2, self.move_clock))
        if kill_servers:
            self.kinds.append(("kill the server", 2, self.kill_server))

    def run(self) -> None:
        """The kinds that have never come come first."""
        waiting = self.dice.sample(self.kinds, len(self.kinds))
        weights = [weight for _, weight, _ in self.kinds]
        while not self.over.wait(self.dice.uniform(*self.rest_s)):
            name, _, injure = waiting.pop() if waiting else self.dice.choices(self.kinds, weights)[0]
            try:
                injure()
            except (psutil.Error, StopIteration, ProcessLookupError):
                continue  # the process has just gone
            except Exception as error:
                self.tally.leak(f"{name}: {type(error).__name__}: {error}"[:500])
                return
            self.tally.injure(name)
            self._wait_for_answers()

    def _wait_for_answers(self) -> None:
        """Wait until somebody has got on, if anybody asks."""
        before, end = self.tally.num_answers, time.monotonic() + NEXT_ANSWER_S
        while self.tally.num_answers == before and time.monotonic() < end and not self.over.wait(0.1):
            pass

    def kill_engine(self) -> None:
        """As a crash, or the system that is out of memory, would."""
        engine = self.site.server.engine
        begin = time.monotonic()
        engine.send_signal(self.dice.choice(SIGNALS))
        self._recover(begin, engine.pid)

    def stop_engine(self) -> None:
        """An engine that does not move any more is killed by its owner, if it has anything to do."""
        engine = self.site.server.engine
        begin = time.monotonic()
        engine.suspend()
        if not self._recover(begin, engine.pid):
            with suppress(psutil.Error):
                engine.resume()

    def kill_rank(self) -> None:
        """The others cannot go on without it: the engine ends, and the next one starts all of them."""
        engine = self.site.server.engine
        rank = self.dice.choice(self.site.ranks() or [engine])
        begin = time.monotonic()
        rank.send_signal(self.dice.choice(SIGNALS))
        self._recover(begin, engine.pid)

    def stop_rank(self) -> None:
        """The others wait for it no longer than `--distributed-timeout-seconds`, once they have anything to do."""
        engine = self.site.server.engine
        rank = self.dice.choice(self.site.ranks() or [engine])
        begin = time.monotonic()
        rank.suspend()
        if not self._recover(begin, engine.pid):
            with suppress(psutil.Error):
                rank.resume()

    def pause_engine(self) -> None:
        """A machine that is busy with something else, for less time than makes it a hang."""
        self._pause(self.site.server.engine)

    def pause_server(self) -> None:
        """The same for the process that clients talk to."""
        self._pause(psutil.Process(self.site.server.process.pid))

    def kill_helper(self) -> None:
        """Grammars are compiled and large requests read by helpers."""
        for helper in self.site.helpers()[:1]:
            helper.kill()

    def kill_api_process(self) -> None:
        """Connections are spread over several of them; those of one are cut."""
        self.site.kill_api_process(self.dice.randint(0, 8))

    def fill_disk(self) -> None:
        """For a while nothing can be written."""
        filler = self.site.fill_disk()
        self.over.wait(self.dice.uniform(1.0, 4.0))
        filler.unlink(missing_ok=True)

    def move_clock(self) -> None:
        """The wall clock jumps by up to two days, back or forth."""
        self.site.move_clock(self.dice.randint(-48, 48) * HOURS)

    def kill_server(self) -> None:
        """Everything goes at once, and another server is started."""
        begin = time.monotonic()
        for left in self.site.kill_server():
            self.tally.leak(left)
        self.tally.restart(time.monotonic() - begin)

    def _pause(self, process: psutil.Process) -> None:
        process.suspend()
        try:
            self.over.wait(self.dice.uniform(0.2, 2.0))
        finally:
            with suppress(psutil.Error):
                process.resume()

    def _recover(self, begin: float, dead: int) -> bool:
        """Wait for another engine; whether there is one."""
        while time.monotonic() - begin < RECOVERY_LIMIT_S:
            with suppress(psutil.Error, StopIteration):
                if self.site.server.engine.pid != dead and self.site.health().get("state", "serving") == "serving":
                    self.tally.recover(time.monotonic() - begin)
                    return True
            if self.site.server.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.site.server.process.poll()}")
            time.sleep(0.05)
        return False

"""One seeded event loop for all processes of a simulated server, with a clock that only the simulation moves.

Owns: `SimLoop` (virtual time, one queue of callbacks for each process, the choice among them) and `Process`.
Never does: know engines or messages. Called by: the world, which runs one schedule in one loop.

Callbacks of one process run in their order, as asyncio promises; which process runs next is drawn from the seed. A process that
blocks, as an engine does in a step or a poll, calls `block`: all others run inside that call until its condition holds.
"""

import asyncio
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

MOST_TURNS = 60_000
"""Callbacks of one schedule; one that takes more goes round in a circle."""


class Died(BaseException):
    """Raised inside a process that is no more: nothing that it does from now on has an effect."""


class Endless(BaseException):
    """The schedule does not come to an end."""


class Call:
    """A callback that waits for its turn or its time; in the place of `asyncio.Handle`, which takes longer to make and to run.

    callback: None once it is cancelled.
    """

    __slots__ = ("args", "callback", "context")

    def __init__(self, callback: Callable[..., object] | None, args: tuple[Any, ...], context: Context | None) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context

    def cancel(self) -> None:
        """It is passed over when its turn comes."""
        self.callback = None
        self.args = ()


class Process:
    """One simulated process. alive: whether anything that it does has an effect."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.ready: deque[Call] = deque()

    def __repr__(self) -> str:
        return self.name


CURRENT: ContextVar[Process] = ContextVar("process")


class SimLoop(asyncio.BaseEventLoop):
    """The loop of one schedule. seed: decides every choice that it makes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now = 1000.0
        self.world = Process("world")
        self.draw = random.Random(seed).random
        self.num_turns = 0
        self._over = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._busy: list[Process] = []
        self._timers: list[tuple[float, int, Call | Callable[..., None], tuple[Any, ...] | None]] = []
        self._numbers = itertools.count()

    # A function in C, because asyncio calls it with each callback and each future.
    get_debug = staticmethod(bool)  # type: ignore[assignment]

    def time(self) -> float:
        return self.now

    def call_soon(self, callback, *args, context=None):  # type: ignore[no-untyped-def, override]
        call = Call(callback, args, context)
        process = call.context.get(CURRENT, self.world)
        ready = process.ready
        if not ready:
            self._busy.append(process)
        ready.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay, callback, *args, context=None):  # type: ignore[no-untyped-def, override]
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(self, when, callback, *args, context=None):  # type: ignore[no-untyped-def, override]
        call = Call(callback, args, context)
        heapq.heappush(self._timers, (when, next(self._numbers), call, None))
        return call

    def at(self, when: float, happens: Callable[..., None], *args: object) -> None:
        """Have the world around the processes do something, such as let a message arrive."""
        heapq.heappush(self._timers, (when, next(self._numbers), happens, args))

    def run_in_executor(self, executor, func, *args):  # type: ignore[no-untyped-def, override]
        """There are no threads: the work is done at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """The invariants look at what matters; tasks of dead processes are dropped with exceptions that nobody reads."""

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run the world's coroutine to its end. Raises what it raises, Endless."""
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(self._to_the_end(coroutine))
            while not task.done():
                if not self._turn(math.inf):
                    raise Endless("everything waits for something that never comes")
            task.result()
        finally:
            asyncio._set_running_loop(None)

    async def _to_the_end(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        finally:
            self._over = True

    def start(self, process: Process, callback: Callable[..., object], *args: object) -> None:
        """Call something in a process, later."""
        self.call_soon(callback, *args, context=self.context_of(process))

    def context_of(self, process: Process) -> Context:
        """A context in which tasks and callbacks belong to a process."""
        context = copy_context()
        context.run(CURRENT.set, process)
        return context

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of a process."""
        return self._task(coroutine, self.context_of(process), process)

    def create_task(self, coroutine, **options):  # type: ignore[no-untyped-def, override]
        return self._task(coroutine, options.get("context"), CURRENT.get(self.world))

    def tasks_of(self, process: Process) -> list[asyncio.Task[Any]]:
        """Those that have not ended."""
        return [task for task in self.all_tasks() if process_of(task) is process]

    def all_tasks(self) -> list[asyncio.Task[Any]]:
        """Those of all processes that have not ended."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return self._tasks

    def _task(self, coroutine: Any, context: Context | None, process: Process) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=self, context=context)
        task.process = process  # type: ignore[attr-defined]
        self._tasks.append(task)
        return task

    def block(self, process: Process, done: Callable[[], object], until: float = math.inf) -> None:
        """Let the others run until the condition holds or the clock says `until`. Raises Died when the process dies."""
        turn = self._turn
        while process.alive and not self._over and not done():
            if not turn(until):
                if until == math.inf:
                    raise Endless("everything waits for something that never comes")
                break
        if not process.alive or self._over:
            raise Died

    def wind_up(self) -> None:
        """Let every task that is left see its end, so that none of them is found later."""
        self.num_turns = 0
        asyncio._set_running_loop(self)
        try:
            for _ in range(3):
                for task in self.all_tasks():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    task.cancel()
                while self._busy and self.num_turns < MOST_TURNS:
                    self._turn(self.now)
        finally:
            asyncio._set_running_loop(None)

    def drop(self, process: Process) -> None:
        """End the tasks of a process that died: what they still do has no effect."""
        process.alive = False
        for task in self.tasks_of(process):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task.cancel()

    def _enqueue(self, call: Call) -> None:
        process = call.context.get(CURRENT, self.world)
        ready = process.ready
        if not ready:
            self._busy.append(process)
        ready.append(call)

    def _turn(self, until: float) -> bool:
        """Run one callback, or move the clock; False when nothing is to come before the time `until`, which then is now."""
        self.num_turns += 1
        busy = self._busy
        if not busy:
            if not self._timers or self._timers[0][0] > until:
                if until != math.inf:
                    self.now = max(self.now, until)
                return False
            self._advance()
            return True  # a process that blocks may go on now
        count = len(busy)
        index = int(self.draw() * count) if count > 1 else 0
        ready = busy[index].ready
        call = ready.popleft()
        if not ready:
            busy[index] = busy[-1]
            busy.pop()
        callback = call.callback
        if callback is not None:
            try:
                call.context.run(callback, *call.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"exception": error})
        if self.num_turns > MOST_TURNS:
            raise Endless(f"more than {MOST_TURNS} callbacks")
        return True

    def _advance(self) -> None:
        """Move the clock to the next timers; queue them, and have happen what happens then."""
        timers = self._timers
        when, _, first, args = timers[0]
        if args is None and first.callback is None:  # type: ignore[union-attr]
            heapq.heappop(timers)
            return
        if when > self.now:
            self.now = when
        while timers and timers[0][0] <= self.now:
            _, _, due, args = heapq.heappop(timers)
            if args is not None:
                due(*args)  # type: ignore[operator]
            elif due.callback is not None:  # type: ignore[union-attr]
                self._enqueue(due)  # type: ignore[arg-type]


def process_of(task: asyncio.Task[Any]) -> Process:
    """The process that a task belongs to."""
    process: Process = task.process  # type: ignore[attr-defined]
    return process

"""What an engine tells of its steps, and what is known of it when it has died."""

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fakes import CRASH, KILL, TARGET, FakeExecutor, composed, make_config

from core.api.errors import EngineDeadError
from core.api.messages import NO_HANDLE, EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.step_plan import NewSequence, StepPlan, StepResult
from core.engine.core import EngineCore
from core.engine.observer import EngineStart
from core.engine.step_queue import step_queue
from core.processes import child_environment
from core_supervision.death import Death, death_of
from core_supervision.link.anonymous_file import anonymous_file
from core_supervision.link.shared_file import STEPS_NBYTES
from core_supervision.oom_kills import count_oom_kills
from core_supervision.owned_engine import start_engine
from core_supervision.watch import breadcrumbs
from core_supervision.watch.breadcrumbs import UTILITY_NAME_NBYTES, Breadcrumbs, InUtility, LastStep
from core_supervision.watch.crumbs_observer import CrumbsObserver
from core_supervision.watch.step_trace import StepTrace


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = anonymous_file("test-steps", STEPS_NBYTES)
    yield descriptor
    os.close(descriptor)


def test_a_utility_is_noted_beside_the_steps(file: int) -> None:
    crumbs = Breadcrumbs(file, epoch=3)
    crumbs.begin_step(1.0, 2.0, as_bytes(5, 6))
    crumbs.end_step(3.0)
    crumbs.learn((9.0, 1.0, 8.0))
    assert breadcrumbs.read_utility(file) is None
    for number, name in enumerate(("sleep", "x" * 99)):
        holds_steps = number == 0
        crumbs.begin_utility(name, 7.0, holds_steps=holds_steps)
        expected = InUtility(2 * number + 1, name[:UTILITY_NAME_NBYTES], 7.0, holds_steps)
        assert breadcrumbs.read_utility(file) == expected
        crumbs.end_utility()
        assert breadcrumbs.read_utility(file) is None
    assert breadcrumbs.read(file) == LastStep(3, 1, 1.0, 3.0, 2.0, False, (5, 6))
    crumbs.begin_utility("sleep", 7.0)
    following = Breadcrumbs(file, epoch=4)
    assert following.learned[:3] == [9.0, 1.0, 8.0]
    assert breadcrumbs.read_utility(file) is None, "the next engine is in none"


def as_bytes(*handles: int) -> bytes:
    return np.array(handles, np.int64).tobytes()


def test_a_step_is_read_as_it_was_written(file: int) -> None:
    crumbs = Breadcrumbs(file, epoch=3)
    assert breadcrumbs.read(file) is None
    crumbs.begin_step(10.0, 0.5, as_bytes(4, 1 << 41))
    assert breadcrumbs.read(file) == LastStep(3, 1, 10.0, 0.0, 0.5, True, (4, 1 << 41))
    crumbs.end_step(10.25)
    crumbs.begin_step(11.0, 0.5, None)
    crumbs.end_step(11.5)
    assert breadcrumbs.read(file) == LastStep(3, 2, 11.0, 11.5, 0.5, False, (4, 1 << 41))
    crumbs.begin_step(12.0, math.inf, b"")
    assert breadcrumbs.read(file) == LastStep(3, 3, 12.0, 11.5, math.inf, True, ())


def test_more_sequences_than_there_is_room_for_are_cut(file: int) -> None:
    crumbs = Breadcrumbs(file, epoch=0)
    crumbs.begin_step(1.0, 1.0, as_bytes(*range(breadcrumbs.MOST_HANDLES + 5)))
    last = breadcrumbs.read(file)
    assert last is not None
    assert last.handles == tuple(range(breadcrumbs.MOST_HANDLES))


def test_a_reader_never_sees_half_of_a_step(file: int) -> None:
    crumbs = Breadcrumbs(file, epoch=0)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            crumbs.begin_step(float(number), float(number), as_bytes(*[number] * (number % 50)))
            crumbs.end_step(float(number))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2000):
            last = breadcrumbs.read(file)
            if last is not None:
                assert last.begin_s == last.predicted_s == last.number
                assert last.handles == (last.number,) * (last.number % 50)
    finally:
        stop.set()
        writer.join()


def test_the_next_engine_knows_what_this_one_has_learned(file: int) -> None:
    for epoch in (0, 1):
        trace = StepTrace(Breadcrumbs(file, epoch), 4)
        assert breadcrumbs.read(file) is None
        for number in range(9):
            trace.begin(plan(0, new={} if number else {0: 10}))
            last = breadcrumbs.read(file)
            assert last is not None
            assert math.isinf(last.predicted_s) is (epoch == 0 and number < 8)
            trace.end()


@pytest.mark.parametrize("max_stall_s", [0.0, 0.5])
def test_each_step_is_learned_from_once_by_one_model(file: int, max_stall_s: float) -> None:
    learned = 0
    for epoch in (0, 1):
        config = make_config(scheduler={"max_stall_s": max_stall_s})
        observer = CrumbsObserver.open(EngineStart(config, epoch, file))
        assert observer is not None
        trace = observer.trace
        assert trace.cost.num_observed == learned
        core = EngineCore(config, FakeExecutor(config), epoch, observers=[observer])
        num_steps = 0
        for number in range(20):
            core.add([EngineRequest(f"r{number}", 0, [1, 2], SamplingParams(max_tokens=1), seed=0)])
            while core.has_work():
                num_steps += int(core.scheduler.wants_step())
                core.step()
        assert 0 < trace.cost.num_observed - learned <= num_steps
        last = breadcrumbs.read(file)
        assert last is not None
        assert math.isfinite(last.predicted_s)
        core.close()
        learned = int(Breadcrumbs(file, epoch).learned[0])
        assert learned >= 16


def test_what_a_wild_pointer_wrote_is_not_believed(file: int) -> None:
    Breadcrumbs(file, epoch=0).learn((9.0, 1.1, math.nan, 1.0, 1.0, 1.0, 1.0))
    assert StepTrace(Breadcrumbs(file, 1), 4).cost.num_observed == 0


DYING = """
import os, signal, sys
from core_supervision.watch.breadcrumbs import Breadcrumbs
Breadcrumbs(int(sys.argv[1]), 7).begin_step(1.0, 2.0, (5).to_bytes(8, sys.byteorder))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_its_last_step(file: int) -> None:
    command = [sys.executable, "-c", DYING, str(file)]
    done = subprocess.run(command, pass_fds=(file,), env=child_environment(), timeout=20, check=False)
    assert done.returncode == -signal.SIGKILL
    assert breadcrumbs.read(file) == LastStep(7, 1, 1.0, 0.0, 2.0, True, (5,))


def plan(*slots: int, new: dict[int, int] | None = None, same_batch: bool = False) -> StepPlan:
    """new: handles by slot."""
    added = []
    for slot, handle in (new or {}).items():
        request = EngineRequest("a", 0, [1], SamplingParams(), seed=0, handle=handle)
        added.append(NewSequence(slot, request, [], 0, [[]], 9))
    rows = np.array(slots, np.int32)
    ones = np.ones_like(rows)
    return StepPlan(rows, ones, ones, added, total_num_tokens=len(rows), same_batch=same_batch)


class Looking:
    """An executor that looks at what was told of its steps."""

    num_blocks = page_bytes = 1
    numerics = "none"
    max_in_flight = 2

    def __init__(self, file: int) -> None:
        self.phases: list[tuple[str, float]] = []
        self.file = file
        self.seen: list[tuple[int, ...]] = []

    def execute(self, plan: StepPlan) -> StepResult:
        last = breadcrumbs.read(self.file)
        assert last is not None
        assert last.computing
        self.seen.append(last.handles)
        if plan.removed:
            raise RuntimeError("told to")
        return StepResult()

    def close(self) -> None: ...


class Queueing(Looking):
    def submit(self, plan: StepPlan) -> object:
        return plan

    def result(self, ticket: object) -> StepResult:
        assert isinstance(ticket, StepPlan)
        return self.execute(ticket)


@pytest.mark.parametrize("ahead", [False, True])
def test_each_step_names_its_sequences(file: int, ahead: bool) -> None:
    executor = Looking(file)
    queue = step_queue(executor, ahead=ahead, trace=StepTrace(Breadcrumbs(file, 0), 4))
    plans = [plan(0, 2, new={0: 10, 2: 12}), plan(0, 2, same_batch=True), plan(2), plan(1, 2, new={1: 11})]
    for one in plans:
        queue.result(queue.submit(one))
    broken = plan(1)
    broken.removed = [0]
    with pytest.raises(RuntimeError):
        queue.result(queue.submit(broken))
    queue.close()
    assert executor.seen == [(10, 12), (10, 12), (12,), (11, 12), (11,)]
    last = breadcrumbs.read(file)
    assert last is not None
    assert (last.computing, last.number) == (False, 5)


def test_steps_under_way_together_name_the_sequences_of_all(file: int) -> None:
    executor = Queueing(file)
    queue = step_queue(executor, ahead=True, trace=StepTrace(Breadcrumbs(file, 0), 4))
    first = queue.submit(plan(0, new={0: 10}))
    second = queue.submit(plan(1, new={1: 11}))
    queue.result(first)
    queue.result(second)
    assert executor.seen == [(10, 11), (10, 11)]
    queue.submit(plan(1))
    queue.give_up()
    last = breadcrumbs.read(file)
    assert last is not None
    assert not last.computing


class Planned(FakeExecutor):
    """Takes two plans, and computes each when its result is asked for."""

    max_in_flight = 2

    def submit(self, plan: StepPlan) -> object:
        return plan

    def result(self, ticket: object) -> StepResult:
        assert isinstance(ticket, StepPlan)
        return self.execute(ticket)


@pytest.mark.parametrize("mode", ["keep", "abort"])
def test_no_step_counts_as_computing_while_the_engine_is_paused(file: int, mode: str) -> None:
    config = make_config(scheduler={"async_scheduling": True})
    crumbs = CrumbsObserver.open(EngineStart(config, steps_file=file))
    assert crumbs is not None
    core = composed(config, Planned(config), crumbs=crumbs)
    core.add([EngineRequest("a", 0, [1, 2, 3], SamplingParams(max_tokens=9, ignore_eos=True), seed=0)])
    core.step()
    core.call("pause", {"mode": mode, "clear_cache": False})
    last = breadcrumbs.read(file)
    assert last is not None and last.computing
    while core.has_work():
        core.step()
    last = breadcrumbs.read(file)
    assert last is not None and not last.computing
    core.call("resume")
    while core.has_work():
        core.step()
    core.close()


def step(*handles: int, computing: bool = True) -> LastStep:
    return LastStep(0, 1, 1.0, 0.0, 1.0, computing, handles)


@pytest.mark.parametrize(
    ("death", "cause", "words", "suspects"),
    [
        (death_of(-signal.SIGSEGV, step(1, 2)), "crash", "SIGSEGV", (1, 2)),
        (death_of(-signal.SIGKILL, step(1, 2)), "killed", "SIGKILL", (1, 2)),
        (death_of(-signal.SIGKILL, step(1, 2), num_oom_kills=1), "out_of_memory", "memory was short", ()),
        (death_of(-signal.SIGSEGV, step(1), num_oom_kills=1), "crash", "SIGSEGV", (1,)),
        (death_of(-signal.SIGABRT, step(1), wedge="a step lasts"), "wedge", "hung: a step lasts", (1,)),
        (death_of(3, step(1, computing=False)), "exit", "code 3", ()),
        (death_of(-signal.SIGTERM, None), "killed", "SIGTERM", ()),
        (death_of(-40, step(NO_HANDLE)), "killed", "signal 40", ()),
    ],
)
def test_causes_of_death(death: Death, cause: str, words: str, suspects: tuple[int, ...]) -> None:
    assert death.cause == cause
    assert words in death.sentence
    assert death.suspects == suspects


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_kills_for_memory_are_counted_in_both_versions_of_cgroups(tmp_path: Path) -> None:
    assert count_oom_kills(tmp_path) == 0
    write(tmp_path / "proc/vmstat", "nr_free_pages 9\noom_kill 2\n")
    write(tmp_path / "proc/self/cgroup", "0::/jobs/one\n")
    write(tmp_path / "sys/fs/cgroup/jobs/one/memory.events", "low 0\noom 9\noom_kill 3\noom_group_kill 7\n")
    assert count_oom_kills(tmp_path) == 5
    write(tmp_path / "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert count_oom_kills(tmp_path) == 6


@pytest.mark.parametrize(
    ("prompt", "cause", "words"),
    [([KILL], "killed", "SIGKILL"), ([CRASH], "crash", "SIGSEGV"), (None, "failure", "told to fail")],
)
def test_the_dead_engine_names_its_cause_and_those_it_was_computing(
    prompt: list[int] | None, cause: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def run() -> EngineDeadError:
        options = {} if prompt else {"always_fail": True}
        client = await start_engine(make_config(options=options), executor=TARGET)
        died = asyncio.Event()
        client.listen(lambda outputs: None, lambda error: died.set())
        params = SamplingParams(max_tokens=4)
        requests = [EngineRequest(f"r{i}", 0, prompt or [1], params, seed=0) for i in range(20)]
        for request in requests:
            await client.add([request])
        await asyncio.wait_for(died.wait(), 20)
        await client.close()
        error = client.dead_error
        assert error is not None
        assert error.suspects is not None
        handles = {request.handle for request in requests}
        assert bool(error.suspects) is bool(prompt)
        assert set(error.suspects) <= handles
        return error

    error = asyncio.run(run())
    assert error.cause == cause
    assert words in str(error)
    if cause == "crash":
        assert "in _advance" in capfd.readouterr().err

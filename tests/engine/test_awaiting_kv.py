"""While one request waits for pages from a slow disk, others go on; whatever becomes of the pages, the text is the same."""

import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import composed, make_config
from scheduler.fake_model import FakeExecutor, make_request, reference

from core.api.errors import EngineDeadError
from core.api.messages import EngineRequest
from core.api.step_plan import StepPlan, StepResult
from core.engine import faults, step_runner
from core.kv import loads
from core.scheduler import admission
from core.scheduler.admission import Admission
from core_kv_connectors.tiers import page_reader
from core_kv_connectors.tiers.disk import DiskTier
from core_kv_connectors.tiers.page_directory import PageDirectory
from tests.inside import state_of
from tests.kv.connector_rows import tiers_of, with_cache

BLOCK_SIZE = 4
NO_TOKEN = 255
PATIENCE_S = 20.0
PROMPT = [token % 40 for token in range(41)]
OTHER = [token * 7 % 40 for token in range(30)]


class PagedExecutor(FakeExecutor):
    """Reads tokens back from its cache, whose blocks it copies as the plan says.

    fails: steps that are to raise. num_failed: those that did.
    """

    numerics = "fake"
    page_bytes = BLOCK_SIZE

    def __init__(self, num_blocks: int = 40) -> None:
        super().__init__(num_blocks, BLOCK_SIZE)
        self.num_blocks = num_blocks
        self.phases: list[tuple[str, float]] = []
        self.fails = 0
        self.num_failed = 0

    def execute(self, plan: StepPlan) -> StepResult:
        known = [slot for slot in plan.removed if slot in self.held]
        plan = replace(plan, removed=known)  # a copy: the scheduler reads its own until the step has ended
        if self.fails and len(plan.slots):
            self.fails -= 1
            self.num_failed += 1
            raise RuntimeError("the step was told to fail")
        pages = None
        if plan.transfers is not None:
            pages = [self._page(block_id) for block_id in plan.transfers.saves]
            for block_id, page in plan.transfers.loads:
                tokens = [None if token == NO_TOKEN else token for token in page.tolist()]
                self.cache[block_id * BLOCK_SIZE : (block_id + 1) * BLOCK_SIZE] = tokens
        result = super().execute(plan)
        if pages is not None:
            result.pages = pages
        return result

    def close(self) -> None:
        """Nothing is open."""

    def _page(self, block_id: int) -> np.ndarray:
        tokens = self.cache[block_id * BLOCK_SIZE : (block_id + 1) * BLOCK_SIZE]
        return np.array([NO_TOKEN if token is None else token for token in tokens], np.uint8)


class World:
    """An engine whose disk has the blocks of `PROMPT`; reads wait until `go` is set."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool, **scheduler: object) -> None:
        config = make_config(max_model_len=128, scheduler={"async_scheduling": ahead, **scheduler})
        config = with_cache(config, block_size=BLOCK_SIZE, disk_path=str(path), disk_bytes=1 << 20)
        before = composed(config, PagedExecutor())
        before.add([make_request("before", PROMPT, 1)])
        while before.has_work():
            before.step()
        before.close()
        self.go, self.begun = threading.Event(), threading.Event()
        self.is_broken = False
        self.executor = PagedExecutor()
        self.core = composed(config, self.executor)
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, str | None] = {}
        real = DiskTier.read

        def read(disk: DiskTier, group: int, key: object) -> object:
            self.begun.set()
            assert self.go.wait(PATIENCE_S)
            return None if self.is_broken else real(disk, group, key)

        monkeypatch.setattr(DiskTier, "read", read)

    def add(self, name: str, prompt: list[int], count: int = 8, **options: object) -> EngineRequest:
        request = make_request(name, prompt, count, **options)
        self.core.add([request])
        return request

    def step(self) -> None:
        for output in self.core.step().outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason:
                self.ends[output.request_id] = output.finish_reason
        self.core.scheduler.check_integrity()

    def run(self, until: str | None = None) -> None:
        """Until nothing is left, or a request has ended."""
        limit = time.monotonic() + PATIENCE_S
        while self.core.has_work() and until not in self.ends:
            assert time.monotonic() < limit
            self.step()

    def await_load(self) -> None:
        """Until somebody waits for a page."""
        self.step()
        assert self.core.scheduler.waits_for_kv and self.begun.wait(PATIENCE_S)

    def close(self) -> None:
        self.go.set()
        self.run()
        kv = self.core.scheduler.kv
        assert kv.usage == 0.0
        reader = tiers_of(kv.connectors).pages.reader
        assert reader is not None and not reader.loads, "no page is held for a sequence"
        self.core.close()


@pytest.fixture(params=[False, True], ids=["step by step", "planned ahead"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path, monkeypatch, request.param)
    yield made
    made.close()


def test_others_go_on_while_pages_are_read(world: World) -> None:
    running = world.add("running", OTHER, 30)
    world.step()
    waiting = world.add("waiting", PROMPT)
    world.await_load()
    later = world.add("later", OTHER[::-1])
    world.run(until="running")
    assert world.tokens["running"] == reference(running)[0]
    assert world.tokens["later"] == reference(later)[0], "a later request passes"
    assert "waiting" not in world.tokens and world.core.stats().num_waiting == 1
    world.go.set()
    world.run()
    assert world.tokens["waiting"] == reference(waiting)[0]
    assert world.core.stats().tier_hits == 40


def test_pages_that_do_not_come_are_computed(world: World) -> None:
    waiting = world.add("waiting", PROMPT)
    world.await_load()
    world.is_broken = True
    world.go.set()
    world.run()
    assert world.tokens["waiting"] == reference(waiting)[0]
    assert world.core.stats().tier_hits == 0


def test_an_engine_that_only_waits_rests_and_is_not_taken_for_broken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "MAX_IDLE_STEPS", 3)
    pauses: list[float] = []
    world.add("waiting", PROMPT)
    world.await_load()
    kv = world.core.scheduler.kv
    monkeypatch.setattr(kv.loads, "wait", pauses.append)
    for _ in range(10):
        assert world.core.has_work()
        world.step()
    assert pauses == [step_runner.KV_WAIT_S] * 10
    monkeypatch.undo()
    world.go.set()
    world.run()


def test_one_who_waits_can_be_aborted(world: World) -> None:
    world.add("waiting", PROMPT)
    world.await_load()
    world.core.abort(["waiting"])
    assert not world.core.scheduler.waits_for_kv
    world.core.scheduler.check_integrity()
    world.go.set()
    again = world.add("again", PROMPT)
    world.run()
    assert world.tokens == {"again": reference(again)[0]}


def test_one_who_waits_ends_at_its_deadline(world: World) -> None:
    world.add("waiting", PROMPT, deadline=time.monotonic() + 0.05)
    world.await_load()
    world.run()
    assert world.ends == {"waiting": "timeout"} and world.tokens == {"waiting": []}


def test_those_who_waited_start_in_the_order_in_which_they_came(world: World) -> None:
    requests = [world.add(f"r{number}", [*PROMPT, number], 20, user=f"u{number}") for number in range(3)]
    world.await_load()
    requests.append(world.add("later", [*PROMPT, 9], 20))
    world.go.set()
    order: list[str] = []
    while world.core.has_work():
        world.step()
        order += [name for name in world.tokens if name not in order]
    assert order == ["r0", "r1", "r2", "later"]
    assert [world.tokens[request.request_id] for request in requests] == [reference(each)[0] for each in requests]


def test_who_has_waited_starts_although_nobody_else_may_step_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages fill the memory for pages that are read, and those of the one who waits need it."""
    monkeypatch.setattr(admission, "MAX_KEYS", 1)
    monkeypatch.setattr(page_reader, "MAX_HELD_BYTES", 1)
    monkeypatch.setattr(loads, "MAX_LOAD_S", 3600.0)  # nobody starts because a load was given up
    world = World(tmp_path, monkeypatch, False, policy="priority", max_num_seqs=1)
    first = world.add("first", PROMPT, priority=5)
    world.await_load()
    world.add("quick", OTHER, 4)
    world.step()
    world.go.set()
    while world.core.scheduler.waits_for_kv:
        world.step()
        world.core.scheduler.kv.loads.wait(0.001)
        state_of(world.core.scheduler).awaiting.restore_ready()
    urgent = world.add("urgent", [*PROMPT, 1], priority=1)
    world.run()
    assert world.tokens["first"] == reference(first)[0] and world.tokens["urgent"] == reference(urgent)[0]
    world.close()


def test_a_step_that_fails_leaves_waiting_ones_alone(world: World) -> None:
    running = [world.add(f"r{number}", OTHER[number:], 12) for number in range(2)]
    world.step()
    waiting = world.add("waiting", PROMPT)
    world.await_load()
    world.executor.fails = 1
    for _ in range(5):
        world.step()
    assert world.core.scheduler.waits_for_kv and world.core.stats().num_failed_steps == 1
    world.go.set()
    world.run()
    for request in (*running, waiting):
        assert world.tokens[request.request_id] == reference(request)[0]


def test_a_defect_of_the_scheduler_starts_the_wait_over(world: World) -> None:
    waiting = world.add("waiting", PROMPT)
    world.await_load()
    world.core._runner.guard(lambda: 1 // 0)
    world.core.scheduler.check_integrity()
    assert not world.core.scheduler.waits_for_kv
    world.go.set()
    world.run()
    assert world.tokens["waiting"] == reference(waiting)[0]


def test_a_reset_of_the_cache_ends_the_wait(world: World) -> None:
    waiting = world.add("waiting", PROMPT)
    world.await_load()
    assert world.core.call("reset_prefix_cache") is True
    world.step()
    world.step()
    assert not world.core.scheduler.waits_for_kv, "although the disk has not answered"
    world.run()
    assert world.tokens["waiting"] == reference(waiting)[0]
    assert world.core.stats().tier_hits == 0


@pytest.mark.parametrize("host_bytes", [0, 24])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_happens_the_text_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, host_bytes: int
) -> None:
    """A small cache and a moody disk; requests share prefixes, some are aborted, steps fail, the cache is reset."""
    dice = random.Random(seed)
    moods = random.Random(seed + 100)
    real = DiskTier.read

    def read(disk: DiskTier, group: int, key: object) -> object:
        time.sleep(moods.choice([0, 0, 0.0002, 0.002]))
        return None if moods.random() < 0.05 else real(disk, group, key)

    monkeypatch.setattr(DiskTier, "read", read)
    monkeypatch.setattr(faults, "FAULTS_BEFORE_PROBE", 1000)
    config = make_config(max_model_len=80, scheduler={"async_scheduling": bool(seed % 2), "max_num_seqs": 4})
    executor = PagedExecutor(24)
    cache = {"disk_path": str(tmp_path), "disk_bytes": 1 << 20, "host_bytes": host_bytes}
    core = composed(with_cache(config, block_size=BLOCK_SIZE, **cache), executor)
    tiers = tiers_of(core.scheduler.kv.connectors)
    assert tiers.disk is not None
    requests: dict[str, EngineRequest] = {}
    tokens: dict[str, list[int]] = {}
    cut: set[str] = set()
    limit = time.monotonic() + PATIENCE_S
    while len(requests) < 60 or core.has_work():
        assert time.monotonic() < limit
        if len(requests) < 60 and dice.random() < 0.3:
            name = f"r{len(requests)}"
            head = dice.choice([PROMPT, OTHER])[: dice.randrange(4, 30)]
            requests[name] = make_request(name, [*head, len(requests) % 40], dice.randrange(1, 12))
            tokens[name] = []
            core.add([requests[name]])
        event = dice.random()
        if event < 0.02 and requests:
            name = dice.choice(list(requests))
            core.abort([name])
            cut.add(name)
        elif event < 0.04:
            core.call("reset_prefix_cache")
        elif event < 0.06:
            executor.fails = 1
        elif event < 0.2:
            tiers.disk.flush()
        for output in core.step().outputs:
            tokens[output.request_id] += output.token_ids
            if output.finish_reason == "error":
                cut.add(output.request_id)
        core.scheduler.check_integrity()
    stats = core.stats()
    assert stats.kv_cache_usage == 0.0
    assert stats.num_failed_steps == executor.num_failed, "no step read anything wrong"
    assert stats.num_violations == 0
    assert len(cut) < 30
    for name, request in requests.items():
        expected = reference(request, 80)[0]
        assert tokens[name] == (expected[: len(tokens[name])] if name in cut else expected)
    core.close()


def test_a_real_standstill_is_still_a_fault(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "MAX_IDLE_STEPS", 3)
    world.add("waiting", OTHER)
    monkeypatch.setattr(Admission, "admit", lambda admission, planner, flex=False: None)
    with pytest.raises(EngineDeadError, match="planned nothing"):
        for _ in range(10):
            world.core.step()
    world.core.abort(["waiting"])


def test_others_go_on_while_a_mount_hangs_and_the_request_is_computed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call of the directory returns: neither those of look-ups nor those of reads and writes."""
    planner = threading.get_ident()

    def hang(directory: PageDirectory, name: str) -> bool:
        assert threading.get_ident() != planner, "the thread that plans steps makes no call of the directory"
        world.go.wait()
        return False

    monkeypatch.setattr(PageDirectory, "has", hang)
    running = world.add("running", OTHER, 30)
    world.step()
    waiting = world.add("waiting", PROMPT)
    world.run()
    assert world.tokens["running"] == reference(running)[0]
    assert world.tokens["waiting"] == reference(waiting)[0]
    assert world.core.stats().tier_hits == 0

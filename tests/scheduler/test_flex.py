"""The batch class gets what all others leave of a step, under every policy, with the same tokens."""

import pytest
from scheduler.fake_model import Client, FakeExecutor, make_request, make_scheduler, planned_step, reference, run
from scheduler.test_step_cost import MACHINES, Machine

from core.scheduler.step_cost import StepWork, work_of
from core_policies.fcfs.policy import FcfsPolicy
from tests.inside import state_of

LIMIT = 0.05
"""Seconds of a step with the batch class where there is no limit of stalls."""
POLICIES = ("fcfs", "priority", "fair")


class Bench:
    """A scheduler on a machine of its own time. steps: (seconds, names in the step)."""

    def __init__(self, machine: Machine, num_blocks: int = 4096, **limits: object) -> None:
        self.now = 100.0
        self.machine = machine
        self.steps: list[tuple[float, set[str]]] = []
        self.client = Client()
        self.added: list = []
        settings = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 8000} | limits
        self.scheduler = make_scheduler(num_blocks, clock=lambda: self.now, **settings)
        self.executor = FakeExecutor(num_blocks)

    def add(self, name: str, num_prompt: int, max_tokens: int, *, explain: bool = False, **fields: object) -> None:
        prompt = [(sum(name.encode()) + place) % 40 for place in range(num_prompt)]
        self.added.append(make_request(name, prompt, max_tokens, **fields))
        self.added[-1].explain = explain
        self.scheduler.add(self.added[-1])

    def step(self) -> set[str]:
        step = self.scheduler.schedule()
        result = self.executor.execute(step.plan)
        seconds = self.machine.seconds(work_of(step.plan, step.num_decodes))
        self.now += seconds
        names = set(self.executor.named(step.plan))
        self.steps.append((seconds, names))
        self.client.receive(self.scheduler.finish(step, result))
        self.scheduler.check_integrity()
        return names

    def run(self) -> None:
        while self.scheduler.has_unfinished():
            self.step()
        for request in self.added:
            assert self.client.tokens[request.key] == reference(request, 8000)[0]


def learned(machine: Machine, **limits: object) -> Bench:
    """A bench that has seen prompts and decodes of the batch class."""
    bench = Bench(machine, **limits)
    bench.add("first", 300, 20, flex=True)
    for number in range(8):
        bench.add(f"warm{number}", 40, 10, flex=True)
    bench.run()
    bench.steps.clear()
    return bench


@pytest.mark.parametrize("policy", POLICIES)
def test_it_comes_after_all_others_under_every_policy(policy):
    scheduler, executor, client = make_scheduler(policy=policy, max_num_seqs=4), FakeExecutor(), Client()
    for number in range(3):
        scheduler.add(make_request(f"flex{number}", [number], 4, flex=True, priority=-5, user="a"))
    for number in range(6):
        scheduler.add(make_request(f"other{number}", [number, 1], 4, priority=number, user="b"))
    seen: list[str] = []
    while scheduler.has_unfinished():
        _, scheduled, _ = planned_step(scheduler, executor, client)
        seen += [name for name in scheduled if name not in seen]
    assert [name[:4] for name in seen] == ["othe"] * 6 + ["flex"] * 3


@pytest.mark.parametrize(("name", "least_use"), [("two cores", 0.4), ("an accelerator", 0.0)])
def test_its_steps_keep_the_limit_also_when_it_is_alone(name, least_use):
    bench = learned(MACHINES[name])
    for number in range(60):
        bench.add(f"line{number}", 30 + 40 * (number % 9), 30, flex=True)
    bench.run()
    late = [seconds for seconds, _ in bench.steps if seconds > 1.1 * LIMIT]
    assert len(late) <= 0.02 * len(bench.steps)
    assert sum(seconds for seconds, _ in bench.steps) / len(bench.steps) > least_use * LIMIT


def test_an_arrival_starts_in_the_next_step_although_lines_have_all_slots():
    bench = learned(Machine(0.004, 1e-4, 1e-7, 1e-4, 1e-8), max_num_seqs=8)
    for number in range(40):
        bench.add(f"line{number}", 20, 100, flex=True)
    for _ in range(20):
        bench.step()
    for number in range(8):
        bench.add(f"chat{number}", 12, 5)
    num_before = len(bench.steps)
    waited = {}
    while len(waited) < 8:
        for name in bench.step():
            if name.startswith("chat"):
                waited.setdefault(name, len(bench.steps) - num_before)
    assert max(waited.values()) <= 8 and min(waited.values()) == 1
    bench.run()


def test_it_is_preempted_first_whoever_came_first():
    scheduler, executor, client = make_scheduler(14, policy="fcfs", max_num_seqs=4), FakeExecutor(14), Client()
    line = make_request("line", [1] * 8, 30, flex=True)
    chats = [make_request(f"chat{number}", [number + 2] * 8, 20) for number in range(2)]
    scheduler.add(line)
    for _ in range(3):
        planned_step(scheduler, executor, client)
    for chat in chats:
        scheduler.add(chat)
    order: list[str] = []
    while scheduler.has_unfinished():
        _, _, records = planned_step(scheduler, executor, client)
        order += [record.request_id for record in records if record.finish_reason]
    assert scheduler.stats().num_preemptions >= 1
    assert order[-1] == "line"
    for request in (line, *chats):
        assert client.tokens[request.key] == reference(request)[0]


def test_streams_wait_no_longer_than_the_limit_for_lines():
    bench = learned(MACHINES["two cores"], max_stall_s=0.1)
    bench.add("stream", 20, 200)
    bench.step()
    for number in range(40):
        bench.add(f"line{number}", 200, 40, flex=True)
    while bench.step() - {"stream"} or len(bench.client.tokens["stream", 0]) < 150:
        pass
    with_stream = [seconds for seconds, names in bench.steps if "stream" in names]
    assert sorted(with_stream)[int(0.98 * len(with_stream))] <= 0.11
    assert any(len(names) > 3 for _, names in bench.steps)


def test_prompts_of_others_are_no_stalls_for_streams_that_last_longer_beside_lines():
    bench = learned(MACHINES["two cores"])
    for number in range(40):
        bench.add(f"line{number}", 20, 400, flex=True)
    bench.add("stream", 20, 60)
    for number in range(4):
        for _ in range(8):
            bench.step()
        bench.add(f"chat{number}", 700, 3)  # half a second of prompt
    with_stream = [seconds for seconds, names in bench.steps if "stream" in names]
    while ("chat3", 0) not in bench.client.tokens:
        if "stream" in bench.step():
            with_stream.append(bench.steps[-1][0])
    assert max(with_stream) <= 2.2 * LIMIT
    bench.run()


def test_a_prompt_beside_many_streams_gets_as_long_as_they_although_lines_are_there():
    bench = learned(Machine(0.02, 4e-3, 0.0, 1e-3, 0.0))
    bench.add("line", 20, 200, flex=True)
    bench.step()
    for number in range(30):
        bench.add(f"stream{number}", 2, 100)
    for _ in range(40):
        bench.step()
    bench.add("chat", 1000, 3)
    num_before = len(bench.steps)
    while ("chat", 0) not in bench.client.tokens:
        bench.step()
    assert len(bench.steps) - num_before <= 16
    bench.run()


def test_lines_add_no_more_than_their_limit_to_a_long_prompt():
    bench = learned(MACHINES["two cores"])
    for number in range(48):
        bench.add(f"line{number}", 20, 400, flex=True)
    for _ in range(60):
        bench.step()
    bench.add("chat", 1500, 2)
    alone = bench.machine.seconds(StepWork(1500, 0, 0, 1500 * 1500 // 2))
    while "chat" not in bench.step():
        pass
    assert bench.steps[-1][0] <= alone + 0.1 * LIMIT
    bench.run()


@pytest.mark.parametrize("limits", [{"max_stall_s": 0.02}, {"max_num_mixed_batched_tokens": 32}])
def test_a_prompt_is_not_cut_for_rows_of_the_batch_class(limits):
    bench = learned(MACHINES["two cores"], **limits)
    for number in range(6):
        bench.add(f"line{number}", 20, 100, flex=True)
    for _ in range(20):
        bench.step()
    bench.add("chat", 600, 5)
    bench.step()
    bench.step()
    assert len(bench.client.tokens["chat", 0]) >= 1
    bench.run()


def test_rows_that_are_left_out_are_no_stalls():
    bench = learned(MACHINES["two cores"], max_stall_s=LIMIT)
    for number in range(30):
        bench.add(f"line{number}", 60, 30, flex=True)
    for number in range(6):
        bench.add(f"chat{number}", 700, 40)
    bench.run()
    chats = [names for _, names in bench.steps if any(name.startswith("chat") for name in names)]
    assert bench.scheduler.stats().num_stalls <= 0.02 * 6 * len(chats)


def test_a_limit_that_no_step_can_meet_starves_nobody_but_beside_others():
    bench = learned(Machine(0.2, 1e-3, 0.0, 1e-3, 0.0))
    bench.add("line", 200, 5, flex=True)
    bench.add("chat", 10, 30)
    while ("chat", 0) not in bench.client.last or bench.client.last["chat", 0].finish_reason is None:
        assert "line" not in bench.step()
    bench.run()


@pytest.mark.parametrize(
    ("limits", "waited"),
    [
        ({"max_num_seqs": 4}, "max_num_seqs"),
        ({"num_blocks": 100}, "kv_cache"),
        ({"max_stall_s": 0.02}, "max_stall_ms"),
        ({}, "max_stall_ms"),
    ],
)
def test_a_waiting_request_names_the_limit_of_its_class(limits, waited):
    bench = learned(MACHINES["two cores"], **limits)
    for number in range(20):
        bench.add(f"line{number}", 60, 60, flex=True, explain=True)
    for _ in range(3):
        bench.step()
    bench.add("chat", 10, 3, explain=True)
    bench.run()
    records = {name: output.record for (name, _), output in bench.client.last.items()}
    assert records["line19"].waited_for == waited
    assert records["chat"].waited_for in ("", "max_num_seqs", "kv_cache") and not records["line0"].waited_for


def test_others_pay_nothing_for_what_their_user_had_in_the_batch_class():
    scheduler, executor = make_scheduler(policy="fair", max_num_seqs=1), FakeExecutor()
    scheduler.add(make_request("line", [1] * 20, 20, flex=True, user="a"))
    run(scheduler, executor)
    scheduler.add(make_request("blocker", [9], 2, user="c"))
    planned_step(scheduler, executor)
    scheduler.add(make_request("b0", [2], 4, user="b"))
    scheduler.add(make_request("a0", [3], 4, user="a"))
    scheduler.add(make_request("b1", [4], 4, user="b"))
    order: list[str] = []
    while scheduler.has_unfinished():
        _, _, records = planned_step(scheduler, executor)
        order += [record.request_id for record in records if record.finish_reason]
    assert order == ["blocker", "b0", "a0", "b1"]


def test_without_its_distribution_it_is_refused_by_name():
    scheduler = make_scheduler()
    state_of(scheduler).policy = FcfsPolicy()
    scheduler.add(make_request("line", [1], 2, flex=True))
    _, _, records = planned_step(scheduler, FakeExecutor())
    assert records[0].finish_reason == "error" and "core-engine-policies" in records[0].stop_reason

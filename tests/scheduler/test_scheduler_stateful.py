"""Anything may happen in any order: invariants hold after each step and every answer is the one a request gets alone."""

import random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from scheduler.fake_model import EOS, Client, FakeExecutor, make_request, make_scheduler, reference, run

from core.api.step_plan import StepResult
from core_kit.devices.wired import WiredExecutor
from tests.inside import state_of

SHARED = [random.Random(1).randrange(40) for _ in range(24)]


@pytest.mark.parametrize("seed", range(40))
def test_answers_do_not_depend_on_company_chunks_preemption_hits_or_drafts(seed):
    rng = random.Random(seed)
    block_size = rng.choice([1, 3, 4, 16])
    has_states = seed % 4 > 1
    num_blocks = 2 + rng.randint(48, 120) // block_size
    if has_states:
        num_blocks += 4
    scheduler = make_scheduler(
        num_blocks,
        block_size,
        prefix_caching=rng.random() < 0.8,
        max_num_seqs=rng.randint(1, 8),
        max_num_batched_tokens=rng.choice([1, 7, 16, 64]),
        max_model_len=48,
        enable_chunked_prefill=rng.random() < 0.8,
        long_prefill_token_threshold=rng.choice([0, 0, 5]),
        policy=rng.choice(["fcfs", "priority"]),
        num_speculative_tokens=rng.choice([0, 3, 6]),
        states=has_states,
        max_adapters=seed % 3,
    )
    executor = FakeExecutor(num_blocks, block_size, seed=seed, max_adapters=seed % 3)
    client, requests = Client(), []
    if seed % 2:
        executor = WiredExecutor(executor)
    for number in range(25):
        prompt = SHARED[: rng.randint(0, 24)] + [rng.randrange(40) for _ in range(rng.randint(1, 12))]
        for choice in range(rng.choice([1, 1, 3])):
            priority = rng.randint(0, 2)
            fields = {"adapter": rng.choice(["", "", "a", "b", "c"]), "adapter_from": rng.choice([0, 0, 5])}
            fields["flex"] = number % 3 == 0
            requests.append(
                make_request(f"r{number}", prompt, rng.randint(1, 20), choice=choice, priority=priority, **fields)
            )
    for request in requests:
        scheduler.add(request)
        for _ in range(rng.choice([0, 0, 1, 4])):
            step = scheduler.schedule()
            client.receive(scheduler.finish(step, executor.execute(step.plan)))
            scheduler.check_integrity()
    run(scheduler, executor, client)
    for request in requests:
        output, reason, _ = reference(request, 48)
        assert client.tokens[request.key] == output
        assert client.last[request.key].finish_reason == reason
        if len(request.prompt_token_ids) + request.params.max_tokens <= 48:
            assert len(output) == request.params.max_tokens


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, aborts, steps, fails and resets at random."""

    @initialize(
        num_blocks=st.integers(12, 30),
        block_size=st.sampled_from([2, 4]),
        max_num_seqs=st.integers(1, 5),
        max_num_batched_tokens=st.sampled_from([2, 9, 64]),
        policy=st.sampled_from(["fcfs", "priority", "fair"]),
        num_speculative_tokens=st.sampled_from([0, 0, 4]),
        prefix_caching=st.booleans(),
        chunked=st.booleans(),
        mixed=st.sampled_from([0, 3]),
        threshold=st.sampled_from([0, 5]),
        partial=st.integers(1, 3),
        reserve=st.booleans(),
        wired=st.booleans(),
        states=st.booleans(),
        max_adapters=st.integers(0, 2),
        token_s=st.sampled_from([0.0, 0.002, 0.03]),
    )
    def start(
        self,
        num_blocks,
        block_size,
        max_num_seqs,
        max_num_batched_tokens,
        policy,
        num_speculative_tokens,
        prefix_caching,
        chunked,
        mixed,
        threshold,
        partial,
        reserve,
        wired,
        states,
        max_adapters,
        token_s,
    ):
        self.now = 1000.0
        self.token_s = token_s
        self.budget = max_num_batched_tokens if chunked else max(max_num_batched_tokens, 40)
        self.max_num_seqs = max_num_seqs
        self.scheduler = make_scheduler(
            num_blocks,
            block_size,
            prefix_caching=prefix_caching,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=40,
            policy=policy,
            num_speculative_tokens=num_speculative_tokens,
            enable_chunked_prefill=chunked,
            max_num_mixed_batched_tokens=mixed,
            long_prefill_token_threshold=threshold,
            max_num_partial_prefills=partial,
            reserve_full_prompt=reserve,
            clock=lambda: self.now,
            states=states,
            max_adapters=max_adapters,
        )
        self.max_length = min(40, self.scheduler.kv.capacity + 1)
        self.executor = FakeExecutor(num_blocks, block_size, max_adapters=max_adapters)
        if wired:
            self.executor = WiredExecutor(self.executor)
        self.client = Client()
        self.live = {}
        self.refused = {}
        self.count = 0

    @rule(
        shared=st.integers(0, 24),
        own=st.lists(st.integers(0, 39), min_size=1, max_size=8),
        max_tokens=st.integers(1, 24),
        choices=st.integers(1, 3),
        priority=st.integers(0, 2),
        eos=st.booleans(),
        min_tokens=st.integers(0, 3),
        prompt_logprobs=st.booleans(),
        salt=st.sampled_from([None, None, "a"]),
        user=st.sampled_from("abc"),
        deadline=st.sampled_from([0.0, 0.0, 0.0, 5.0]),
        named=st.booleans(),
        explain=st.booleans(),
        adapter=st.sampled_from(["", "", "a", "b", "c"]),
        adapter_from=st.sampled_from([0, 0, 3]),
        flex=st.sampled_from([False, False, True]),
    )
    def add(
        self,
        shared,
        own,
        max_tokens,
        choices,
        priority,
        eos,
        min_tokens,
        prompt_logprobs,
        salt,
        user,
        deadline,
        named,
        explain,
        adapter,
        adapter_from,
        flex,
    ):
        self.count += 1
        for choice in range(choices):
            request = make_request(
                f"r{self.count}",
                SHARED[:shared] + own,
                max_tokens,
                choice=choice,
                priority=priority,
                eos=[EOS, 1, 2] if eos else [],
                salt=salt,
                min_tokens=min(min_tokens, max_tokens),
                prompt_logprobs=0 if prompt_logprobs else None,
                user=user,
                deadline=self.now + deadline if deadline else 0.0,
                handle=10 * self.count + choice if named else -1,
                adapter=adapter,
                adapter_from=adapter_from,
                flex=flex,
            )
            request.explain = explain
            self.client.keys[request.handle] = request.key
            self.scheduler.add(request)
            fits = len(request.prompt_token_ids) < self.max_length
            (self.live if fits else self.refused)[request.key] = request

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            step, result = self.execute()
            self.receive(self.scheduler.finish(step, result))
            self.scheduler.check_integrity()

    @rule(data=st.data())
    def abort_one_in_flight(self, data):
        step, result = self.execute()
        if undue := self.undue():
            key = data.draw(st.sampled_from(sorted(undue)))
            self.scheduler.abort_choices([key])
            self.drop(key)
        self.receive(self.scheduler.finish(step, result))

    @rule(data=st.data())
    def abort_request(self, data):
        if self.live:
            name = data.draw(st.sampled_from(sorted({key[0] for key in self.live})))
            self.scheduler.abort([name])
            for key in [key for key in self.live if key[0] == name]:
                self.drop(key)

    @rule(data=st.data())
    def fail_one(self, data):
        step, result = self.execute()
        if step.plan.total_num_tokens:
            slot = data.draw(st.sampled_from(sorted(step.plan.slots.tolist())))
            key = self.executor.held[slot].request.key
            result.errors[slot] = "broken"
            outputs = self.scheduler.finish(step, result)
            (failed,) = [output for output in outputs.records if output.stop_reason == "broken"]
            assert (failed.request_id, failed.choice) == key
            outputs.records.remove(failed)
            self.receive(outputs)
            self.drop(key)
        else:
            self.receive(self.scheduler.finish(step, result))

    @rule(heard=st.booleans())
    def fail_step(self, heard):
        """heard: whether the executor got as far as to follow the plan."""
        step = self.plan()
        if step.is_idle:
            self.receive(self.scheduler.finish(step, StepResult()))
            return
        keys = [sequence.key for sequence in step.sequences()]
        if heard:
            self.executor.execute(step.plan)
            self.executor.maybe_gone.update(step.plan.removed)
        else:
            self.executor.maybe_gone.update(new.slot for new in step.plan.new)
        outputs = self.scheduler.fail(step, "poisoned")
        self.scheduler.check_integrity()
        if len(keys) == 1:
            failed = [output for output in outputs.records if output.stop_reason == "poisoned"]
            assert [(output.request_id, output.choice) for output in failed] == keys
            outputs.records.remove(failed[0])
            self.receive(outputs)
            self.drop(keys[0])
        else:
            self.receive(outputs)

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def reset(self):
        assert self.scheduler.reset_prefix_cache() == (self.scheduler.stats().kv_cache_usage == 0.0)

    @invariant()
    def consistent(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            stats = self.scheduler.stats()
            assert stats.num_running + stats.num_waiting == len(self.live)

    def execute(self):
        step = self.plan()
        result = self.executor.execute(step.plan)
        self.now += self.token_s * step.plan.total_num_tokens
        return step, result

    def plan(self):
        num_preemptions = self.scheduler.stats().num_preemptions
        step = self.scheduler.schedule()
        plan = step.plan
        if self.scheduler.stats().num_preemptions > num_preemptions:
            # The batch class makes way for others before a step is planned; nobody else does for anybody.
            has_flex = any(request.flex for request in self.live.values())
            assert not plan.new or (has_flex and not any(new.request.flex for new in plan.new)), "thrashing"
        assert plan.total_num_tokens <= self.budget
        assert len(plan.slots) <= self.max_num_seqs
        assert plan.total_num_tokens or not self.undue(), "something waits and nothing runs"
        return step

    def undue(self):
        """Live sequences that are not past their deadline."""
        return [key for key, request in self.live.items() if not 0 < request.deadline <= self.now]

    def receive(self, outputs):
        self.client.receive(outputs)
        for output in outputs.records:
            if output.finish_reason is not None:
                key = output.request_id, output.choice
                if key in self.refused:
                    del self.refused[key]
                    assert "The prompt has" in output.stop_reason
                    continue
                request = self.live.pop(key)
                assert (output.record is not None) == request.explain
                if output.finish_reason == "timeout":
                    assert 0 < request.deadline <= self.now
                    self.client.forget(key)
                    continue
                expected = reference(request, self.max_length)
                assert (self.client.tokens[key], output.finish_reason) == expected[:2]
                if output.record is not None:
                    record = output.record
                    assert record.entered <= record.started <= record.first_token <= record.ended
                    assert record.miss is not None and record.num_steps > 0
                if expected[1] == "stop":
                    assert output.stop_reason == expected[2]
                if request.params.prompt_logprobs is not None:
                    sent = [entry.token_ids[0] for entry in self.client.prompt_logprobs[key]]
                    assert sent == request.prompt_token_ids[1:]

    def drop(self, key):
        del self.live[key]
        self.client.forget(key)

    def teardown(self):
        if hasattr(self, "scheduler"):
            for _ in range(5000):
                if not self.scheduler.has_unfinished():
                    break
                self.step(1)
            assert not self.live and not self.refused
            assert not self.executor.held
            assert not state_of(self.scheduler).recorder
            assert self.scheduler.stats().kv_cache_usage == 0.0


def machine_settings(max_examples, stateful_step_count):
    return settings(
        max_examples=max_examples,
        stateful_step_count=stateful_step_count,
        deadline=None,
        phases=(Phase.generate,),
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = machine_settings(120, 60)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_tens_of_thousands_of_actions():
    run_state_machine_as_test(SchedulerMachine, settings=machine_settings(600, 80))

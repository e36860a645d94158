"""A model whose next token is a function of all tokens before it, read back from a paged cache.

Owns: the reference decoder and an executor that keeps only what a worker may keep: deltas and a cache of slots.
Never does: know the scheduler's state. Called by: the scheduler's tests.
"""

import random
import zlib
from array import array
from dataclasses import dataclass, field

import numpy as np

from core.api.config import SchedulerConfig
from core.api.messages import NO_HANDLE, EngineOutput, EngineRequest, TokenLogprobs
from core.api.sampling_params import SamplingParams
from core.api.specs import KVGroup
from core.api.step_plan import MOST_FORCED, SequenceKey, StepPlan, StepResult
from core.kv.connectors import KVConnectors
from core.kv.manager import KVManager
from core.scheduler.results import StepOutputs
from core.scheduler.scheduler import Scheduler
from core_kv_connectors.misses import Explanations
from core_policies.classes import TwoClasses
from core_policies.fair.policy import FairPolicy
from core_policies.fcfs.policy import FcfsPolicy
from core_policies.priority.policy import PriorityPolicy

POLICIES = {"fcfs": FcfsPolicy, "priority": PriorityPolicy, "fair": FairPolicy}

VOCABULARY = 40
EOS = 0


def seen(request: EngineRequest, token_ids: list[int]) -> list[int]:
    """The tokens as keys and values of a request show them: other ones from the first position of an adapter on."""
    shift = VOCABULARY * (1 + zlib.crc32(request.adapter.encode()) % 1000) if request.adapter else 0
    return [token + shift if place >= request.adapter_from else token for place, token in enumerate(token_ids)]


def next_token(token_ids: list[int]) -> int:
    return zlib.crc32(array("I", token_ids).tobytes()) % VOCABULARY


def make_request(
    name: str,
    prompt: list[int],
    max_tokens: int = 8,
    *,
    choice: int = 0,
    stop=(),
    eos=(),
    priority=0,
    salt=None,
    user="",
    deadline=0.0,
    handle=NO_HANDLE,
    adapter="",
    adapter_from=0,
    flex=False,
    **params,
) -> EngineRequest:
    return EngineRequest(
        name,
        choice,
        prompt,
        SamplingParams(max_tokens=max_tokens, **params),
        seed=1,
        stop_token_ids=[*eos, *stop],
        eos_token_ids=list(eos),
        priority=priority,
        cache_salt=salt,
        user=user,
        deadline=deadline,
        handle=handle,
        adapter=adapter,
        adapter_from=adapter_from,
        flex=flex,
    )


def make_scheduler(
    num_blocks: int = 64,
    block_size: int = 4,
    *,
    prefix_caching=True,
    clock=None,
    vectorized=True,
    max_in_flight=2,
    apart=0,
    groups=(),
    states=False,
    explains="own",
    advise=None,
    **limits,
) -> Scheduler:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 128} | limits
    config = SchedulerConfig(**settings)
    if states:
        spare = 2 if config.num_speculative_tokens else 0
        state = KVGroup("state", (1,), num_state_blocks=2, num_spare_blocks=spare)
        groups = (KVGroup("full", (0,)), state)

    def make_kv() -> KVManager:
        step = max(config.max_num_batched_tokens, config.max_model_len)
        options = {"groups": groups, "max_step_tokens": step, "snapshot_interval": block_size}
        options["connectors"] = KVConnectors([] if explains == "off" else [Explanations(explains, adapters=True)])
        return KVManager(num_blocks, block_size, prefix_caching, **options)

    options = {} if clock is None else {"clock": clock}
    options |= {"vectorized": vectorized, "max_in_flight": max_in_flight, "apart": apart, "advise": advise}
    policy = POLICIES[config.policy]
    return Scheduler(config, make_kv, TwoClasses(policy(), policy()), **options)


def reference(request: EngineRequest, max_length: int = 128) -> tuple[list[int], str, int | None]:
    """(output tokens, finish reason, stop reason) of a request that runs alone, one token after the other."""
    token_ids, output = list(request.prompt_token_ids), []
    while True:
        token = next_token(seen(request, token_ids))
        token_ids.append(token)
        output.append(token)
        if token in request.stop_token_ids and len(output) > request.params.min_tokens:
            return output, "stop", None if token in request.eos_token_ids else token
        if len(output) == request.params.max_tokens or len(token_ids) == max_length:
            return output, "length", None


@dataclass
class Held:
    request: EngineRequest
    token_ids: list[int]
    num_computed: int
    block_ids: list[int]
    state_ids: list[int]
    max_length: int
    drafts: list[int] = field(default_factory=list)
    source_ids: list[int] = field(default_factory=list)


class FakeExecutor:
    """Follows plans as a worker does. accuracy: how often a draft token is the right one.

    A second group of the plans is one with a state of two blocks; the number in each of them names all tokens so far.

    held: sequences by slot. maybe_gone: slots that the next plan may remove although they are free, because it repeats
    what a step that failed was told.
    """

    page_bytes = 64

    def __init__(
        self, num_blocks: int = 64, block_size: int = 4, *, accuracy: float = 0.6, seed: int = 0, max_adapters: int = 0
    ) -> None:
        self.block_size = block_size
        self.max_adapters = max_adapters
        self.cache: list[int | None] = [None] * (num_blocks * block_size)
        self.states: dict[int, int] = {}
        self.held: dict[int, Held] = {}
        self.accuracy = accuracy
        self.random = random.Random(seed)
        self.num_computed_tokens = 0
        self.maybe_gone: set[int] = set()

    def execute(self, plan: StepPlan) -> StepResult:
        self._apply(plan)
        result = StepResult()
        rows = list(zip(plan.slots.tolist(), plan.query_lens.tolist(), plan.num_computed.tolist(), strict=True))
        assert len({slot for slot, _, _ in rows}) == len(rows)
        adapters = {self.held[slot].request.adapter for slot, _, _ in rows} - {""}
        assert not self.max_adapters or len(adapters) <= self.max_adapters
        written = []
        for slot, count, num_computed in rows:
            row = self._settle(plan, slot, count, num_computed)
            if row is not None:
                written.append((slot, row[1], self._write(plan, slot, *row), row[2]))
        sampled: dict[int, int] = {}
        for slot, start, tokens, drafts in written:
            if drafts:
                result.num_verified[slot] = len(drafts)
            self._read(plan, result, slot, start, tokens, drafts, sampled)
            self.num_computed_tokens += len(tokens) - start
        result.slots = np.array(list(sampled), np.int32)
        result.token_ids = np.array(list(sampled.values()), np.int32)
        return result

    def named(self, plan: StepPlan) -> dict[str, int]:
        """Tokens that `plan`, which has been executed, computes, by request id."""
        rows = zip(plan.slots.tolist(), plan.query_lens.tolist(), strict=True)
        return {self.held[slot].request.request_id: count for slot, count in rows}

    def slot(self, name: str, choice: int = 0) -> int:
        """The slot of a sequence."""
        return next(slot for slot, held in self.held.items() if held.request.key == (name, choice))

    def _apply(self, plan: StepPlan) -> None:
        assert len(set(plan.removed)) == len(plan.removed)
        for slot in plan.removed:
            assert slot in self.held or slot in self.maybe_gone
            self.held.pop(slot, None)
        self.maybe_gone.clear()
        for new in plan.new:
            assert new.slot not in self.held
            tokens = new.request.prompt_token_ids + new.output_token_ids
            state_ids = new.block_ids[1][:2] if len(new.block_ids) > 1 else []
            computed = new.num_computed_tokens
            block_ids = list(new.block_ids[0])
            self.held[new.slot] = Held(new.request, tokens, computed, block_ids, state_ids, new.max_length)
        for slot, (block_ids, *of_states) in plan.new_block_ids.items():
            self.held[slot].block_ids += block_ids
            assert not any(of_states)
        for sources, targets in plan.copies:
            for block_id, state in zip(targets, [self.states.get(block_id) for block_id in sources], strict=True):
                self._set_state(block_id, state)
        for slot, (of_keys, state_ids) in plan.moved_states.items():
            held = self.held[slot]
            assert not of_keys and slot in plan.slots and len(state_ids) == len(held.state_ids)
            held.source_ids, held.state_ids = held.state_ids, state_ids
        assert plan.total_num_tokens == plan.query_lens.sum()
        rows = set(plan.slots.tolist())
        assert set(plan.num_drafts) <= rows and set(plan.draft_budget) <= rows

    def _settle(self, plan: StepPlan, slot: int, count: int, num_computed: int) -> tuple[int, int, list[int]] | None:
        """Tokens to compute, computed tokens and drafts of a row; None when its sequence has all its tokens."""
        held = self.held[slot]
        drafts, held.drafts = held.drafts, []
        if slot not in plan.num_drafts:
            return count, num_computed, []
        if len(held.token_ids) >= held.max_length:
            return None
        most = plan.num_drafts[slot]
        drafts = drafts[:most]
        num_known = count - most
        assert num_computed <= len(held.token_ids) - num_known
        return num_known + len(drafts), len(held.token_ids) - num_known, drafts

    def _write(self, plan: StepPlan, slot: int, count: int, num_computed: int, drafts: list[int]) -> list[int]:
        held = self.held[slot]
        if held.state_ids:
            assert num_computed <= held.num_computed
            held.num_computed = num_computed
        assert held.num_computed == num_computed
        assert count > 0 and len(drafts) < count
        tokens = (held.token_ids + drafts)[: held.num_computed + count]
        assert len(tokens) == held.num_computed + count
        assert not drafts or tokens[-len(drafts) :] == drafts
        assert not any(start < len(tokens) < stop for start, stop in held.request.spans), "a step ends within a span"
        shown = seen(held.request, tokens)
        for position in range(held.num_computed, len(tokens)):
            block_id = held.block_ids[position // self.block_size]
            assert block_id != 0, "the null block is never written"
            self.states.pop(block_id, None)
            self.cache[self._slot(held, position)] = shown[position]
        sources = held.source_ids or held.state_ids
        held.source_ids = []
        for nth, (source, block_id) in enumerate(zip(sources, held.state_ids, strict=True)):
            is_right = not num_computed or self.states.get(source) == _state(shown[:num_computed], nth)
            assert is_right, f"{held.request.key}: the state is not that behind {num_computed} tokens"
            self._set_state(block_id, _state(shown, nth))
        room = len(held.block_ids) * self.block_size
        # When all drafts are right, one token more is known behind them.
        budget = min(plan.draft_budget.get(slot, 0), held.max_length - len(tokens) - 2)
        assert len(tokens) + max(budget, 0) <= room, "look-ahead has its slots"
        return tokens

    def _read(
        self,
        plan: StepPlan,
        result: StepResult,
        slot: int,
        start: int,
        tokens: list[int],
        drafts: list[int],
        first: dict[int, int],
    ) -> None:
        held = self.held[slot]
        found = [self.cache[self._slot(held, position)] for position in range(len(tokens))]
        assert found == seen(held.request, tokens), f"{held.request.key} reads {found} where {tokens} was computed"
        num_prompt = len(held.request.prompt_token_ids)
        if held.request.params.prompt_logprobs is not None:
            known = held.request.prompt_token_ids
            result.prompt_logprobs[slot] = [
                TokenLogprobs([known[position]], [float(position)], [1])
                for position in range(start + 1, min(len(tokens) + 1, num_prompt))
            ]
        if len(tokens) < len(held.token_ids):
            held.num_computed = len(tokens)
            return
        sampled = [next_token(seen(held.request, tokens[: len(tokens) - len(drafts)]))]
        while len(sampled) <= len(drafts) and sampled[-1] == drafts[len(sampled) - 1]:
            sampled.append(next_token(seen(held.request, held.token_ids + sampled)))
        held.token_ids = held.token_ids + sampled
        held.num_computed = len(held.token_ids) - 1
        first[slot] = sampled[0]
        if len(sampled) > 1:
            result.more_token_ids[slot] = sampled[1:]
        if held.request.params.logprobs is not None:
            length = len(held.token_ids) - len(sampled)
            result.logprobs[slot] = [TokenLogprobs([t], [-float(length + i)], [1]) for i, t in enumerate(sampled)]
        room = held.max_length - len(held.token_ids) - 1
        forced = 0 if held.request.grammar is None else MOST_FORCED
        budget = min(plan.draft_budget.get(slot, forced), room)
        if budget > 0:
            held.drafts = self.propose(held, self.random.randint(0, budget))[:budget]
        if held.drafts:
            result.num_proposed[slot] = len(held.drafts)

    def _set_state(self, block_id: int, state: int | None) -> None:
        """Write a block of a state, and with that over keys and values that may have been there."""
        self.states[block_id] = state
        begin = block_id * self.block_size
        self.cache[begin : begin + self.block_size] = [None] * self.block_size

    def propose(self, held: Held, count: int) -> list[int]:
        drafts: list[int] = []
        for _ in range(count):
            right = next_token(seen(held.request, held.token_ids + drafts))
            drafts.append(right if self.random.random() < self.accuracy else (right + 1) % VOCABULARY)
        return drafts

    def _slot(self, held: Held, position: int) -> int:
        return held.block_ids[position // self.block_size] * self.block_size + position % self.block_size


def _state(token_ids: list[int], nth: int) -> int:
    return zlib.crc32(array("I", token_ids).tobytes(), nth)


class Client:
    """Gathers outputs by sequence and insists that they arrive without a gap and end once."""

    def __init__(self) -> None:
        self.keys: dict[int, SequenceKey] = {}
        self.tokens: dict[SequenceKey, list[int]] = {}
        self.logprobs: dict[SequenceKey, list[TokenLogprobs]] = {}
        self.prompt_logprobs: dict[SequenceKey, list[TokenLogprobs]] = {}
        self.last: dict[SequenceKey, EngineOutput] = {}
        self.num_cached: dict[SequenceKey, int] = {}

    def receive(self, outputs: StepOutputs) -> None:
        for handle, start, token_id in outputs.tokens:
            tokens = self.tokens[self.keys[handle]]
            assert start == len(tokens)
            tokens.append(token_id)
        for output in outputs.records:
            key = output.request_id, output.choice
            assert key not in self.last or self.last[key].finish_reason is None, f"{key} goes on after its end"
            tokens = self.tokens.setdefault(key, [])
            assert output.start == len(tokens)
            tokens += output.token_ids
            if output.logprobs is not None:
                assert len(output.logprobs) == len(output.token_ids)
                self.logprobs.setdefault(key, []).extend(output.logprobs)
            if output.prompt_logprobs is not None:
                assert key not in self.prompt_logprobs, "prompt logprobs are sent once"
                self.prompt_logprobs[key] = output.prompt_logprobs
            self.num_cached.setdefault(key, output.num_cached_tokens)
            self.last[key] = output

    def forget(self, key: SequenceKey) -> None:
        for column in (self.tokens, self.logprobs, self.prompt_logprobs, self.last, self.num_cached):
            column.pop(key, None)


def planned_step(scheduler, executor, client=None):
    """One step: its plan, the number of tokens by request, and the records of its outputs."""
    planned = scheduler.schedule()
    result = executor.execute(planned.plan)
    scheduled = executor.named(planned.plan)
    outputs = scheduler.finish(planned, result)
    scheduler.check_integrity()
    if client is not None:
        client.receive(outputs)
    return planned.plan, scheduled, outputs.records


def run(scheduler: Scheduler, executor: FakeExecutor, client: Client | None = None, max_steps: int = 5000) -> Client:
    """Step until nothing is left, checking every invariant after every step."""
    client = client or Client()
    for _ in range(max_steps):
        if not scheduler.has_unfinished():
            assert scheduler.stats().kv_cache_usage == 0.0
            assert not executor.held
            return client
        step = scheduler.schedule()
        client.receive(scheduler.finish(step, executor.execute(step.plan)))
        scheduler.check_integrity()
    raise AssertionError(f"not finished after {max_steps} steps")

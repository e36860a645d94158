"""A model whose next token is a function of all tokens before it, read back from a paged cache.

Owns: the reference decoder and an executor that keeps only what a worker may keep: deltas and a cache of slots.
Never does: know the scheduler's state. Called by: the scheduler's tests.
"""

from __future__ import annotations

import random
import zlib
from array import array
from dataclasses import dataclass

from core.api.config import CacheConfig, SchedulerConfig
from core.api.messages import EngineOutput, EngineRequest, TokenLogprobs
from core.api.sampling_params import SamplingParams
from core.api.step_plan import SequenceKey, StepPlan, StepResult
from core.scheduler.scheduler import Scheduler

VOCABULARY = 40
EOS = 0


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
    )


def make_scheduler(num_blocks: int = 64, block_size: int = 4, *, prefix_caching: bool = True, **limits) -> Scheduler:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 128} | limits
    cache = CacheConfig(block_size=block_size, enable_prefix_caching=prefix_caching)
    return Scheduler(SchedulerConfig(**settings), cache, num_blocks)


def reference(request: EngineRequest, max_length: int = 128) -> tuple[list[int], str, int | None]:
    """(output tokens, finish reason, stop reason) of a request that runs alone, one token after the other."""
    token_ids, output = list(request.prompt_token_ids), []
    while True:
        token = next_token(token_ids)
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


class FakeExecutor:
    """Follows plans as a worker does. accuracy: how often a draft token is the right one."""

    def __init__(self, num_blocks: int = 64, block_size: int = 4, *, accuracy: float = 0.6, seed: int = 0) -> None:
        self.block_size = block_size
        self.cache: list[int | None] = [None] * (num_blocks * block_size)
        self.held: dict[SequenceKey, Held] = {}
        self.accuracy = accuracy
        self.random = random.Random(seed)
        self.num_computed_tokens = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self._apply(plan)
        result = StepResult()
        spans = {key: self._write(plan, key, count) for key, count in plan.num_scheduled.items()}
        for key, (start, tokens) in spans.items():
            self._read(plan, result, key, start, tokens)
        self.num_computed_tokens += plan.total_num_tokens
        return result

    def _apply(self, plan: StepPlan) -> None:
        assert len(set(plan.removed)) == len(plan.removed)
        for key in plan.removed:
            del self.held[key]
        for new in plan.new:
            assert new.request.key not in self.held
            tokens = new.request.prompt_token_ids + new.output_token_ids
            self.held[new.request.key] = Held(new.request, tokens, new.num_computed_tokens, list(new.block_ids[0]))
        for key, (block_ids,) in plan.new_block_ids.items():
            self.held[key].block_ids += block_ids
        assert plan.total_num_tokens == sum(plan.num_scheduled.values())
        assert set(plan.drafts) <= set(plan.num_scheduled) and set(plan.draft_budget) <= set(plan.num_scheduled)

    def _write(self, plan: StepPlan, key: SequenceKey, count: int) -> tuple[int, list[int]]:
        held = self.held[key]
        drafts = plan.drafts.get(key, [])
        assert count > 0 and len(drafts) < count
        tokens = (held.token_ids + drafts)[: held.num_computed + count]
        assert len(tokens) == held.num_computed + count
        assert not drafts or tokens[-len(drafts) :] == drafts
        for position in range(held.num_computed, len(tokens)):
            assert held.block_ids[position // self.block_size] != 0, "the null block is never written"
            self.cache[self._slot(held, position)] = tokens[position]
        room = len(held.block_ids) * self.block_size
        assert len(tokens) + plan.draft_budget.get(key, 0) - len(drafts) <= room, "look-ahead has its slots"
        return held.num_computed, tokens

    def _read(self, plan: StepPlan, result: StepResult, key: SequenceKey, start: int, tokens: list[int]) -> None:
        held = self.held[key]
        seen = [self.cache[self._slot(held, position)] for position in range(len(tokens))]
        assert seen == tokens, f"{key} reads {seen} where {tokens} was computed"
        num_prompt = len(held.request.prompt_token_ids)
        if held.request.params.prompt_logprobs is not None:
            known = held.request.prompt_token_ids
            result.prompt_logprobs[key] = [
                TokenLogprobs([known[position]], [float(position)], [1])
                for position in range(start + 1, min(len(tokens) + 1, num_prompt))
            ]
        if len(tokens) < len(held.token_ids):
            held.num_computed = len(tokens)
            return
        drafts = plan.drafts.get(key, [])
        sampled = [next_token(tokens[: len(tokens) - len(drafts)])]
        while len(sampled) <= len(drafts) and sampled[-1] == drafts[len(sampled) - 1]:
            sampled.append(next_token(held.token_ids + sampled))
        held.token_ids = held.token_ids + sampled
        held.num_computed = len(held.token_ids) - 1
        result.token_ids[key] = sampled
        if held.request.params.logprobs is not None:
            length = len(held.token_ids) - len(sampled)
            result.logprobs[key] = [TokenLogprobs([t], [-float(length + i)], [1]) for i, t in enumerate(sampled)]
        if plan.draft_budget.get(key):
            result.drafts[key] = self._propose(held.token_ids, self.random.randint(0, plan.draft_budget[key]))

    def _propose(self, token_ids: list[int], count: int) -> list[int]:
        drafts: list[int] = []
        for _ in range(count):
            right = next_token(token_ids + drafts)
            drafts.append(right if self.random.random() < self.accuracy else (right + 1) % VOCABULARY)
        return drafts

    def _slot(self, held: Held, position: int) -> int:
        return held.block_ids[position // self.block_size] * self.block_size + position % self.block_size


class Client:
    """Gathers outputs by sequence and insists that they arrive without a gap and end once."""

    def __init__(self) -> None:
        self.tokens: dict[SequenceKey, list[int]] = {}
        self.logprobs: dict[SequenceKey, list[TokenLogprobs]] = {}
        self.prompt_logprobs: dict[SequenceKey, list[TokenLogprobs]] = {}
        self.last: dict[SequenceKey, EngineOutput] = {}
        self.num_cached: dict[SequenceKey, int] = {}

    def receive(self, outputs: list[EngineOutput]) -> None:
        for output in outputs:
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


def run(scheduler: Scheduler, executor: FakeExecutor, client: Client | None = None, max_steps: int = 5000) -> Client:
    """Step until nothing is left, checking every invariant after every step."""
    client = client or Client()
    for _ in range(max_steps):
        if not scheduler.has_unfinished():
            assert scheduler.stats().kv_cache_usage == 0.0
            assert not executor.held
            return client
        plan = scheduler.schedule()
        client.receive(scheduler.update(plan, executor.execute(plan)))
        scheduler.check_integrity()
    raise AssertionError(f"not finished after {max_steps} steps")

"""Nothing of a slot's earlier owner reaches the next one: random requests come, end, are preempted and aborted, and each has
the tokens and log-probabilities that it gets alone, in a batch that no other sequence was ever in."""

import contextlib
import random
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from executor import regex_grammar
from executor.test_doubles import double
from scheduler.fake_model import Client

from core.api.config import EngineConfig
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepResult
from core.kv.manager import KVManager
from core.scheduler.scheduler import Scheduler
from core_config.resolve import resolve
from core_kit.devices.fake_device import Watch
from core_policies.fcfs.policy import FcfsPolicy
from core_runtime.executor.drafts.pending import PendingDrafts
from core_runtime.executor.processors.logits_processors import LogitsProcessors
from core_runtime.executor.worker import Worker
from core_runtime.sampling import SamplingColumns, SequenceSampling
from core_runtime.sampling.rows import SampleRows

VOCAB = 260
MAX_LENGTH = 48
PATTERNS = ["[a-f]{3,9}", "(yes|no|maybe)+", '\\{"k": "[a-c]*"\\}']
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}
WAYS: dict[str, dict[str, Any]] = {
    "drafts": {"speculative_config": DRAFTS, "logits_processors": ["executor.own_processors:Shifts"]},
    "vLLM's processors": {
        "logits_processors": [f"executor.own_processors:{name}" for name in ("Late", "Target", "Counts")]
    },
    "device": double("gpu"),
}
"""Ways to run an engine. Processors written for vLLM name sequences by their rows, which move; they allow no drafts."""


class Engine:
    """Scheduler and worker in one thread. A new scheduler and batch know of no sequence."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.worker = Worker(config)
        self.scheduler = self._scheduler()
        self.client = Client()
        self.in_flight: deque[Any] = deque()

    def watched(self) -> contextlib.AbstractContextManager[Any]:
        """What the host reads of a double of a device is there by then; on the CPU there is nothing to do."""
        calls = getattr(self.worker.runtime, "calls", None)
        return contextlib.nullcontext() if calls is None else Watch(calls)

    def renew(self) -> None:
        self.worker.use_models(self.worker.instances)
        self.scheduler = self._scheduler()
        self.client = Client()

    def step(self) -> None:
        """Plan a step, and read the result of the oldest one where as many are in flight as may be."""
        step = self.scheduler.schedule()
        if step.is_idle:
            self.finish_oldest()
            self.client.receive(self.scheduler.finish(step, StepResult()))
            return
        ahead = self.worker.ahead
        begun = self.worker.execute(step.plan) if ahead is None else self.worker.begin(step.plan)
        self.in_flight.append((step, begun))
        if ahead is None or len(self.in_flight) == self.scheduler.max_in_flight:
            self.finish_oldest()

    def finish_oldest(self) -> None:
        if self.in_flight:
            step, begun = self.in_flight.popleft()
            result = begun if self.worker.ahead is None else self.worker.finish(begun)
            self.client.receive(self.scheduler.finish(step, result))

    def run(self) -> None:
        while self.scheduler.has_unfinished():
            self.step()

    def _scheduler(self) -> Scheduler:
        config, cache = self.config, self.config.cache

        def make_kv() -> KVManager:
            step = config.scheduler.max_step_tokens
            return KVManager(self.worker.num_blocks, cache.block_size, True, groups=cache.groups, max_step_tokens=step)

        return Scheduler(config.scheduler, make_kv, FcfsPolicy())


Made = Callable[..., Engine]


@pytest.fixture(scope="module")
def made(tiny_llama: Path) -> Iterator[Made]:
    """Engines by the way in which they run, made once; the regular expressions are a backend of grammars."""
    known: dict[str, Engine] = {}

    def engine(way: str) -> Engine:
        if way not in known:
            arguments: dict[str, Any] = {
                "model": str(tiny_llama),
                "dtype": "float32",
                "max_model_len": MAX_LENGTH,
                "max_num_seqs": 3,
                "max_num_batched_tokens": 16,
                "block_size": 4,
                "num_gpu_blocks_override": 14,
                "max_logprobs": -1,
            }
            known[way] = Engine(resolve(arguments | WAYS[way], context="llm", environ={}).engine)
        return known[way]

    with pytest.MonkeyPatch.context() as monkeypatch:
        regex_grammar.install(monkeypatch)
        yield engine
    for one in known.values():
        one.worker.close()


def random_request(rng: random.Random, name: str, *, plain: bool) -> EngineRequest:
    """About half of the options off, so that the next owner of a slot has other ones on. plain: no processors, no drafts."""

    def maybe(share: float, value: Any, otherwise: Any = None) -> Any:
        return value if rng.random() < share else otherwise

    tokens = [rng.randrange(4, VOCAB) for _ in range(40)]
    prompt = (tokens[:3] * 5)[: rng.randint(1, 12)] if rng.random() < 0.5 else tokens[: rng.randint(1, 20)]
    grammar = maybe(0.25, regex_grammar.compiled(rng.choice(PATTERNS)))
    extra: dict[str, Any] = {}
    if not plain and grammar is None:
        kinds = {"shift": 2.5, "least": 0.02, "target_token": rng.choice(tokens), "start": rng.randrange(4, 50)}
        for key in rng.sample(sorted(kinds), rng.choice([0, 0, 1, 2])):
            extra[key] = kinds[key]
    trace = maybe(0.05, tokens[:7]) if grammar is None else None
    max_tokens = len(trace) if trace else rng.randint(1, 24)
    params = SamplingParams(
        temperature=rng.choice([0.0, 0.4, 1.0, 1.7]),
        top_k=maybe(0.4, rng.choice([1, 3, 30]), 0),
        top_p=maybe(0.4, rng.choice([0.3, 0.8]), 1.0),
        min_p=maybe(0.3, 0.1, 0.0),
        presence_penalty=maybe(0.3, 1.5, 0.0),
        frequency_penalty=maybe(0.3, -1.2, 0.0),
        repetition_penalty=maybe(0.3, 1.6, 1.0),
        logit_bias=maybe(0.3, {token: rng.choice([-40.0, 6.0]) for token in tokens[:3]}),
        max_tokens=max_tokens,
        min_tokens=maybe(0.3, min(rng.randint(1, 6), max_tokens), 0) if trace is None else 0,
        logprobs=maybe(0.5, rng.choice([0, 2, -1])),
        prompt_logprobs=maybe(0.25, rng.choice([0, 2])),
        extra_args=extra or None,
        trace_decode_token_ids=trace,
    )
    allowed = maybe(0.25, tokens[:12], []) if grammar is None else []
    return EngineRequest(
        name,
        rng.randrange(3),
        prompt,
        params,
        seed=rng.getrandbits(64),
        stop_token_ids=[regex_grammar.EOS, *maybe(0.4, tokens[:25], [])],
        eos_token_ids=[regex_grammar.EOS],
        bad_words_ids=maybe(0.3, [[tokens[0]], [tokens[1], tokens[2]]], []),
        allowed_ids=array("q", allowed).tobytes(),
        grammar=grammar,
    )


def answer(client: Client, request: EngineRequest) -> tuple[Any, ...]:
    """Everything that the client gets of a request, but whether its prompt was found in the cache."""
    key = request.key
    last = client.last.get(key)
    ended = None if last is None else (last.finish_reason, last.stop_reason)
    return client.tokens.get(key, []), client.logprobs.get(key, []), client.prompt_logprobs.get(key), ended


def run_company(engine: Engine, rng: random.Random, count: int) -> list[tuple[EngineRequest, tuple[Any, ...], bool]]:
    """Requests that come and go at random, each with its answer, and whether it was aborted."""
    engine.renew()
    live: dict[str, EngineRequest] = {}
    found: list[tuple[EngineRequest, tuple[Any, ...], bool]] = []

    def take(name: str, *, is_aborted: bool) -> None:
        request = live.pop(name)
        found.append((request, answer(engine.client, request), is_aborted))
        engine.client.forget(request.key)  # names are used again

    num_added = 0
    while num_added < count or live:
        action = rng.random()
        free = [name for name in "abcdefg" if name not in live]
        if num_added < count and free and action < 0.35:
            request = random_request(rng, rng.choice(free), plain=engine.worker.processors is None)
            live[request.request_id] = request
            engine.scheduler.add(request)
            num_added += 1
        elif live and action > 0.97:
            name = rng.choice(sorted(live))
            engine.scheduler.abort([name])
            take(name, is_aborted=True)
        else:
            engine.step()
        check_free_slots(engine)
        for name in list(live):
            last = engine.client.last.get(live[name].key)
            if last is not None and last.finish_reason is not None:
                take(name, is_aborted=False)
    engine.run()
    check_free_slots(engine)
    return found


def check_free_slots(engine: Engine) -> None:
    """What the worker knows belongs to slots that have an owner."""
    batch = engine.worker.runner.batch
    owners = {slot for slot, request in enumerate(batch.requests) if request is not None}
    keys = {batch[slot].key for slot in owners}
    known = [batch.scored, batch.pooled, batch.masks, batch.trees, batch.undrafted, batch.embedded, batch.drafts._held]
    for each in known:
        assert set(each) <= owners
    assert {slot for slot, state in enumerate(batch.columns.states) if state is not None} == owners
    assert {slot for slot, is_masked in enumerate(batch.columns.masked) if is_masked} == set(batch.masks)
    assert batch.columns.num_masked == len(batch.masks)
    processors = engine.worker.processors
    assert processors is None or set(processors._used) | set(processors._broken) <= keys


def check(engine: Engine, seed: int, count: int = 40) -> Counter[str]:
    """Compare each answer with the one of the same request alone. Returns what happened."""
    with engine.watched():
        return _check(engine, seed, count)


def _check(engine: Engine, seed: int, count: int) -> Counter[str]:
    rng = random.Random(seed)
    found = run_company(engine, rng, count)
    happened = Counter(preempted=engine.scheduler.stats().num_preemptions)
    happened["drafted"] = engine.scheduler.stats().spec_num_draft_tokens
    for request, (tokens, logprobs, prompt_logprobs, ended), is_aborted in found:
        happened["aborted"] += is_aborted
        engine.renew()
        engine.scheduler.add(request)
        engine.run()
        alone = answer(engine.client, request)
        told = f"seed {seed}, request {request}"
        if is_aborted:
            assert tokens == alone[0][: len(tokens)], told
            assert logprobs == alone[1][: len(logprobs)], told
        else:
            assert (tokens, ended) == (alone[0], alone[3]), told
            assert logprobs == alone[1], told
            assert prompt_logprobs == alone[2], told
    return happened


@pytest.mark.parametrize(("way", "count"), [("drafts", 20), ("vLLM's processors", 10), ("device", 5)])
def test_a_request_gets_what_it_gets_alone(made: Made, way: str, count: int) -> None:
    happened = check(made(way), 1, count)
    assert way != "drafts" or min(happened["preempted"], happened["aborted"], happened["drafted"]) > 0, happened


def keeps_parameters(start: Any) -> Any:
    """A slot keeps the filters of the owner before where the next one asks for none."""

    def started(self: SamplingColumns, slot: int, state: SequenceSampling) -> None:
        before = int(self.top_k[slot])
        start(self, slot, state)
        if not self.top_k[slot]:
            self.top_k[slot] = before

    return started


def keeps_logprobs(start: Any) -> Any:
    """A slot keeps asking for the log-probabilities of the owner before."""

    def started(self: SamplingColumns, slot: int, state: SequenceSampling) -> None:
        before = int(self.logprobs[slot])
        start(self, slot, state)
        self.logprobs[slot] = max(self.logprobs[slot], before)

    return started


def keeps_seeds(start: Any) -> Any:
    """A slot keeps the seed of its first owner."""

    def started(self: SamplingColumns, slot: int, state: SequenceSampling) -> None:
        before = self.keys[slot].copy()
        start(self, slot, state)
        if before.any():
            self.keys[slot] = before

    return started


def keeps_masks(start: Any) -> Any:
    """A slot keeps the allowed ids and the token mask of the owner before."""
    known: dict[int, SequenceSampling] = {}

    def started(self: SamplingColumns, slot: int, state: SequenceSampling) -> None:
        before = known.get(slot)
        if before is not None and state.allowed_ids is None:
            state.allowed_ids = before.allowed_ids
        start(self, slot, state)
        known[slot] = state

    return started


def keeps_counts(counts: Any) -> Any:
    """Penalties count on from what they counted for the sequence before."""
    known: list[SequenceSampling] = []

    def counted(self: SequenceSampling, index: int, num_drafted: int) -> Any:
        if known and self._counts is None:
            self._counts = known[-1]._counts
            self._counts.num_output = 0
        found = counts(self, index, num_drafted)
        known.append(self)
        return found

    return counted


def keeps_nothing_of(method: Any) -> Any:
    """A method that should clear something does nothing."""
    return lambda self, *arguments: None


def keeps_rows(bind: Any) -> Any:
    """The rows of a step keep what was adjusted in the step before."""

    def bound(self: SampleRows, *arguments: Any) -> None:
        before = getattr(self, "adjusted", [])
        bind(self, *arguments)
        self.adjusted = [row for row in before if row < self.count]

    return bound


BROKEN: dict[str, tuple[type[Any], str, Callable[[Any], Any]]] = {
    "filters": (SamplingColumns, "start", keeps_parameters),
    "log-probabilities": (SamplingColumns, "start", keeps_logprobs),
    "seeds": (SamplingColumns, "start", keeps_seeds),
    "allowed ids": (SamplingColumns, "start", keeps_masks),
    "counts of penalties": (SequenceSampling, "counts", keeps_counts),
    "adjusted rows": (SampleRows, "bind", keeps_rows),
    "drafts": (PendingDrafts, "end", keeps_nothing_of),
    "processors": (LogitsProcessors, "end", keeps_nothing_of),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_left_behind_is_found(made: Made, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """The comparison sees each of these when a reset is taken out."""
    owner, name, broken = BROKEN[what]
    engine = made("vLLM's processors" if what == "processors" else "drafts")
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))
    with pytest.raises((AssertionError, IndexError, KeyError)):
        for seed in range(1, 4):
            check(engine, seed, 30)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_many_requests_get_what_they_get_alone(made: Made, way: str) -> None:
    for seed in range(100, 140):
        check(made(way), seed)

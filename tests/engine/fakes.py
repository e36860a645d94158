"""Fakes for the engine's tests: an executor without a model, a byte tokenizer, a configuration.

The executor's next token follows from all tokens before it, or spells a script. Some prompt tokens cause accidents.
"""

import os
import signal
import time
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from core.api.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    PluginChoices,
    ResolvedPlugin,
    RestartConfig,
    SchedulerConfig,
)
from core.api.errors import UserError
from core.api.messages import EngineOutput, EngineRequest, TokenLogprobs
from core.api.step_plan import StepPlan, StepResult
from core.engine.composition import build_engine, find_observers
from core.engine.core import EngineCore
from core.engine.observer import EngineObserver, ObserverFactory
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_config.served.server_config import ServerConfig
from core_runtime.specs.checkpoint import TokenizerSource, Vocabulary
from core_supervision.lifecycle import Lifecycle
from core_supervision.lifecycle_observer import LifecycleObserver

EOS = 256
VOCAB_SIZE = 257
TARGET = "fakes:FakeExecutor"

RAISE = 200
"""A prompt token: the step that computes it raises."""
KILL = 201
"""A prompt token: the process kills itself."""
CRASH = 203
"""A prompt token: the process crashes, as by a wild pointer."""
HANG = 204
"""A prompt token: the step that computes it never ends."""
FAIL = 202
"""A prompt token: the sequence alone fails."""


OPTIONS = msgspec.defstruct(
    "Options",
    [
        *((name, Any, None) for name in ("script", "num_blocks", "delay_s", "start_s")),
        *((name, Any, None) for name in ("refuse", "break", "exit", "always_fail")),
    ],
    frozen=True,
    kw_only=True,
)
POLICIES = tuple(
    ResolvedPlugin(kind="policy", name=name, target=f"core_policies.{name}.manifest")
    for name in ("fcfs", "priority", "fair")
)

EXPLAIN = ResolvedPlugin(kind="kv_connector", name="explain", target="core_kv_connectors.manifests.explain")
"""The connector that a configuration has unless `--explain-answers off`."""


def byte_names() -> list[str]:
    """The printable stand-in of each byte in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = {}, 256
    for byte in range(256):
        if byte in plain:
            names[byte] = chr(byte)
        else:
            names[byte] = chr(extra)
            extra += 1
    return [names[byte] for byte in range(256)]


def byte_source(chat_template: str | None = None) -> TokenizerSource:
    """A tokenizer whose token ids are the text's bytes, and 256 the end of a sequence."""
    vocabulary = Vocabulary(
        model="bpe", tokens=[*byte_names(), "<eos>"], pre="gpt-2", types=[1] * 256 + [3], eos_token_id=EOS
    )
    return TokenizerSource(vocabulary=vocabulary, chat_template=chat_template)


FINAL = RestartConfig(limit=0)
"""An engine's death is its end."""


def make_config(
    *,
    options: dict[str, Any] | None = None,
    max_model_len: int = 64,
    scheduler: dict[str, Any] | None = None,
    stall_timeout_s: float = 120.0,
    restarts: RestartConfig = FINAL,
    **model: Any,
) -> EngineConfig:
    """options: of the fake executor: `script`, `num_blocks`, `delay_s`, `start_s`, `refuse`, `break`, `exit`, `always_fail`."""
    return EngineConfig(
        model=ModelConfig(
            model="fake", served_names=("fake",), max_model_len=max_model_len, vocab_size=VOCAB_SIZE,
            eos_token_ids=(EOS,), **model,
        ),
        cache=CacheConfig(block_size=4),
        scheduler=SchedulerConfig(
            **{"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": max_model_len} | (scheduler or {})
        ),
        stall_timeout_s=stall_timeout_s,
        restarts=restarts,
        plugins=PluginChoices(
            loader="none", platform="none", executor="fake", arguments={"executor.fake": options or {}},
            table=(*POLICIES, EXPLAIN, ResolvedPlugin(kind="executor", name="fake", target=f"{__name__}:FakeManifest")),
            kv_connectors=("explain",),
        ),
    )  # fmt: skip


def make_resolution(config: EngineConfig, chat_template: str | None = None) -> Any:
    """What `resolve` would return, as far as the engine looks at it."""
    manifest = SimpleNamespace(tokenizer=byte_source(chat_template))
    return SimpleNamespace(engine=config, server=ServerConfig(), manifest=manifest)


@cache
def factories() -> dict[str, ObserverFactory]:
    """The factories of all observers, found once."""
    return find_observers()


def composed(config: EngineConfig, executor: Any, epoch: int = 0, **observers: EngineObserver) -> EngineCore:
    """An engine core with its KV services and all observers. observers: by name, in the place of the usual ones."""
    given = {name: (lambda start, observer=observer: observer) for name, observer in observers.items()}
    return build_engine(config, lambda final: executor, {**factories(), **given}, epoch=epoch)


def lifecycle_of(core: EngineCore) -> Lifecycle:
    """The lifecycle of an engine core."""
    return next(each.lifecycle for each in core.observers if isinstance(each, LifecycleObserver))


def next_token(token_ids: list[int]) -> int:
    """The fake model: depends on every token and its place, and never ends a sequence."""
    state = 17
    for token in token_ids:
        state = (state * 31 + token + 1) % 65521
    return 97 + state % 26


def reference(prompt: list[int], count: int) -> list[int]:
    """The tokens that the fake model generates after a prompt, computed without an engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@dataclass
class FakeSequence:
    request: EngineRequest
    token_ids: list[int]
    num_computed: int


class FakeExecutor:
    """Computes `next_token`, or the bytes of `script` followed by the end of the sequence."""

    numerics = "fake"
    page_bytes = 64

    def __init__(self, config: EngineConfig) -> None:
        self.options = config.plugins.arguments["executor.fake"]
        self.num_blocks = self.options.get("num_blocks", 64)
        self.sequences: dict[int, FakeSequence] = {}
        self.phases = [("fake", 0.5)]
        self.raising = 0
        self.closed = False
        if "refuse" in self.options:
            raise UserError(self.options["refuse"])
        if "break" in self.options:
            raise RuntimeError(self.options["break"])
        if "exit" in self.options:
            print("last words of the fake", flush=True)
            os._exit(self.options["exit"])
        time.sleep(self.options.get("start_s", 0.0))

    def execute(self, plan: StepPlan) -> StepResult:
        if "delay_s" in self.options:
            time.sleep(self.options["delay_s"])
        for slot in plan.removed:
            self.sequences.pop(slot, None)
        for new in plan.new:
            known = new.request.prompt_token_ids + new.output_token_ids
            self.sequences[new.slot] = FakeSequence(new.request, known, new.num_computed_tokens)
        result = StepResult()
        if plan.transfers is not None:
            result.pages = [np.full(self.page_bytes, block_id % 251, np.uint8) for block_id in plan.transfers.saves]
        sampled: dict[int, int] = {}
        for slot, count in zip(plan.slots.tolist(), plan.query_lens.tolist(), strict=True):
            self._advance(slot, count, result, sampled)
        if (self.raising > 0 or self.options.get("always_fail")) and plan.total_num_tokens:
            self.raising -= 1
            raise RuntimeError("the fake was told to fail")
        result.slots = np.array(list(sampled), np.int32)
        result.token_ids = np.array(list(sampled.values()), np.int32)
        return result

    def close(self) -> None:
        self.closed = True

    def _advance(self, slot: int, count: int, result: StepResult, sampled: dict[int, int]) -> None:
        sequence = self.sequences[slot]
        prompt = sequence.request.prompt_token_ids
        first = sequence.num_computed
        sequence.num_computed += count
        if KILL in prompt:
            os.kill(os.getpid(), signal.SIGKILL)
        if CRASH in prompt:
            os.kill(os.getpid(), signal.SIGSEGV)
        while HANG in prompt:
            time.sleep(0.1)
        if RAISE in prompt:
            raise RuntimeError("a poisoned prompt")
        if FAIL in prompt:
            result.errors[slot] = "the fake model failed for this sequence"
            return
        params = sequence.request.params
        if params.prompt_logprobs is not None and first < len(prompt) - 1:
            following = prompt[first + 1 : sequence.num_computed + 1]
            result.prompt_logprobs[slot] = [entry(token, params.prompt_logprobs) for token in following]
        if sequence.num_computed == len(sequence.token_ids):
            token = self._next(sequence)
            sequence.token_ids.append(token)
            sampled[slot] = token
            if params.logprobs is not None:
                result.logprobs[slot] = [entry(token, params.logprobs)]

    def _next(self, sequence: FakeSequence) -> int:
        script = self.options.get("script")
        if script is None:
            return next_token(sequence.token_ids)
        spelled = [*script.encode(), EOS]
        return spelled[min(len(sequence.token_ids) - len(sequence.request.prompt_token_ids), len(spelled) - 1)]


class FakeManifest:
    """The plugin of the fake executor, for engines that take theirs from the table."""

    CONTRACT = 1

    @staticmethod
    @hookimpl
    def core_spec() -> PluginSpec:
        return PluginSpec(name="fake", arguments=OPTIONS)

    @staticmethod
    @hookimpl
    def core_load(context: LoadContext) -> Any:
        return SimpleNamespace(build=lambda config: FakeExecutor(config))


def entry(token: int, count: int) -> TokenLogprobs:
    """The chosen token with probability 1/2, then `count` tokens from 0 on."""
    return TokenLogprobs(
        [token, *range(count)], [-0.6931] + [-1.0 - i for i in range(count)], list(range(1, count + 2))
    )


def tokens(outputs: list[EngineOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]

"""A fake executor with adapters: the next token depends on the digest of a sequence's adapter, from its first position on.

An adapter is a file, or was sent; what the file or the sent configuration holds is its weights. Some contents cause accidents.
"""

import hashlib
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from engine.fakes import FakeExecutor, FakeManifest, FakeSequence, make_config, next_token

from core.api.adapters import AdapterFacts, AdaptersConfig, AdapterSource
from core.api.config import EngineConfig, ResolvedPlugin
from core.api.errors import UserError
from core.api.step_plan import StepPlan, StepResult
from core.plugin.hookspecs import LoadContext, hookimpl
from core_adapters.sent import SentPlace
from core_supervision.engine_state import PARTS
from tests.engine.sleeping import FakeReloader

TARGET = "engine.adapting:AdaptingExecutor"
PATIENCE_S = 30.0


def adapting_config(
    *modules: AdapterSource, max_loras: int = 2, max_cpu_loras: int = 2, **settings: object
) -> EngineConfig:
    config = make_config(**settings)
    adapters = AdaptersConfig(max_loras=max_loras, max_cpu_loras=max_cpu_loras, modules=modules)
    scheduler = msgspec.structs.replace(config.scheduler, max_adapters=max_loras)
    row = ResolvedPlugin(kind="executor", name="fake", target=f"{__name__}:AdaptingManifest")
    plugins = msgspec.structs.replace(config.plugins, table=(*config.plugins.table[:-1], row))
    return msgspec.structs.replace(config, adapters=adapters, scheduler=scheduler, plugins=plugins, sleeps=True)


def written(directory: Path, name: str, weights: str = "") -> AdapterSource:
    """An adapter's file, whose weights are its name unless they are given."""
    path = directory / name
    path.write_text(weights or name)
    return AdapterSource(name, str(path))


def digest_of(weights: str) -> str:
    return hashlib.sha256(weights.encode()).hexdigest()


def adapted(prompt: list[int], count: int, weights: str, first: int = 0) -> list[int]:
    """The tokens that the fake model generates with an adapter, computed without an engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(_next(tokens, digest_of(weights) if weights else "", first))
    return tokens[len(prompt) :]


def _next(tokens: list[int], digest: str, first: int) -> int:
    shift = int(digest[:8], 16) % 1000 + 1 if digest else 0
    return next_token([token + shift * (place >= first) for place, token in enumerate(tokens)])


class AdaptingExecutor(FakeExecutor):
    """Computes with adapters that were read and placed, and with no others.

    let: set while reading goes on. log: what was asked of it.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.reloader = FakeReloader(config)
        self.most = config.scheduler.max_adapters
        self.let = threading.Event()
        self.let.set()
        self.read: dict[str, AdapterFacts] = {}
        self.placed: set[str] = set()
        self.log: list[str] = []
        self.most_read = 0

    def read_adapter(self, source: AdapterSource) -> AdapterFacts:
        assert self.let.wait(PATIENCE_S)
        assert not self.reloader.missing, "an adapter is read while the engine sleeps"
        self.log.append(f"read {source.name}")
        place = SentPlace.of(source.path)
        weights = Path(source.path).read_text() if place is None else place.header()[0].configuration
        if weights.startswith("broken"):
            raise UserError(f"{source.path}: it fits nothing.")
        if weights.startswith("crash"):
            os.abort()
        invocation = tuple(map(int, weights.split()[1:])) if weights.startswith("activated") else ()
        digest = digest_of(weights)
        self.read[digest] = AdapterFacts(digest, 8, 100, invocation)
        self.most_read = max(self.most_read, len(self.read))
        return self.read[digest]

    def place_adapter(self, digest: str) -> None:
        assert digest in self.read
        self.placed.add(digest)

    def drop_adapter(self, digest: str) -> None:
        self.log.append(f"drop {digest[:4]}")
        self.read.pop(digest, None)
        self.placed.discard(digest)

    def execute(self, plan: StepPlan) -> StepResult:
        assert set(PARTS).isdisjoint(self.reloader.missing), "a step came while the engine slept"
        result = super().execute(plan)
        used = {self.sequences[slot].request.adapter for slot in plan.slots.tolist()} - {""}
        assert used <= self.placed, "a step uses an adapter that is not placed"
        assert len(used) <= self.most
        return result

    def _next(self, sequence: FakeSequence) -> int:
        return _next(sequence.token_ids, sequence.request.adapter, sequence.request.adapter_from)


class AdaptingManifest(FakeManifest):
    """The plugin of this executor, for engines that take theirs from the table."""

    @staticmethod
    @hookimpl
    def core_load(context: LoadContext) -> Any:
        return SimpleNamespace(build=AdaptingExecutor)

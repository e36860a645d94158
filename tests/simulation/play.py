"""Plays schedules: the product with simulated surroundings in the place of the machine's.

Owns: `simulation`, which puts the simulated parts in their places, and `play`. Never does: make schedules.
Called by: the runner, the tests.
"""

import asyncio
import inspect
import logging
import typing
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from core.api.config import EngineConfig
from core.api.policy import SchedulingPolicy
from core.api.sampling_params import SamplingParams
from core.engine import process as engine_process
from core.engine import scheduling, utilities
from core.engine.loop import EngineLoop
from core.kv import connectors, loads, manager, prefix
from core.kv.connector import KVConnector
from core.plugin.hookspecs import LoadContext
from core_adapters.serving import observer, sent_adapters
from core_apis.journal import journal, segments
from core_apis.processes import api_process, supervised_engine, supervisor
from core_grammars import compiler
from core_kv_connectors.misses import Explanations
from core_kv_connectors.tiers import local, page_source
from core_policies.classes import TwoClasses
from core_policies.fair.policy import FairPolicy
from core_policies.fcfs.policy import FcfsPolicy
from core_policies.priority.policy import PriorityPolicy
from core_supervision import control, owned_engine, persistent_flags, revival
from core_supervision.link import sparse_file
from core_supervision.watch import breadcrumbs
from tests.simulation import disk, engine, owner
from tests.simulation.adapters import ReadAtOnce
from tests.simulation.api_child import SimApiChild, serve_requests
from tests.simulation.clock import Clock, simulated_time
from tests.simulation.disk import RecordFile, SimDisk, StepsFile
from tests.simulation.events import Schedule
from tests.simulation.invariants import Hopeless
from tests.simulation.journal import SimWriter
from tests.simulation.loop import CURRENT, Endless, SimLoop
from tests.simulation.network import SimOwned, SimShared, SimSocket
from tests.simulation.world import Violation, World


@dataclass(frozen=True, slots=True)
class Outcome:
    """violations: empty when all went well. num_turns: callbacks. simulated_s: from the start to the end."""

    violations: list[Violation]
    num_turns: int
    simulated_s: float


POLICIES = {"fcfs": FcfsPolicy, "priority": PriorityPolicy, "fair": FairPolicy}

POLL_S = 0.2
"""In the place of the product's 20 ms between two questions whether requests have ended: an hour has fewer of them."""

Play = Callable[[Schedule], Outcome]


@contextmanager
def simulation() -> Iterator[Play]:
    """Within, the returned function plays schedules, one after the other."""
    clock = Clock()
    record = RecordFile()
    steps = StepsFile()
    nothing = lambda *args, **options: None  # noqa: E731
    replaced: list[tuple[Any, str, Any]] = [
        (owned_engine, "OwnedEngine", SimOwned),
        (revival, "EngineProcesses", engine.SimProcesses),
        (engine_process, "ThreadPoolExecutor", engine.AtOnce),
        (engine_process, "import_executor", engine.importer(engine.SimProcesses)),
        (engine_process, "find_observers", cache(engine_process.find_observers)),
        (engine_process, "setup_logging", nothing),
        (engine_process, "gc", SimpleNamespace(disable=nothing, enable=nothing, freeze=nothing)),
        (engine_process, "EngineLoop", NotedLoop),
        (scheduling, "_load_policy", new_policy),
        (scheduling, "find_advice", cache(scheduling.find_advice)),
        (utilities, "inspect", SimpleNamespace(signature=Signatures())),
        (breadcrumbs, "mmap", steps),
        (breadcrumbs, "os", steps),
        (manager, "longest_sequence", lru_cache(maxsize=1000)(manager.longest_sequence)),
        (typing, "_get_protocol_attrs", cache(typing._get_protocol_attrs)),  # type: ignore[attr-defined]
        (asyncio.tasks._all_tasks, "add", nothing),  # type: ignore[attr-defined]  # the loop has a list of its own
        (SamplingParams, "verify", nothing),  # the requests of schedules are right, and each is verified several times
        (control, "POLL_S", POLL_S),
        (journal, "JournalDirectory", lambda path: engine.SimProcesses.world.journal_files),
        (journal, "Writer", SimWriter),
        (segments, "os", ForwardedFiles()),
        (persistent_flags, "os", record),
        (sparse_file, "os", record),
        (sent_adapters, "os", record),
        (connectors, "PluginTable", SimConnectors),
        (loads, "ThreadPoolExecutor", engine.AtOnce),
        (prefix, "AHEAD", 2),
        (prefix, "PAUSE_S", 0.0),
        (connectors, "fingerprint", disk.fingerprint),
        (local, "DiskTier", SimDisk),
        (page_source, "PageReader", disk.SimPageReader),
        (supervisor, "ApiChild", SimApiChild),
        (supervisor, "explained", lambda resolution: {}),
        (supervised_engine, "start_with_fallbacks", owner.start_with_fallbacks),
        (api_process, "SharedEngine", SimShared),
        (api_process, "serve_requests", serve_requests),
        (api_process, "load_shared_tokenizer", lambda source, model: owner.TOKENIZER),
        (compiler, "ThreadPoolExecutor", engine.AtOnce),
        (observer, "ThreadPoolExecutor", ReadAtOnce),
    ]
    logging_before = logging.root.manager.disable
    with ExitStack() as stack:
        stack.callback(logging.disable, logging_before)
        for module, name, value in replaced:
            stack.enter_context(patch.object(module, name, value))
        stack.enter_context(simulated_time(clock))
        logging.disable(logging.CRITICAL)
        yield lambda schedule: _play(schedule, clock, record, steps)


class NotedLoop(EngineLoop):
    """The product's loop, which the invariants look into."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        engine.SimProcesses.world.engine_loop = self


class Signatures:
    """In the place of `inspect.signature`: each engine makes its utilities anew, of the same code."""

    def __init__(self) -> None:
        self._by_code: dict[object, inspect.Signature] = {}

    def __call__(self, function: Any) -> inspect.Signature:
        code = function.__code__
        signature = self._by_code.get(code)
        if signature is None:
            signature = self._by_code[code] = inspect.signature(function)
        return signature


def pass_by(place: str) -> None:
    """A process comes by a place; for one that is no more nothing follows."""
    process = CURRENT.get()
    if isinstance(process, engine.SimEngineProcess):
        process.point(place)


class ForwardedFiles:
    """In the place of `os`: the journal's files of the schedule that runs."""

    def __getattr__(self, name: str) -> Any:
        return getattr(engine.SimProcesses.world.journal_files, name)


def new_policy(config: EngineConfig, plugins: object) -> SchedulingPolicy:
    """In the place of loading a plugin, which takes as long as a schedule."""
    policy = POLICIES[config.scheduler.policy]
    return TwoClasses(policy(), policy())


class SimConnectors:
    """In the place of loading plugins, for the same reason."""

    def __init__(self, table: object) -> None:
        pass

    def load(self, kind: str, name: str, context: LoadContext) -> KVConnector:
        """Return the connector of a name."""
        config, given = context.config, context.options
        if name == "explain":
            return Explanations(config.cache.explains)
        return local.LocalTiers(config, given["fingerprint"], given["page_bytes"], given["new_page"])


def _play(schedule: Schedule, clock: Clock, record: RecordFile, steps: StepsFile) -> Outcome:
    loop = SimLoop(schedule.seed)
    clock.monotonic = loop.time
    clock.offset = 1.7e9
    record.clear()
    steps.clear()
    world = World(schedule, loop, clock, record)
    engine.SimProcesses.world = SimApiChild.world = world
    SimSocket.network = world.network
    SimDisk.stores = {}
    record.point = pass_by
    SimDisk.point = staticmethod(pass_by)
    try:
        loop.run(world.run())
    except Hopeless:
        pass
    except Endless as error:
        world.violated("endless", str(error))
    outcome = Outcome(world.violations, loop.num_turns, loop.now - 1000.0)
    loop.wind_up()
    loop.close()
    return outcome

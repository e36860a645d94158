"""Building of an engine's scheduler from its configuration.

Owns: `build_scheduler`: the policy plugin, the step advice, and empty KV managers over the executor's blocks. Never does:
schedule. Called by: the engine core.
"""

from __future__ import annotations

import logging
from typing import Final, cast

from core.api.config import EngineConfig, SchedulerConfig
from core.api.errors import PluginError
from core.api.policy import SchedulingPolicy
from core.engine.step_queue import StepQueue
from core.entry_points import load
from core.kv.connectors import KVConnectors
from core.kv.manager import KVManager
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable
from core.scheduler.scheduler import Scheduler
from core.scheduler.step_advice import AdviceFactory

ADVICE: Final = "core.step_advice"
"""Entry points of this group are an `AdviceFactory`; `adaptive` is used."""
CLASSES: Final = "core.request_classes"
"""Entry points of this group put two policies together, the second one for the batch class; `two` is used."""
log = logging.getLogger(__name__)


def build_scheduler(
    config: EngineConfig, queue: StepQueue, connectors: KVConnectors, plugins: PluginTable
) -> Scheduler:
    """Build an empty scheduler for the executor of `queue`. Raises PluginError."""
    cache = config.cache

    def make_kv() -> KVManager:
        return KVManager(
            # Read at each call: a scheduler that starts over makes a new manager.
            queue.executor.num_blocks,
            cache.block_size,
            cache.enable_prefix_caching,
            cache.hash_algorithm,
            groups=cache.groups,
            max_step_tokens=config.scheduler.max_step_tokens,
            connectors=connectors,
            snapshot_interval=cache.snapshot_interval,
            snapshot_every=cache.snapshot_every,
            eviction=cache.eviction,
            share=cache.share_per_key,
        )

    try:
        return Scheduler(
            config.scheduler,
            make_kv,
            _load_policy(config, plugins),
            max_in_flight=queue.max_in_flight,
            lockstep=queue.lockstep,
            apart=queue.apart,
            cost=None if queue.trace is None else queue.trace.cost,
            advise=find_advice(config.scheduler),
        )
    except Exception as error:
        plugins.blame(error)
        raise


def find_advice(config: SchedulerConfig) -> AdviceFactory | None:
    """The factory of the step advice, where the configuration asks for one. Raises PluginError for one that fails to import."""
    if not (config.num_speculative_tokens and config.adaptive_drafts):
        return None
    try:
        found = cast("AdviceFactory | None", load(ADVICE, "adaptive", "core-engine-speculative"))
    except Exception as error:
        raise PluginError(
            f"The step advice 'adaptive' cannot be imported ({type(error).__name__}: {error})."
        ) from error
    if found is None:
        log.warning(
            "Every step drafts %d tokens a sequence: the choice by measured times comes with core-engine-speculative, which is "
            "not installed. Install it, or set `adaptive` of --speculative-config to false.",
            config.num_speculative_tokens,
        )
    return found


def _load_policy(config: EngineConfig, plugins: PluginTable) -> SchedulingPolicy:
    """Load the policy plugin that the configuration names, twice where the batch class has accounts of its own."""
    name = config.scheduler.policy
    context = LoadContext(arguments=config.plugins.arguments.get(f"policy.{name}"), config=config)
    policy: SchedulingPolicy = plugins.load("policy", name, context)
    two_classes = load(CLASSES, "two", "core-engine-policies")
    return policy if two_classes is None else two_classes(policy, plugins.load("policy", name, context))

"""Building of an engine's scheduler from its configuration.

Owns: `build_scheduler`: the policy plugin, and empty KV managers over the executor's blocks. Never does: schedule.
Called by: the engine core.
"""

from __future__ import annotations

from core.api.config import EngineConfig
from core.api.policy import SchedulingPolicy
from core.engine.step_queue import StepQueue
from core.kv.connectors import KVConnectors
from core.kv.manager import KVManager
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable
from core.scheduler.scheduler import Scheduler


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
        )

    try:
        return Scheduler(
            config.scheduler,
            make_kv,
            _load_policy(config, plugins),
            max_in_flight=queue.max_in_flight,
            lockstep=queue.lockstep,
            cost=None if queue.trace is None else queue.trace.cost,
        )
    except Exception as error:
        plugins.blame(error)
        raise


def _load_policy(config: EngineConfig, plugins: PluginTable) -> SchedulingPolicy:
    """Load the policy plugin that the configuration names."""
    name = config.scheduler.policy
    context = LoadContext(arguments=config.plugins.arguments.get(f"policy.{name}"), config=config)
    policy: SchedulingPolicy = plugins.load("policy", name, context)
    return policy

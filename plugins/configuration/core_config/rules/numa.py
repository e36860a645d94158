"""Rules about NUMA nodes.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from core.api.errors import UserError
from core.args.schema import flag_of
from core_config.numa import numa_binding
from core_config.rules.rule import Facts, Findings, Problem, Rule, Warn


def bound_nodes_are_there(facts: Facts) -> Findings:
    """An engine is bound to a node that this machine has, and to processors that this process may use."""
    if not facts["numa_bind"]:
        for name in ("numa_bind_nodes", "numa_bind_cpus"):
            if facts[name]:
                yield Warn(f"{flag_of(name)} has no effect without --numa-bind.")
        return
    try:
        numa_binding(facts.settings)
    except UserError as error:
        yield Problem(str(error))


def one_rank_is_bound(facts: Facts) -> Findings:
    """An engine of one rank is bound; several are placed by the platform."""
    if not facts["numa_bind"]:
        return
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "elastic_ep_max_dp_size"):
        if (facts[name] or 1) > 1:
            yield Problem(
                f"--numa-bind: an engine of one rank is bound, and {flag_of(name)} is {facts[name]}; use "
                "--platform-config.thread-binding, whose processors are shared out among them."
            )
    binding = facts.settings.mapping("platform_config").get("thread_binding", "none")
    if binding != "none":
        yield Problem(
            f"--numa-bind and --platform-config.thread-binding {binding} both place threads; leave one of them out."
        )


RULES: tuple[Rule, ...] = (
    Rule(one_rank_is_bound),
    Rule(bound_nodes_are_there, "platform"),
)

"""Every relation between arguments, as a table.

Owns: `RULES`, in the order in which a stage runs them. Never does: hold a check itself (each area's file does).
Called by: resolve, tests.

A rule is a function named after the relation that it checks. Its docstring is that relation in one sentence.
"""

from __future__ import annotations

from core_config.rules import (
    adapters,
    batch,
    compilation,
    context,
    data_parallel,
    experts,
    kernels,
    media,
    memory,
    model,
    nodes,
    numa,
    offload,
    pooling,
    prefixes,
    ranks,
    remote,
    serving,
    speculative,
)
from core_config.rules.rule import Derive, Facts, Finding, Problem, Rule, Stage, Warn, findings, is_count

RULES: tuple[Rule, ...] = (
    *serving.RULES,
    *remote.RULES,
    *data_parallel.RULES,
    *model.RULES,
    *pooling.RULES,
    *batch.RULES,
    *compilation.RULES,
    *memory.RULES,
    *offload.RULES,
    *prefixes.RULES,
    *experts.RULES,
    *kernels.RULES,
    *nodes.RULES,
    *numa.RULES,
    *ranks.RULES,
    *context.RULES,
    *speculative.RULES,
    *adapters.RULES,
    *media.RULES,
)

__all__ = ["RULES", "Derive", "Facts", "Finding", "Problem", "Rule", "Stage", "Warn", "findings", "is_count"]

"""Every relation between arguments, as a table.

Owns: `RULES`, in the order in which a stage runs them. Never does: hold a check itself (each area's file does).
Called by: resolve, tests, documentation.

R1 to R59 and N1 to N52 are the numbered relations that engines of this kind have had; C1 and on are this engine's own.
"""

from __future__ import annotations

from core.config.rules import batch, lora, media, memory, model, parallel, replaced, serving, speculative
from core.config.rules.rule import Derive, Facts, Finding, Problem, Rule, Stage, Warn, findings

RULES: tuple[Rule, ...] = (
    *serving.RULES,
    *model.RULES,
    *parallel.RULES,
    *batch.RULES,
    *memory.RULES,
    *speculative.RULES,
    *lora.RULES,
    *media.RULES,
    *replaced.RULES,
)

__all__ = ["RULES", "Derive", "Facts", "Finding", "Problem", "Rule", "Stage", "Warn", "findings"]

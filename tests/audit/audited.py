"""An engine of which every step is audited, and one planted fault in it: for the tests of the audit, and its long run.

Owns: `Audited`, how it is opened, and `hit`. Called by: `test_audit`, `bars`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core import LLM, SamplingParams
from core.engine.core import EngineCore
from core_observers.engine.audit.executor import AuditedExecutor
from core_observers.engine.audit.observer import Audit
from core_observers.families.audit_metrics import CLEAN, CLEAN_ANSWERS
from tests.audit.faulty import FAULTS, Faulty


class Audited:
    """An engine of which every step is audited. hour: steps of its clock, so that mismatches of several tests do not add up."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.core: EngineCore = llm.llm_engine._live_client().core  # type: ignore[union-attr]
        self.audit = next(each for each in self.core.observers if isinstance(each, Audit))
        self.executor: AuditedExecutor = self.audit._executor
        self.hour = 0.0
        self.audit._clock = self.clock

    def clock(self) -> float:
        self.hour += 3601.0
        return self.hour

    def counts(self) -> dict[str, int]:
        return dict(self.core.stats().audits)

    def run(self, seed: int, **params: Any) -> list[list[int]]:
        prompts = [[(7 * seed + 3 * row + place) % 90 + 5 for place in range(20 + 17 * row)] for row in range(3)]
        given = {"max_tokens": 8, "temperature": 0.8, "seed": seed, "ignore_eos": True} | params
        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], SamplingParams(**given), use_tqdm=False
        )
        self.core.scheduler.check_integrity()
        return [list(output.outputs[0].token_ids) for output in outputs]


@contextmanager
def auditing(path: Path, **settings: Any) -> Iterator[Audited]:
    """Open an engine that audits a row of every step."""
    usual = {"audit_share": 1.0, "audit_budget": 100.0, "enable_prefix_caching": False, "use_tqdm_on_load": False}
    with LLM(str(path), dtype="float32", max_model_len=256, max_num_seqs=4, **{**usual, **settings}) as llm:
        yield Audited(llm)


def hit(audited: Audited, fault: str, seed: int) -> bool:
    """Plant a fault in one step of a run. Returns whether the audit found it, and nothing else."""
    clean = audited.run(seed, max_tokens=6)
    inner = audited.executor._executor
    faulty = Faulty(inner, FAULTS[fault], audited.core.scheduler.kv.block_size)
    audited.executor._executor = faulty
    before = audited.counts()
    chosen: list[float] = []

    def chance() -> float:
        # Armed for one step alone: the third, fourth, ... of the run, all of whose rows decode.
        chosen.append(0.0)
        steps = len(chosen) // 2
        faulty.armed = faulty.num_hits == 0 and steps >= 3 + seed % 3
        return seed % 3 / 3

    real, audited.audit._chance = audited.audit._chance, chance
    try:
        served = audited.run(seed, max_tokens=6)
    finally:
        audited.executor._executor, audited.audit._chance = inner, real
    found = {kind: count - before.get(kind, 0) for kind, count in audited.counts().items()}
    for clean_kind in (CLEAN, CLEAN_ANSWERS):
        found.pop(clean_kind, None)
    assert served == clean
    return faulty.num_hits == 1 and sum(found.values()) == 1

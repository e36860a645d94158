"""An engine that computes every ended answer again, for the tests of the audit.

Owns: `Engine`, its settings, and the damage of a cached block. Called by: `test_ended`, `test_cached`.
"""

from typing import Any

from core import LLM, SamplingParams
from core.api.messages import EngineRequest
from core.engine.core import EngineCore
from core.scheduler.sequence import SequenceState
from core_observers.engine.audit.observer import Audit
from tests.audit.faulty import Faulty, after, flipped

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 4,
    "audit_budget": 100.0,
    "enable_sleep_mode": True,
}


class Engine:
    """An engine that computes every ended answer again, and no row. hour: of its clock, so that no three mismatches add up."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.core: EngineCore = llm.llm_engine._live_client().core  # type: ignore[union-attr]
        self.audit = next(each for each in self.core.observers if isinstance(each, Audit))
        self.hour = 0.0
        self.audit._clock = self.clock
        self.audit._row = lambda *_: None  # type: ignore[method-assign, assignment]

    def clock(self) -> float:
        self.hour += 3601.0
        return self.hour

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.core.stats().audits)

    def run(self, seed: int, count: int = 2, **params: Any) -> list[list[int]]:
        prompts = [[(7 * seed + 3 * row + place) % 90 + 5 for place in range(40 + 17 * row)] for row in range(count)]
        given = {"max_tokens": 20, "temperature": 0.8, "seed": seed, "ignore_eos": True} | params
        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], SamplingParams(**given), use_tqdm=False
        )
        return [list(output.outputs[0].token_ids) for output in outputs]

    def run_alone(self, seed: int) -> None:
        """Compute a request to its end, and nothing after it: its answer is then about to be computed again."""
        ids = [(5 * place + seed) % 90 + 5 for place in range(40)]
        params = SamplingParams(max_tokens=6, ignore_eos=True)
        self.core.add([EngineRequest("alone", 0, ids, params, seed=seed)])
        while not any(output.finish_reason for output in self.core.step().outputs):
            pass
        assert [answer.request.request_id for answer in self.waiting()] == ["alone"]

    def settle(self) -> None:
        """Compute whatever is still computed again."""
        while self.core.has_work():
            self.core.step()
        self.core.scheduler.check_integrity()

    def waiting(self) -> list[SequenceState]:
        """The answers that are, or will be, computed again."""
        ended = self.audit._ended
        return [*([] if ended._answer is None else [ended._answer]), *ended._waiting]

    def flip(self, block: int, at: float = 0.3) -> None:
        """Change a bit of a block. at: its place, as a share of the block's bytes."""
        faulty = Faulty(self.core.executor, after(lambda page: page), self.core.scheduler.kv.block_size)
        faulty.change(block, flipped(at, 5))

    def new(self, before: dict[str, int]) -> dict[str, int]:
        found = {kind: count - before.get(kind, 0) for kind, count in self.counts.items()}
        return {kind: count for kind, count in found.items() if count}

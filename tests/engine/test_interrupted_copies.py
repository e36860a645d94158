"""A block that a step should have filled from a tier is not believed when that step was interrupted."""

import pytest
from fakes import EOS, FakeExecutor, composed, make_config, reference

from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepPlan, StepResult
from tests.kv.connector_rows import with_cache


class Interrupted(FakeExecutor):
    """Counts pages that are loaded, and is interrupted by the user before the first."""

    num_interrupted = 0
    num_loaded = 0

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.transfers is not None and plan.transfers.loads:
            if not self.num_interrupted:
                self.num_interrupted = len(plan.transfers.loads)
                raise KeyboardInterrupt
            self.num_loaded += len(plan.transfers.loads)
        return super().execute(plan)


@pytest.mark.parametrize("ahead", [False, True], ids=["step by step", "planned ahead"])
def test_blocks_that_were_not_filled_are_filled_later(ahead: bool) -> None:
    config = make_config(options={"num_blocks": 14}, scheduler={"async_scheduling": ahead})
    config = with_cache(config, block_size=4, host_bytes=1 << 20)
    executor = Interrupted(config)
    core = composed(config, executor)

    def run(name: str, prompt: list[int]) -> list[int]:
        core.add([EngineRequest(name, 0, prompt, SamplingParams(max_tokens=3), seed=1, stop_token_ids=[EOS])])
        tokens: list[int] = []
        while core.has_work():
            tokens += [token for output in core.step().outputs for token in output.token_ids]
        return tokens

    first, second = list(range(41)), list(range(50, 91))
    run("a", first)
    run("b", second)
    with pytest.raises(KeyboardInterrupt):
        run("c", first)
    core.abort(["c"])
    assert run("d", first) == reference(first, 3)
    assert executor.num_loaded == executor.num_interrupted > 0
    core.scheduler.check_integrity()
    core.close()

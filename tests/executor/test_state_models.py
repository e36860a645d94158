"""A state is changed once by every token: company, preemption, aborts, failing steps and steps planned ahead."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from core.api.config import EngineConfig
from core.api.errors import ConfigError
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core_config.resolve import resolve
from core_runtime.executor.uniproc import UniprocExecutor
from core_supervision.link.inproc import InprocClient

LENGTHS = [(37, 20), (1, 30), (12, 9), (25, 25), (3, 14), (50, 12), (8, 30)]
"""Prompt and output of each request."""
SOURCE = random.Random(4)
PROMPTS = {f"r{i}": [SOURCE.randrange(4, 260) for _ in range(prompt)] for i, (prompt, _) in enumerate(LENGTHS)}
OUTPUTS = {f"r{i}": output for i, (_, output) in enumerate(LENGTHS)}
TIGHT = {"num_gpu_blocks_override": 24, "block_size": 4}
"""Room for the longest request, which needs 15 blocks for its keys and 3 for its states, and not for two of that sort."""


@pytest.fixture(scope="module")
def oracle(tiny_lfm2: Path) -> dict[str, list[int]]:
    """Greedy tokens of each request alone, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(tiny_lfm2, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        return {
            name: model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=OUTPUTS[name])[
                0, len(ids) :
            ].tolist()
            for name, ids in PROMPTS.items()
        }


class Failing(UniprocExecutor):
    """An executor some of whose steps fail: the first of several sequences from a number on, True after the device has
    computed it, False before."""

    def __init__(self, config: EngineConfig, failing: dict[int, bool]) -> None:
        super().__init__(config)
        self.failing = dict(failing)
        self.num_steps = 0

    def execute(self, plan):
        if not plan.total_num_tokens:
            return super().execute(plan)
        self.num_steps += 1
        due = [number for number in self.failing if number <= self.num_steps and len(plan.slots) > 1]
        computes = self.failing.pop(due[0]) if due else None
        if computes is False:
            raise RuntimeError("failed before")
        result = super().execute(plan)
        if computes:
            raise RuntimeError("failed behind")
        return result


def client(path: Path, failing: dict[int, bool] | None = None, **settings: object) -> InprocClient:
    given = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 16, "block_size": 4}
    given |= {"mamba_block_size": 4}
    given |= {"kv_cache_memory_bytes": 1 << 20, "device": "cpu", "use_tqdm_on_load": False, **settings}
    config = resolve({"model": str(path), **given}, context="llm", environ={}).engine
    return InprocClient(config, Failing(config, failing or {}))


def request(name: str) -> EngineRequest:
    params = SamplingParams(temperature=0, max_tokens=OUTPUTS[name], ignore_eos=True)
    return EngineRequest(name, 0, PROMPTS[name], params, 1)


def run(
    engine: InprocClient, late: dict[int, list[str]], gone: dict[int, list[str]] | None = None
) -> dict[str, list[int]]:
    """Tokens of all requests. late: which arrive after how many steps; gone: which are aborted."""
    found: dict[str, list[int]] = {}
    step = 0
    while engine.has_work() or step <= max(late):
        engine.add([request(name) for name in late.get(step, [])])
        engine.abort((gone or {}).get(step, []))
        for output in engine.step():
            assert output.finish_reason != "error", output.stop_reason
            found.setdefault(output.request_id, []).extend(output.token_ids)
        engine.core.scheduler.check_integrity()
        step += 1
        assert step < 2000
    engine.close()
    return found


ALL = {0: list(PROMPTS)}
STAGGERED = {0: ["r1", "r0"], 3: ["r2"], 5: ["r3", "r4"], 11: ["r6"], 12: ["r5"]}


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("late", [ALL, STAGGERED], ids=["together", "staggered"])
def test_company_changes_nothing(tiny_lfm2: Path, oracle: dict, late: dict, ahead: bool) -> None:
    assert run(client(tiny_lfm2, async_scheduling=ahead), late) == oracle


@pytest.mark.parametrize("ahead", [False, True])
def test_a_preempted_sequence_starts_over(tiny_lfm2: Path, oracle: dict, ahead: bool) -> None:
    engine = client(tiny_lfm2, async_scheduling=ahead, **TIGHT)
    assert run(engine, ALL) == oracle
    assert engine.stats().num_preemptions > 0


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("computed", [True, False], ids=["computed", "not computed"])
@pytest.mark.parametrize("step", [2, 30])
def test_a_failing_step_changes_no_state_twice(
    tiny_lfm2: Path, oracle: dict, step: int, computed: bool, ahead: bool
) -> None:
    engine = client(tiny_lfm2, {step: computed}, async_scheduling=ahead)
    assert run(engine, STAGGERED) == oracle
    assert engine.stats().num_failed_steps == 1


def test_several_failing_steps_with_too_few_blocks(tiny_lfm2: Path, oracle: dict) -> None:
    engine = client(tiny_lfm2, {5: True, 20: True, 35: False, 50: True}, async_scheduling=True, **TIGHT)
    assert run(engine, STAGGERED) == oracle
    assert engine.stats().num_failed_steps == 4 and engine.stats().num_preemptions > 0


def test_a_broken_scheduler_starts_every_sequence_over(
    tiny_lfm2: Path, oracle: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = client(tiny_lfm2)
    finish, left = engine.core.scheduler.finish, [8]

    def breaking(*args):
        left[0] -= 1
        if not left[0]:
            raise RuntimeError("a defect")
        return finish(*args)

    monkeypatch.setattr(engine.core.scheduler, "finish", breaking)
    assert run(engine, STAGGERED) == oracle
    assert engine.stats().num_violations == 1


@pytest.mark.parametrize("ahead", [False, True])
def test_blocks_of_an_aborted_sequence_hold_nothing_for_the_next(tiny_lfm2: Path, oracle: dict, ahead: bool) -> None:
    """With room for about two, so that whoever comes next gets the blocks of those that left."""
    engine = client(tiny_lfm2, async_scheduling=ahead, **TIGHT)
    found = run(engine, {0: ["r0", "r3"], 7: ["r5", "r6"], 20: ["r1", "r2", "r4"]}, gone={6: ["r0"], 18: ["r3", "r6"]})
    for name in ("r1", "r2", "r4", "r5"):
        assert found[name] == oracle[name]
    for name in ("r0", "r3", "r6"):
        tokens = found.get(name, [])
        assert tokens == oracle[name][: len(tokens)]


def test_too_few_blocks_for_one_state_are_told(tiny_lfm2: Path) -> None:
    """Block 0 is padding; three states and a block for keys are the least."""
    with pytest.raises(ConfigError, match=r"holds 4 blocks of 1\.0 KiB; at least 5 are needed"):
        client(tiny_lfm2, num_gpu_blocks_override=4)
    engine = client(tiny_lfm2, num_gpu_blocks_override=5, max_model_len=4)
    assert engine.core.scheduler.kv.capacity == 4

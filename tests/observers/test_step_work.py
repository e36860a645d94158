"""The estimated work of steps: the counts agree with a loop over tokens, and the metrics with the work of a prompt."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core import LLM, SamplingParams
from core.api.stats import SchedulerStats
from core.api.step_plan import StepPlan
from core.scheduler.step import Chunk, Step
from core_config.step_work import StepWork
from core_config.token_work import KeyWork, Matrices, TokenWork
from core_observers.engine.work_counts import WorkCounts
from core_observers.metrics import ServerMetrics
from core_observers.work import SAMPLED, STEPS, TOKENS, keys_of, pairs_of

WINDOW = 12


def step_of(rows: list[tuple[int, int]], num_decodes: int, completes: bool) -> Step:
    """A step with rows of (computed, new) tokens."""
    before, new = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    slots = np.arange(len(rows), dtype=np.int32)
    plan = StepPlan(slots=slots, query_lens=new, num_computed=before, total_num_tokens=int(new.sum()))
    nobody: Any = None
    chunks = [Chunk(nobody, int(count), completes) for count in new[num_decodes:]]
    decodes: Any = SimpleNamespace(slots=slots[:num_decodes])
    return Step(plan=plan, decodes=decodes, chunks=chunks)


def test_counts_are_those_of_a_loop_over_tokens() -> None:
    counts = WorkCounts([WINDOW, WINDOW])
    rows = [(0, 1), (11, 1), (12, 1), (40, 1), (0, 7), (5, 30), (16, 16)]
    counts.add(step_of(rows, 4, completes=False))
    counts.add(step_of([(3, 9)], 0, completes=True))
    rows.append((3, 9))
    seen = [[place + 1 for place in range(before, before + new)] for before, new in rows]
    assert counts.counts == {
        STEPS: 2,
        TOKENS: sum(new for _, new in rows),
        SAMPLED: 5,
        pairs_of(0): sum(map(sum, seen)),
        keys_of(0): sum(before + new for before, new in rows),
        pairs_of(WINDOW): sum(min(each, WINDOW) for row in seen for each in row),
        keys_of(WINDOW): sum(min(before + new, WINDOW - 1 + new) for before, new in rows),
    }


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_gemma3"])
def test_chunks_and_batches_do_the_work_of_their_prompts(name: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(name)
    lengths = (70, 33, 5)
    with LLM(
        str(path), dtype="float32", max_model_len=128, max_num_batched_tokens=24, enable_prefix_caching=False
    ) as llm:
        core = llm.llm_engine._live_client().core  # type: ignore[union-attr]
        before = core.stats().work
        prompts = [{"prompt_token_ids": [(7 * place) % 90 + 5 for place in range(length)]} for length in lengths]
        llm.generate(prompts, SamplingParams(max_tokens=1), use_tqdm=False)
        counts = {kind: count - before[kind] for kind, count in core.stats().work.items()}
        windows = {group.window for group in core.scheduler.kv.groups}
    assert counts[TOKENS] == sum(lengths) and counts[SAMPLED] == len(lengths) and counts[STEPS] >= 5
    token = TokenWork(
        blocks=Matrices(1000.0, 500),
        experts=Matrices(),
        head=Matrices(300.0, 70),
        one_expert=Matrices(),
        num_experts=0,
        num_choices=0,
        keys=tuple(KeyWork(window, 16, 40) for window in windows),
        vocab_size=7,
    )
    done = StepWork(token, 2).of(counts)
    assert done.operations == sum(token.prompt_numbers(length) for length in lengths)  # two devices, two operations
    assert done.written == sum(lengths) * 16 * len(windows) / 2
    assert done.read >= counts[STEPS] * 1300 / 2


def test_experts_of_a_step_are_read_once() -> None:
    token = TokenWork(
        blocks=Matrices(),
        experts=Matrices(200.0, 100),
        head=Matrices(),
        one_expert=Matrices(100.0, 50),
        num_experts=8,
        num_choices=2,
        keys=(),
        vocab_size=7,
    )
    one = StepWork(token).of({STEPS: 10, TOKENS: 10, SAMPLED: 10})
    assert one.read == pytest.approx(10 * 200.0) and one.operations == 2 * 10 * 100
    many = StepWork(token).of({STEPS: 1, TOKENS: 10_000, SAMPLED: 1})
    assert many.read == pytest.approx(8 * 100.0)


def test_metrics_have_vllms_names_and_are_off_by_default() -> None:
    counts = {STEPS: 1, TOKENS: 3, SAMPLED: 1, pairs_of(0): 6, keys_of(0): 3}
    token = TokenWork(
        blocks=Matrices(10.0, 5),
        experts=Matrices(),
        head=Matrices(4.0, 2),
        one_expert=Matrices(),
        num_experts=0,
        num_choices=0,
        keys=(KeyWork(None, 8, 3),),
        vocab_size=7,
    )

    def page(**more: Any) -> str:
        metrics = ServerMetrics("m", lambda: SchedulerStats(work=counts), vllm_names=True, **more)
        return asyncio.run(metrics.render()).decode()

    told = page(work_of=StepWork(token).of)
    assert 'vllm:estimated_flops_per_gpu_total{engine="0",model_name="m"} 70.0' in told  # 2 * (5 * 3 + 2 + 3 * 6)
    assert 'core:estimated_read_bytes_per_gpu_total{model_name="m"} 38.0' in told  # 14 + 8 * 3
    assert 'core:estimated_write_bytes_per_gpu_total{model_name="m"} 24.0' in told
    assert "estimated" not in page()

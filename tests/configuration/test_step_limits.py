"""The limits of a step: settled once by the configuration, and what the plan, the worker and a lowered engine go by."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.api.config import SchedulerConfig
from core.api.step_limits import StepLimits
from core_config.resolve import Resolution, resolve
from core_config.stages.step_limits import step_limits
from core_runtime.executor.worker import Worker
from core_supervision.degraded_config import degraded_config
from tests.layout import PACKAGES
from tests.tiny_models import save_checkpoint

SIZES = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 64, "num_gpu_blocks_override": 24}


def resolved(path: Path, **given: Any) -> Resolution:
    settings = {"model": str(path), "device": "cpu", "use_tqdm_on_load": False, **SIZES, **given}
    return resolve(settings, context="llm", environ={})


def test_a_worker_reserves_what_the_configuration_says(tiny_llama: Path) -> None:
    config = resolved(tiny_llama).engine
    assert config.limits == StepLimits(sequences=4, tokens=32, logit_rows=64)
    other = StepLimits(sequences=5, tokens=33, logit_rows=7)
    worker = Worker(msgspec.structs.replace(config, limits=other))
    try:
        buffers = worker.runner.forward.buffers
        held = len(buffers.seq_lens.array), len(buffers.token_ids.array), len(buffers.logit_rows.array)
        assert held == (5, 33, 7)
        assert worker.runner.forward.model.workspace.buffer("logits").shape[0] == 7
    finally:
        worker.close()


def test_a_draft_has_limits_of_its_own(tiny_llama: Path, tmp_path: Path) -> None:
    """A draft's pass is longer by a token a sequence, and it verifies nothing; its buffers are those of the plan."""
    smaller = save_checkpoint(tmp_path, seed=2, num_hidden_layers=1)
    speculation = {"method": "draft_model", "model": str(smaller), "num_speculative_tokens": 3}
    done = resolved(tiny_llama, speculative_config=speculation, max_num_seqs=24)
    assert done.engine.limits == StepLimits(sequences=24, tokens=32, logit_rows=24 * 4)
    assert done.engine.draft is not None
    assert done.engine.draft.limits == StepLimits(sequences=24, tokens=32 + 24, logit_rows=64)
    worker = Worker(done.engine)
    try:
        runner = worker.runner
        target, draft = runner.forward, runner.drafting.forward
        assert target.model.workspace.nbytes + draft.model.workspace.nbytes == done.memory.workspace
        assert len(draft.buffers.token_ids.array) == 56 and len(draft.buffers.logit_rows.array) == 64
    finally:
        worker.close()


@pytest.mark.parametrize(("sequences", "drafts", "vocab"), [(1, 0, 260), (300, 0, 260), (90, 3, 8000), (256, 4, 49152)])
def test_an_engine_that_is_lowered_has_the_limits_of_half_the_sequences(
    tiny_llama: Path, sequences: int, drafts: int, vocab: int
) -> None:
    config = resolved(tiny_llama).engine
    scheduler = SchedulerConfig(max_num_seqs=sequences, max_num_batched_tokens=512, num_speculative_tokens=drafts)
    limits = step_limits(scheduler, vocab)
    fewer = degraded_config(msgspec.structs.replace(config, scheduler=scheduler, limits=limits), 24)
    assert fewer.limits == step_limits(fewer.scheduler, vocab)
    assert fewer.limits.sequences == fewer.scheduler.max_num_seqs == max(sequences // 2, 1)


def _names(node: ast.AST) -> set[str]:
    """Every name, attribute and string in an expression."""
    found: set[str] = set()
    for child in ast.walk(node):
        match child:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                found.add(name)
    return found


def _second_computations() -> Iterator[str]:
    """Expressions outside `step_limits` that put its numbers together again, and other defaults of `max_num_seqs`."""
    for root in PACKAGES.values():
        for path in root.rglob("*.py"):
            if path.name in ("step_limits.py", "scheduler_config.py"):
                continue
            for node in ast.walk(ast.parse(path.read_bytes())):
                is_max = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "max"
                if is_max and {"max_num_seqs", "max_num_batched_tokens"} <= _names(node):
                    yield f"{path}:{node.lineno}: the rows of a forward pass"
                if is_max and "logits_bytes" in _names(node):
                    yield f"{path}:{node.lineno}: the rows of logits"
                if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
                    is_default = isinstance(node.value.value, int) and "max_num_seqs" in _names(node.target)
                    if is_default:
                        yield f"{path}:{node.lineno}: a default of max_num_seqs"


def test_the_limits_have_one_definition() -> None:
    assert list(_second_computations()) == []

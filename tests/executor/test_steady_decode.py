"""Steps that only continue: taken where they can be, left where somebody wants more, and a broken row ends alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from core import LLM, SamplingParams
from core.api.config import EngineConfig
from core.api.step_limits import StepLimits
from core_config.stages.step_limits import step_limits
from core_kit.devices.wired import WiredExecutor
from core_runtime.executor import uniproc
from core_runtime.executor.model_runner import ModelRunner
from tests.tiny_models import save_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture
def steady_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of sequences of the steady steps."""
    taken: list[int] = []
    replay = ModelRunner._replay

    def counted(self, step, logits):
        taken.append(len(step.slots))
        replay(self, step, logits)

    monkeypatch.setattr(ModelRunner, "_replay", counted)
    return taken


def tokens(llm: LLM, prompts: list[str], params: SamplingParams | list[SamplingParams]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def test_plain_sequences_are_continued(tiny_llama: Path, steady_steps: list[int]) -> None:
    with LLM(model=str(tiny_llama), max_model_len=64) as llm:
        tokens(llm, ["one", "two", "three"], GREEDY)
        assert steady_steps.count(3) >= 15


WISHES = [
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.8, "seed": 3},
    {"temperature": 0, "logprobs": 2},
    {"temperature": 1.2, "seed": 4, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "logprobs": 1},
    {"temperature": 0, "bad_words": ["a", "bc"], "presence_penalty": 0.7},
    {"temperature": 1.0, "seed": 5, "logit_bias": {70: 3.0}, "min_tokens": 9, "stop_token_ids": [66, 70, 90]},
    {"temperature": 1.0, "seed": 6, "top_k": 7, "min_p": 0.01, "allowed_token_ids": list(range(60, 90))},
]


def results(llm: LLM) -> list[tuple[object, ...]]:
    prompts = [f"number {number}" for number in range(len(WISHES))]
    params = [SamplingParams(max_tokens=20, ignore_eos=True, **wishes) for wishes in WISHES]
    found = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
    return [(one.token_ids, one.finish_reason, one.logprobs) for one in found]


def limit_logit_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Have configurations resolved from now on say that a step computes `rows` rows of logits at once."""

    def limited(*arguments: Any) -> StepLimits:
        return msgspec.structs.replace(step_limits(*arguments), logit_rows=rows)

    monkeypatch.setattr("core_config.stages.sizes.step_limits", limited)


@pytest.mark.parametrize("rows", [64, 3])
def test_whatever_sequences_ask_for_continued_steps_give_the_same(
    tiny_llama: Path, steady_steps: list[int], monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Against steps that are all put together from nothing; with 3 rows of logits at once, in chunks."""
    limit_logit_rows(monkeypatch, rows)
    with LLM(model=str(tiny_llama), max_model_len=64) as llm:
        continued = results(llm)
        assert bool(steady_steps) == (rows == 64)
        steady_steps.clear()
        execute = ModelRunner.execute

        def afresh(self, plan):
            plan.same_batch = False
            return execute(self, plan)

        monkeypatch.setattr(ModelRunner, "execute", afresh)
        assert results(llm) == continued
        assert not steady_steps


def test_plans_behind_a_wire_continue_the_same_batch(
    tiny_llama: Path, steady_steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(model=str(tiny_llama), max_model_len=64) as llm:
        expected = tokens(llm, ["one", "two", "three"], GREEDY)
        in_place = list(steady_steps)
    steady_steps.clear()
    executors: list[WiredExecutor] = []
    monkeypatch.setattr(uniproc, "UniprocExecutor", behind_a_wire(executors))
    with LLM(model=str(tiny_llama), max_model_len=64) as llm:
        assert tokens(llm, ["one", "two", "three"], GREEDY) == expected
    assert steady_steps == in_place
    assert executors[0].wire.num_same_batch >= len(in_place) > 15


def behind_a_wire(made: list[WiredExecutor]) -> Callable[[EngineConfig], WiredExecutor]:
    """Builds executors of one device, which are found in `made`."""
    inner = uniproc.UniprocExecutor

    def build(config: EngineConfig) -> WiredExecutor:
        made.append(WiredExecutor(inner(config)))
        return made[-1]

    return build


def test_drafts_change_nothing_where_their_rows_go_in_chunks(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Penalties, bad words and minimum lengths of a drafted position count the drafts before it."""
    with LLM(model=str(tiny_llama), max_model_len=64) as llm:
        expected = results(llm)
    limit_logit_rows(monkeypatch, 3)
    drafts = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 2,
        "adaptive": False,
    }
    with LLM(model=str(tiny_llama), max_model_len=64, speculative_config=drafts) as llm:
        assert results(llm) == expected


def test_minimum_lengths_are_kept_before_steps_become_steady(tiny_llama: Path, steady_steps: list[int]) -> None:
    with LLM(model=str(tiny_llama), max_model_len=64) as llm:
        free = tokens(llm, ["one"], GREEDY)[0]
        params = SamplingParams(temperature=0, max_tokens=24, min_tokens=8, stop_token_ids=[free[4], free[20]])
        assert len(tokens(llm, ["one"], params)[0]) >= 8


def test_a_row_that_is_not_finite_ends_alone(tmp_path: Path, steady_steps: list[int]) -> None:
    path = save_checkpoint(tmp_path / "model", seed=3)
    with LLM(model=str(path), max_model_len=64) as llm:
        first, second = tokens(llm, ["abc", "xyz"], GREEDY)
    index, poison = next((i, t) for i, t in enumerate(first) if i > 8 and t not in first[:i] and t not in second)
    file = path / "model.safetensors"
    state = load_file(file)
    state["model.embed_tokens.weight"][poison] = torch.nan
    save_file(state, file, metadata={"format": "pt"})
    steady_steps.clear()
    with LLM(model=str(path), max_model_len=64) as llm:
        broken, whole = llm.generate(["abc", "xyz"], GREEDY, use_tqdm=False)
    assert 2 in steady_steps and 1 in steady_steps
    assert broken.outputs[0].finish_reason == "error" and "not finite" in str(broken.outputs[0].stop_reason)
    assert broken.outputs[0].token_ids == first[: index + 1]
    assert whole.outputs[0].token_ids == second

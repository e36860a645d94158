"""A draft model beside its target: the target's bits whatever it guesses, everything accepted when it is like its target."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core import LLM, SamplingParams
from core.api.stats import SchedulerStats
from core_kit.devices.wired import wired
from core_runtime.executor.drafts.passes import DraftPass
from core_runtime.executor.uniproc import UniprocExecutor
from tests.executor.regex_grammar import install
from tests.inside import core_of
from tests.tiny_models import save_checkpoint

PROMPTS = [
    "the quick brown fox jumps over the lazy dog and the quick brown fox jumps again",
    "abcabcabcabcabcabcabc",
    "z",
    "the quick brown fox jumps over the lazy dog and then sleeps",
]
FIXED: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, "logprobs": 2}
ASKED = [
    SamplingParams(temperature=0, bad_words=["a", "b "], **FIXED),
    SamplingParams(temperature=0.9, seed=5, top_p=0.9, **FIXED),
    SamplingParams(temperature=1.2, seed=6, top_k=50, repetition_penalty=1.1, min_tokens=9, **FIXED),
    SamplingParams(temperature=0.7, seed=7, min_p=0.05, presence_penalty=0.5, n=2, **FIXED),
]
Bits = list[tuple[list[int], list[dict[int, float]]]]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model with the same vocabulary, smaller than the target."""
    return save_checkpoint(tmp_path_factory.mktemp("other"), seed=3, num_hidden_layers=1)


def drafting(draft: Path, count: int = 3, **keys: object) -> dict[str, Any]:
    config = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": count, "adaptive": False, **keys}
    return {"speculative_config": config}


def run(target: Path, rounds: int = 1, **settings: Any) -> tuple[Bits, SchedulerStats]:
    given = {"max_model_len": 128, "max_num_seqs": 8, "use_tqdm_on_load": False, "dtype": "float32", **settings}
    bits: Bits = []
    with LLM(model=str(target), **given) as llm:
        for _ in range(rounds):
            outputs = llm.generate(PROMPTS, ASKED, use_tqdm=False)
            bits = []
            for output in outputs:
                for choice in output.outputs:
                    places = [{token: one.logprob for token, one in place.items()} for place in choice.logprobs or []]
                    bits.append((list(choice.token_ids), places))
        stats = llm.stats()
        core_of(llm).scheduler.check_integrity()
    return bits, stats


def noted(monkeypatch: pytest.MonkeyPatch, kind: Any) -> list[tuple[list[int], list[int]]]:
    """The known tokens of each sequence for which a pass drafts from now on, and the drafts after them."""
    seen: list[tuple[list[int], list[int]]] = []
    original = kind.run

    def run_pass(self: Any, plan: Any, result: Any, positions: Any, proposed: Any) -> None:
        original(self, plan, result, positions, proposed)
        table = self.batch.tokens
        for slot, drafts in proposed.items():
            known = int(table.num_tokens(np.array([slot]))[0])
            seen.append((table.array[slot, :known].tolist(), list(drafts)))

    monkeypatch.setattr(kind, "run", run_pass)
    return seen


VARIANTS: dict[str, dict[str, Any]] = {
    "in company": {},
    "chunks of 8": {"max_num_batched_tokens": 8},
    "prefix cache warm": {"rounds": 2},
    "preempted": {"num_gpu_blocks_override": 14, "rounds": 2},
    "never captured": {"enforce_eager": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_do_not_depend_on_another_model_s_drafts(
    tiny_llama: Path, other: Path, expected: Bits, variant: str
) -> None:
    bits, stats = run(tiny_llama, **VARIANTS[variant], **drafting(other))
    assert bits == expected
    assert 0 < stats.spec_num_accepted_tokens < stats.spec_num_draft_tokens
    assert (stats.num_preemptions > 0) == (variant == "preempted")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_draft_like_its_target_is_always_right(tiny_llama: Path, expected: Bits, variant: str) -> None:
    """At every temperature, with filters, penalties and forbidden words."""
    bits, stats = run(tiny_llama, **VARIANTS[variant], **drafting(tiny_llama, 4))
    assert bits == expected
    assert stats.spec_num_accepted_tokens == stats.spec_num_draft_tokens > 0


def test_the_same_behind_a_wire(tiny_llama: Path, other: Path, expected: Bits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UniprocExecutor, "execute", wired(UniprocExecutor.execute))
    bits, _ = run(tiny_llama, **drafting(other))
    assert bits == expected


@pytest.mark.parametrize("family", ["tiny_gemma3", "tiny_lfm2"])
def test_targets_with_windows_and_states_take_a_draft_of_another_family(
    family: str, other: Path, request: pytest.FixtureRequest
) -> None:
    target = request.getfixturevalue(family)
    expected, _ = run(target)
    bits, stats = run(target, **drafting(other))
    assert bits == expected
    assert stats.spec_num_draft_tokens > 0


def test_grammars_mask_drafts_too(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    grammars = ["[ab]{3,9}c", None, r'\{"first name": "[ab]", "second name": "[ab]"\}']
    asked = [SamplingParams(temperature=1.0, seed=seed, max_tokens=40) for seed in range(3)]

    def answers(**settings: Any) -> list[str]:
        from tests.executor.test_grammars import generate

        with LLM(model=str(tiny_llama), max_model_len=128, use_tqdm_on_load=False, **settings) as llm:
            return [output.outputs[0].text for output in generate(llm, ["x", "y", "z"], asked, grammars)]

    assert answers(**drafting(tiny_llama)) == answers()


def test_sequences_beyond_the_draft_s_length_go_on_without(tiny_llama: Path, expected: Bits) -> None:
    bits, stats = run(tiny_llama, **drafting(tiny_llama, max_model_len=30))
    assert bits == expected
    assert 0 < stats.spec_num_draft_tokens < 80


def test_a_draft_is_quantized_as_it_was_told(tiny_llama: Path, expected: Bits) -> None:
    """The same weights in 4 bits guess all that a model in 4 bits says, and not all that the model itself says."""
    rounded, _ = run(tiny_llama, quantization="mxfp4")
    for target, wanted in ((None, expected), ("mxfp4", rounded)):
        for draft in (None, "mxfp4"):
            bits, stats = run(tiny_llama, quantization=target, **drafting(tiny_llama, quantization=draft))
            assert bits == wanted
            assert (stats.spec_num_accepted_tokens == stats.spec_num_draft_tokens) == (target == draft)


def test_a_step_without_a_budget_computes_no_draft_and_the_next_catches_up(
    tiny_llama: Path, expected: Bits, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    compute = DraftPass._compute
    calls = iter(range(1000))
    execute = UniprocExecutor.execute

    def noted(self: DraftPass, *arguments: Any) -> None:
        computed.append(True)
        compute(self, *arguments)

    def paused(self: UniprocExecutor, plan: Any) -> Any:
        if next(calls) % 4 < 2:
            plan.draft_budget.clear()
            before = len(computed)
            result = execute(self, plan)
            assert len(computed) == before
            return result
        return execute(self, plan)

    monkeypatch.setattr(DraftPass, "_compute", noted)
    monkeypatch.setattr(UniprocExecutor, "execute", paused)
    bits, stats = run(tiny_llama, **drafting(tiny_llama))
    assert bits == expected
    assert stats.spec_num_accepted_tokens == stats.spec_num_draft_tokens > 0

"""Same request, same tokens: whatever chunks, blocks, caches, preemptions, drafts or neighbours there are."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from core import LLM, SamplingParams
from core.api.step_plan import StepPlan, StepResult
from core_kit.devices.wired import wired
from core_runtime.executor.uniproc import UniprocExecutor
from tests.inside import core_of

PROMPTS = [
    "the quick brown fox jumps over the lazy dog and the quick brown fox jumps again",
    "abcabcabcabcabcabcabc",
    "z",
    "the quick brown fox jumps over the lazy dog and then sleeps",
]


def params() -> list[SamplingParams]:
    return [
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0.9, seed=5, max_tokens=40, ignore_eos=True, top_p=0.9, logprobs=2),
        SamplingParams(temperature=1.2, seed=6, max_tokens=33, ignore_eos=True, top_k=50, repetition_penalty=1.1),
        SamplingParams(temperature=0.7, seed=7, max_tokens=40, ignore_eos=True, min_p=0.05, presence_penalty=0.5, n=2),
    ]


def results(path: Path, rounds: int = 1, alone: bool = False, **settings: object) -> list:
    llm = LLM(model=str(path), max_model_len=128, max_num_seqs=8, **settings)
    outputs = []
    for _ in range(rounds):
        if alone:
            outputs = [
                llm.generate(prompt, one, use_tqdm=False)[0] for prompt, one in zip(PROMPTS, params(), strict=True)
            ]
        else:
            outputs = llm.generate(PROMPTS, params(), use_tqdm=False)
    llm.close()
    return [
        (choice.token_ids, [{t: p.logprob for t, p in pos.items()} for pos in choice.logprobs or []])
        for output in outputs
        for choice in output.outputs
    ]


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_gemma3", "tiny_lfm2"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module", params=["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def expected(checkpoint: Path, dtype: str) -> list:
    return results(checkpoint, dtype=dtype, alone=True, enable_prefix_caching=False)


TIGHT = "tight"
"""Blocks for little more than one request; models with KV groups need more, smaller ones."""

TIGHT_BLOCKS = {"tiny_llama": 14, "tiny_gemma3": 26, "tiny_lfm2": 20}

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "adaptive": False}

VARIANTS = {
    "in company": {},
    "chunks of 8": {"max_num_batched_tokens": 8},
    "block size 1": {"block_size": 1},
    "block size 128": {"block_size": 128},
    "prefix cache warm": {"rounds": 2},
    "preempted": {"num_gpu_blocks_override": TIGHT, "rounds": 2},
    "one KV group": {"disable_hybrid_kv_cache_manager": True, "rounds": 2},
    "blocks from host memory": {"num_gpu_blocks_override": TIGHT, "kv_offloading_size": 0.01, "rounds": 3},
    "drafts": {"speculative_config": NGRAM},
    "drafts from earlier answers": {"speculative_config": {"method": "suffix"}, "rounds": 2},
    "whole prompts": {"max_num_batched_tokens": 128, "enable_chunked_prefill": False},
    "planned ahead": {"async_scheduling": True, "rounds": 2},
    "planned ahead, blocks from host memory": {
        "async_scheduling": True, "num_gpu_blocks_override": TIGHT, "kv_offloading_size": 0.01, "rounds": 3,
    },
    "planned ahead, preempted": {"async_scheduling": True, "num_gpu_blocks_override": TIGHT, "rounds": 2},
    "drafts planned ahead": {"async_scheduling": True, "speculative_config": NGRAM, "rounds": 2},
    "drafts planned ahead, preempted": {
        "async_scheduling": True, "speculative_config": NGRAM, "num_gpu_blocks_override": TIGHT, "rounds": 2,
    },
    "short mixed steps": {
        "max_num_mixed_batched_tokens": 3, "max_num_batched_tokens": 64, "queued_prompts_weight": 0.0,
    },
    "mixed steps that grow with the queue": {"max_num_mixed_batched_tokens": 3, "max_num_batched_tokens": 64},
    "short stalls": {"max_stall_ms": 0.001, "rounds": 2},
    "many partial prefills": {
        "max_num_partial_prefills": 3, "max_long_partial_prefills": 2, "long_prefill_token_threshold": 5,
        "scheduler_reserve_full_isl": False, "num_gpu_blocks_override": TIGHT,
    },
    "fair": {"scheduling_policy": "fair", "max_num_batched_tokens": 8},
    "never captured": {"enforce_eager": True},
    "one thread": {"platform_config": {"threads": 1}},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_are_equal(checkpoint: Path, dtype: str, expected: list, variant: str) -> None:
    settings = dict(VARIANTS[variant])
    if settings.get("num_gpu_blocks_override") == TIGHT:
        settings["num_gpu_blocks_override"] = TIGHT_BLOCKS[checkpoint.name[:-1]]
    assert results(checkpoint, dtype=dtype, **settings) == expected


@pytest.fixture(scope="module")
def expected_of_llama(tiny_llama: Path) -> list:
    return results(tiny_llama, dtype="float32", alone=True, enable_prefix_caching=False)


WIRED = (
    "in company", "chunks of 8", "preempted", "drafts", "planned ahead, preempted",
    "planned ahead, blocks from host memory", "drafts planned ahead, preempted",
)  # fmt: skip


@pytest.mark.parametrize("variant", WIRED)
def test_bits_are_equal_behind_a_wire(
    tiny_llama: Path, expected_of_llama: list, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every plan and every result is encoded and decoded on its way between scheduler and worker."""
    settings = dict(VARIANTS[variant])
    if settings.get("num_gpu_blocks_override") == TIGHT:
        settings["num_gpu_blocks_override"] = TIGHT_BLOCKS["tiny_llama"]
    monkeypatch.setattr(UniprocExecutor, "execute", wired(UniprocExecutor.execute))
    assert results(tiny_llama, dtype="float32", **settings) == expected_of_llama


@pytest.mark.parametrize(
    "settings", [{"enforce_eager": True}, {"max_num_batched_tokens": 150}, {"platform_config": {"threads": 1}}]
)
def test_bits_of_long_prompts_are_equal(tmp_path: Path, tiny_llama: Path, settings: dict[str, object]) -> None:
    """The recorded forward runs layers on some rows at a time; 1,100 are several times as many."""
    prompt = {"prompt_token_ids": [3 + index * index % 90 for index in range(1100)]}
    asked = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=2)

    def run(**chosen: object) -> list:
        model = longer(tiny_llama, tmp_path / "model")
        llm = LLM(model=str(model), max_model_len=1200, max_num_seqs=2, **({"max_num_batched_tokens": 1200} | chosen))
        outputs = [llm.generate(prompt, asked, use_tqdm=False)[0].outputs[0] for _ in range(2)]
        llm.close()
        return [(out.token_ids, [{t: p.logprob for t, p in pos.items()} for pos in out.logprobs]) for out in outputs]

    assert run(enable_prefix_caching=False, **settings) == run(enable_prefix_caching=False)


def longer(source: Path, target: Path) -> Path:
    """The same checkpoint for more positions."""
    if not target.exists():
        shutil.copytree(source, target)
        config = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    return target


@pytest.mark.parametrize("chunk", [1, 7, 16, 256])
def test_prompt_logprobs_equal_transformers(tiny_llama: Path, chunk: int) -> None:
    llm = LLM(model=str(tiny_llama), dtype="float32", max_model_len=128, max_num_seqs=1, max_num_batched_tokens=chunk)
    asked = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3)
    output = llm.generate(PROMPTS[0], asked, use_tqdm=False)[0]
    llm.close()
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    ids = output.prompt_token_ids
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert output.prompt_logprobs[0] is None
    for position, entries in enumerate(output.prompt_logprobs[1:], start=1):
        row = expected[position - 1]
        assert entries[ids[position]].logprob == pytest.approx(row[ids[position]].item(), abs=1e-3)
        best = row.topk(3).indices.tolist()
        assert set(best) <= set(entries)


def fail_some_steps(executor: Any) -> None:
    """Some raise before anything is computed, some afterwards, also where an executor has a queue of its own."""
    execute, submit, result = executor.execute, executor.submit, executor.result
    begun, doomed = itertools.count(1), []

    def number() -> int:
        number = next(begun)
        if number in (1, 9, 30):
            raise RuntimeError("before anything was computed")
        return number

    def failing_execute(plan: StepPlan) -> StepResult:
        fails = number() in (17, 40)
        found = execute(plan)
        if fails:
            raise RuntimeError("after everything was computed")
        return found

    def failing_submit(plan: StepPlan) -> object:
        fails = number() in (17, 40)
        ticket = submit(plan)
        doomed.extend([ticket] if fails else [])
        return ticket

    def failing_result(ticket: object) -> StepResult:
        found = result(ticket)
        if any(ticket is one for one in doomed):
            raise RuntimeError("after everything was computed")
        return found

    executor.execute, executor.submit, executor.result = failing_execute, failing_submit, failing_result


@pytest.mark.parametrize(
    "settings",
    [{}, {"async_scheduling": True}, {"async_scheduling": True, "speculative_config": NGRAM}],
    ids=["one by one", "planned ahead", "drafts planned ahead"],
)
def test_bits_are_equal_when_steps_fail_in_between(tiny_llama: Path, settings: dict[str, object]) -> None:
    expected = results(tiny_llama, dtype="float32", alone=True)
    llm = LLM(model=str(tiny_llama), dtype="float32", max_model_len=128, max_num_seqs=8, **settings)
    core = core_of(llm)
    fail_some_steps(core.executor)
    outputs = llm.generate(PROMPTS, params(), use_tqdm=False)
    assert core.stats().num_failed_steps == 5
    llm.close()
    assert [
        (choice.token_ids, [{t: p.logprob for t, p in pos.items()} for pos in choice.logprobs or []])
        for output in outputs
        for choice in output.outputs
    ] == expected


def test_drafts_are_verified_in_steps_that_are_planned_ahead(tiny_llama: Path) -> None:
    """As many as otherwise: the worker proposes and verifies the same ones."""
    accepted = []
    asked = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    for ahead in (False, True):
        with LLM(model=str(tiny_llama), max_model_len=128, async_scheduling=ahead, speculative_config=NGRAM) as llm:
            llm.generate(PROMPTS[:3], asked, use_tqdm=False)
            stats = llm.stats()
            accepted.append((stats.spec_num_draft_tokens, stats.spec_num_accepted_tokens))
    assert accepted[0] == accepted[1]
    assert accepted[0][1] > 5


def test_preemption_really_happens(tiny_llama: Path) -> None:
    llm = LLM(model=str(tiny_llama), max_model_len=128, max_num_seqs=8, num_gpu_blocks_override=14)
    llm.generate(PROMPTS, params(), use_tqdm=False)
    assert llm.stats().num_preemptions > 0
    llm.close()

"""The platform, its kernels and attention on a real GPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from core import LLM, SamplingParams
from core_kit import cases
from tests.inside import core_of, worker_of

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("device")]

PLUGINS = [
    ("platform", "cuda"),
    *(("kernels", name) for name in ("triton", "cublas", "scaled_mm", "deep_gemm")),
    *(("attention", name) for name in ("triton", "flash_attn", "flashinfer", "flash_mla", "fla", "flex")),
]
ALL = [pytest.param(case, id=f"{kind}.{name}: {case}") for kind, name in PLUGINS for case in cases(kind, name)]
PROMPTS = ["the quick brown fox jumps", "abcabcabc", "z", "the lazy dog"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=32, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=5, max_tokens=32, ignore_eos=True, top_p=0.9),
    SamplingParams(temperature=0.7, seed=7, max_tokens=32, ignore_eos=True, min_p=0.05),
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=2),
]


@pytest.mark.parametrize("case", ALL)
def test_promises_of_the_kit(case):
    case()


def engine(model: Path, **more: object) -> LLM:
    arguments = {"max_model_len": 128, "max_num_seqs": 8, "num_gpu_blocks_override": 256, "device": "cuda:0"}
    arguments["batch_invariant"] = True  # tokens are compared
    return LLM(model=str(model), **(arguments | more))


def tokens(llm: LLM) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def expected(tiny_llama: Path) -> list[list[int]]:
    """One request after the other, call by call."""
    with engine(tiny_llama, enforce_eager=True, async_scheduling=False) as llm:
        found = []
        for prompt, params in zip(PROMPTS, PARAMS, strict=True):
            output = llm.generate(prompt, params, use_tqdm=False)[0]
            found.append(list(output.outputs[0].token_ids))
        return found


@pytest.mark.parametrize(
    "arguments",
    [{}, {"max_num_batched_tokens": 8}, {"enforce_eager": True}, {"num_gpu_blocks_override": 14}],
    ids=["planned ahead", "chunks", "never recorded", "preempted"],
)
def test_the_same_tokens_in_company(tiny_llama: Path, expected: list[list[int]], arguments: dict[str, object]) -> None:
    with engine(tiny_llama, **arguments) as llm:
        assert tokens(llm) == expected


ONE_ORDER = """
import torch
from core_kernels.cublas.invariant import forbid_split_k

forbid_split_k("cuda:0")
for inputs, outputs in ((4096, 4096), (14336, 4096), (4096, 6144)):
    weight = torch.randn(outputs, inputs, device="cuda:0").bfloat16()
    x = torch.randn(2048, inputs, device="cuda:0").bfloat16()
    alone = torch.mm(x[:1], weight.t())
    for rows in (7, 16, 64, 65, 200, 512, 2048):
        assert torch.equal(torch.mm(x[:rows], weight.t())[0], alone[0]), (inputs, outputs, rows)
"""


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="for Hopper and newer"
)
def test_cublas_without_split_k_sums_in_one_order() -> None:
    """In a process of its own: cuBLAS reads the settings when it is opened."""
    subprocess.run([sys.executable, "-c", ONE_ORDER], check=True)


def test_nothing_waits_between_a_plan_and_its_result(tiny_llama: Path) -> None:
    with engine(tiny_llama) as llm:
        tokens(llm)
        executor = core_of(llm).executor
        submit, followed = executor.submit, 0

        def strict(plan):
            nonlocal followed
            if not plan.same_batch:
                return submit(plan)
            followed += 1
            torch.cuda.set_sync_debug_mode("error")
            try:
                return submit(plan)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        executor.submit = strict
        llm.generate(PROMPTS[:3], PARAMS[:3], use_tqdm=False)
        assert followed > 20


def test_memory_is_given_up_and_taken_again(tiny_llama: Path) -> None:
    with engine(tiny_llama, enable_prefix_caching=False, kv_cache_memory_bytes=1 << 30) as llm:
        runtime = worker_of(llm).runtime
        first = tokens(llm)
        free = runtime.available_memory()
        released = runtime.release("kv")
        assert runtime.available_memory() - free >= released * 0.9 > 0
        runtime.restore("kv")
        assert tokens(llm) == first

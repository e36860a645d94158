"""Recordings of fixed sizes and late copies: the same tokens and logprobs as the CPU, and doubles that notice mistakes."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from core import LLM, SamplingParams
from core.api.step_limits import StepLimits
from core_kit.devices.async_device import FakeAsyncDevice, OverwrittenError
from core_kit.devices.graph_runtime import FakeGraphRuntime, MovedError
from core_platforms.cpu.runtime import CpuPlatform, CpuRuntime
from core_runtime.executor.steps.buffers import StepBuffers
from tests.inside import worker_of

LIMITS = StepLimits(sequences=4, tokens=16, logit_rows=4)
PROMPTS = ["the quick brown fox jumps", "abcabcabc", "z", "the lazy dog", "and", "the quick brown fox sleeps"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logprobs=2, prompt_logprobs=1),
    SamplingParams(temperature=0.9, seed=5, max_tokens=12, ignore_eos=True, top_p=0.9, logprobs=2),
    SamplingParams(temperature=0.7, seed=7, max_tokens=4, ignore_eos=True, min_p=0.05, n=2),
    SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, repetition_penalty=1.1),
    SamplingParams(temperature=0, max_tokens=2, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=7, ignore_eos=True),
]
TORCH = {"plugins": "no:cpu_native", "attention_backend": "torch_sdpa", "numerics": "reference"}
BLOCKS = {"tiny_llama": 9, "tiny_gemma3": 22}
"""Of eight tokens: too few for all requests at once, so some are preempted."""


DOUBLES = Path(__file__).parent / "doubles"


def double(kind: str) -> dict[str, object]:
    """Arguments that choose a double."""
    return {
        "plugins": f"{DOUBLES / 'platform.py'},{DOUBLES / 'attention.py'}",
        "device": "double",
        "platform_config": {"kind": kind},
        "attention_backend": "double_attention",
        "numerics": "reference",
    }


def results(llm: LLM) -> list:
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [
        (choice.token_ids, [{t: p.logprob for t, p in position.items()} for position in choice.logprobs or []])
        for output in outputs
        for choice in output.outputs
    ]


def settings(checkpoint: Path) -> dict[str, object]:
    return {
        "model": str(checkpoint),
        "max_model_len": 40,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 20,
        "block_size": 8,
        "num_gpu_blocks_override": BLOCKS[checkpoint.name[:-1]],
        "dtype": "float32",
    }


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_gemma3"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@functools.cache
def expected_of(path: Path) -> list:
    """The results of a checkpoint on the CPU, computed once."""
    with LLM(**settings(path), **TORCH) as llm:
        return results(llm)


@pytest.fixture
def expected(checkpoint: Path) -> list:
    return expected_of(checkpoint)


def runtime_of(llm: LLM):
    return worker_of(llm).runtime


def test_recordings_of_fixed_sizes(checkpoint: Path, expected: list) -> None:
    with LLM(**settings(checkpoint), **double("graph")) as llm:
        assert results(llm) == expected
        assert llm.stats().num_preemptions > 0
        runtime = runtime_of(llm)
        assert set(runtime.recorded) <= {1, 2, 4, 8, 16} and len(runtime.recorded) >= 4
        assert max(runtime.recorded.values()) <= 3  # decode, mixed and head
        assert runtime.replayed.total() > 3 * runtime.recorded.total()


def test_late_copies(tiny_gemma3: Path) -> None:
    with LLM(**settings(tiny_gemma3), **double("late")) as llm:
        assert results(llm) == expected_of(tiny_gemma3)
        assert runtime_of(llm).copies.made > 10


def opened() -> CpuRuntime:
    return CpuPlatform(1).open("cpu", [])


def test_a_graph_notices_what_has_moved() -> None:
    runtime = FakeGraphRuntime(opened())
    held = [torch.ones(8, 4)]
    graph = runtime.capture(lambda: runtime.kernels.scale(held[0][:4], 2.0), 4, 4)
    graph(3, 3)
    assert held[0][:3].eq(4).all() and held[0][3].isnan().all() and held[0][4:].eq(1).all()
    with pytest.raises(ValueError, match="5 rows"):
        graph(5, 5)
    held[0].resize_(1 << 16, 4)
    with pytest.raises(MovedError, match="has moved"):
        graph(3, 3)
    held.clear()
    with pytest.raises(MovedError, match="was given back"):
        graph(3, 3)


def test_late_copies_notice_memory_that_is_written_too_early() -> None:
    runtime = FakeAsyncDevice(opened())
    host, device = torch.ones(4, dtype=torch.uint8), torch.zeros(4, dtype=torch.uint8)
    wait = runtime.upload(device, host)
    assert not device.any()
    wait()
    assert device.all()
    runtime.upload(device, host)
    host[0] = 7
    with pytest.raises(OverwrittenError):
        runtime.kernels.scale(torch.ones(1, 1), 1.0)


def test_the_buffers_of_a_step_may_be_written_while_copies_are_under_way() -> None:
    runtime = FakeAsyncDevice(opened())
    buffers = StepBuffers(LIMITS, 8, runtime.device, num_groups=2, uploads=runtime)
    for step in range(7):
        buffers.positions.array[:] = step
        buffers.block_tables[1].array[1] = step
        buffers.positions.upload(3)
        shown = buffers.block_tables[1].upload(2)
        buffers.send()
    assert runtime.copies.waited == 4
    runtime.copies.finish()
    assert buffers.positions.tensor[:3].tolist() == [6, 6, 6] and shown[1].eq(6).all()
    made = runtime.copies.made
    buffers.send()
    runtime.copies.finish()
    assert runtime.copies.made == made == 7


def test_on_the_cpu_the_buffers_of_a_step_are_one_memory() -> None:
    buffers = StepBuffers(LIMITS, 8, torch.device("cpu"))
    buffers.seq_lens.array[:] = np.arange(4)
    assert buffers.shared and buffers.seq_lens.tensor.tolist() == [0, 1, 2, 3]
    assert buffers.block_tables[0].tensor.shape == (4, 8) and buffers.block_tables[0].tensor.data_ptr() % 64 == 0

"""Blocks from tiers give the same bits, in the same engine and after a restart; long contexts fit with KV groups."""

import time
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from tests.inside import core_of

SHARED = "the quick brown fox jumps over the lazy dog and then it sleeps under the old tree until noon "
PROMPTS = [SHARED + "zero", "something else entirely, so that blocks are needed " * 4, "a third one " * 12]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True, logprobs=3)


def open_llm(path: Path, **settings: object) -> LLM:
    return LLM(model=str(path), max_model_len=256, max_num_seqs=2, max_num_batched_tokens=64, **settings)


def run(llm: LLM, prompts: list[str]) -> list:
    return [
        (output.outputs[0].token_ids, [{t: p.logprob for t, p in pos.items()} for pos in output.outputs[0].logprobs])
        for prompt in prompts
        for output in llm.generate(prompt, PARAMS, use_tqdm=False)
    ]


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_gemma3"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list:
    llm = open_llm(checkpoint, enable_prefix_caching=False)
    answers = run(llm, PROMPTS)
    llm.close()
    return answers


def tight(checkpoint: Path) -> dict:
    """A pool that holds little more than one of the requests."""
    return {"num_gpu_blocks_override": 17 if "llama" in checkpoint.name else 34}


def test_host_memory_gives_blocks_back(checkpoint: Path, expected: list) -> None:
    llm = open_llm(checkpoint, kv_offloading_size=0.01, **tight(checkpoint))
    assert run(llm, PROMPTS * 3) == expected * 3
    assert llm.stats().tier_hits > 0
    llm.close()


def test_disk_gives_blocks_back_after_a_restart(checkpoint: Path, expected: list, tmp_path: Path) -> None:
    settings = {"kv_offloading_disk_path": str(tmp_path), "kv_offloading_disk_size": 0.01}
    llm = open_llm(checkpoint, **settings)
    assert run(llm, PROMPTS) == expected
    llm.close()
    again = open_llm(checkpoint, **settings)
    assert run(again, PROMPTS) == expected
    assert again.stats().tier_hits == again.stats().prefix_hits > 100
    again.close()


def test_both_tiers_give_blocks_back_while_they_are_saved(checkpoint: Path, expected: list, tmp_path: Path) -> None:
    disk = {"kv_offloading_disk_path": str(tmp_path), "async_scheduling": True}
    num_blocks = 17 if "llama" in checkpoint.name else 42
    settings = {"kv_offloading_size": 0.01, "num_gpu_blocks_override": num_blocks, **disk}
    llm = open_llm(checkpoint, **settings)
    assert run(llm, PROMPTS * 2) == expected * 2
    assert llm.stats().tier_hits > 0
    core = core_of(llm)
    while core.idle() is not None:  # as a server does between requests
        time.sleep(0.001)
    again = open_llm(checkpoint, **settings)
    assert run(again, PROMPTS) == expected
    assert again.stats().tier_hits > 400, "of an engine that has not ended yet"
    again.close()
    llm.close()


def test_another_dtype_finds_nothing(checkpoint: Path, tmp_path: Path) -> None:
    for dtype in ("bfloat16", "float32"):
        llm = open_llm(checkpoint, dtype=dtype, kv_offloading_disk_path=str(tmp_path))
        run(llm, PROMPTS[:1])
        assert llm.stats().prefix_hits == 0
        llm.close()


def test_damaged_files_change_no_bit(checkpoint: Path, expected: list, tmp_path: Path) -> None:
    settings = {"kv_offloading_disk_path": str(tmp_path)}
    llm = open_llm(checkpoint, **settings)
    run(llm, PROMPTS)
    llm.close()
    files = sorted(tmp_path.rglob("*.kv"))
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) * 2 // 3] ^= 4
        path.write_bytes(data)
    again = open_llm(checkpoint, **settings)
    assert run(again, PROMPTS) == expected
    assert again.stats().tier_hits == 0
    again.close()


def test_a_long_context_fits_with_groups_only(tiny_gemma3: Path) -> None:
    """In the same bytes: one group refuses the context, groups serve it, and a large pool gives the same bits."""
    bytes_ = 150_000
    prompt = (SHARED * 6)[:490]
    settings = {"model": str(tiny_gemma3), "max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": 510}
    large = LLM(**settings, disable_hybrid_kv_cache_manager=True)
    answer = run(large, [prompt])
    large.close()
    with pytest.raises(Exception, match=r"the KV cache of .* holds"):
        LLM(**settings, kv_cache_memory_bytes=bytes_, disable_hybrid_kv_cache_manager=True)
    small = LLM(**settings, kv_cache_memory_bytes=bytes_)
    assert run(small, [prompt]) == answer
    small.close()

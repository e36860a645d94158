"""Layers that keep the model's precision in an 8-bit KV cache (`--kv-cache-dtype-skip-layers`): their tokens and pages."""

import pytest

from core.api.sampling_params import SamplingParams
from core_frontend.llm import LLM

ARGUMENTS = {
    "device": "cpu", "max_model_len": 256, "max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 21, "use_tqdm_on_load": False,
    "kv_cache_dtype": "int4"
}  # fmt: skip
PROMPTS = [{"prompt_token_ids": [(7 * i + j) % 250 + 3 for j in range(length)]} for i, length in enumerate((90, 33, 5))]
PARAMS = SamplingParams(max_tokens=24, temperature=0.0, logprobs=1, ignore_eos=True)


def answers(path, **arguments):
    llm = LLM(model=str(path), **{**ARGUMENTS, **arguments})
    try:
        outputs = llm.generate(PROMPTS, PARAMS) + llm.generate(PROMPTS[:1], PARAMS)
        return [(one.outputs[0].token_ids, one.outputs[0].cumulative_logprob) for one in outputs]
    finally:
        llm.close()


@pytest.fixture(scope="module")
def windows_kept(tiny_gemma3):
    return answers(tiny_gemma3, kv_cache_dtype_skip_layers=["sliding_window"])


def test_skipped_layers_are_those_of_a_cache_in_the_models_precision(tiny_gemma3, windows_kept):
    every = [str(layer) for layer in range(3)]
    assert answers(tiny_gemma3, kv_cache_dtype_skip_layers=every) == answers(tiny_gemma3, kv_cache_dtype="auto")
    assert windows_kept not in (answers(tiny_gemma3), answers(tiny_gemma3, kv_cache_dtype="auto"))


@pytest.mark.parametrize(
    "arguments",
    [
        {"disable_hybrid_kv_cache_manager": True},
        {"max_num_batched_tokens": 16},
        {"enable_prefix_caching": False},
        {
            "max_model_len": 128,
            "num_gpu_blocks_override": 28,
            "kv_cache_memory_bytes": None,
            "kv_offloading_size": 0.01,
        },
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_groups_chunks_hits_pages_and_drafts_change_no_bit(tiny_gemma3, windows_kept, arguments):
    assert answers(tiny_gemma3, kv_cache_dtype_skip_layers=["sliding_window"], **arguments) == windows_kept

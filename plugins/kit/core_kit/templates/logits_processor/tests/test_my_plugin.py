"""The kit's conformance suite, and the plugin at work."""

import pytest

from core import LLM, SamplingParams
from core_kit import cases


@pytest.mark.parametrize("case", cases("logits_processor", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_only_who_asks_gets_even_tokens(tiny_checkpoint):
    prompt = {"prompt_token_ids": [1, 50, 51]}
    asking = SamplingParams(max_tokens=8, temperature=1.0, seed=1, ignore_eos=True, extra_args={"parity": "even"})
    plain = SamplingParams(max_tokens=8, temperature=1.0, seed=1, ignore_eos=True)
    settings = {"max_model_len": 128, "kv_cache_memory_bytes": 4 << 20, "use_tqdm_on_load": False}
    with LLM(str(tiny_checkpoint), logits_processors=["my_plugin"], **settings) as llm:
        even, both = llm.generate([prompt, prompt], [asking, plain], use_tqdm=False)
    assert all(token % 2 == 0 for token in even.outputs[0].token_ids)
    assert any(token % 2 for token in both.outputs[0].token_ids)

"""Adapters on a quantized base are computed next to it, from inputs that are not rounded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core import SamplingParams
from tests.adapters.engines import bits_of, engine, prompt_logits, tokens_of
from tests.adapters.made import Oracle, save_adapter
from tests.adapters.packed_bases import BASES, oracle_of

PROMPT = [1, 40, 77, 90, 12, 201, 33, 54, 99]
SCORED = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, prompt_logprobs=260)


@pytest.mark.parametrize("method", ["int8", "fp8"])
@pytest.mark.parametrize("options", [{}, {"use_dora": True}], ids=["LoRA", "DoRA"])
def test_a_large_change_is_that_of_the_plain_base(tiny_llama: Path, tmp_path: Path, method: str, options: dict) -> None:
    """The base's rounding is the same with and without an adapter, so the change is compared, not the logits."""
    adapter = save_adapter(tiny_llama, tmp_path / "adapter", **options)
    with engine(tiny_llama, {"lora_dtype": "float32"}, quantization=method) as made:
        made.load(adapter)
        scored, plain, again = made.run([(PROMPT, adapter), (PROMPT, None), (PROMPT, adapter)], SCORED)
        (alone,) = made.run([(PROMPT, adapter)], SCORED)
    assert bits_of(scored) == bits_of(again) == bits_of(alone)
    wanted = Oracle(tiny_llama, adapter).logits(PROMPT).numpy()[:-1]
    unlike = np.abs(prompt_logits(plain) - wanted).mean()
    assert np.abs(prompt_logits(scored) - wanted).mean() < 0.3 * unlike


VARIANTS = {"LoRA": {}, "DoRA": {"use_dora": True}, "norms": {"modules_to_save": ["input_layernorm", "norm"]}}
SHORT = [1, 40, 77, 90, 12, 101, 33, 54, 99]
GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", BASES)
def test_logits_and_tokens_are_those_of_peft_on_the_unpacked_base(name: str, variant: str, tmp_path: Path) -> None:
    twins = BASES[name](tmp_path / "base")
    adapter = save_adapter(twins.plain, tmp_path / "adapter", **VARIANTS[variant])
    oracle = oracle_of(twins, adapter)
    scored = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=twins.vocabulary)
    settings: dict[str, Any] = {"max_model_len": 64, "max_logprobs": twins.vocabulary, "skip_tokenizer_init": True}
    settings |= dict(twins.arguments)
    with engine(twins.packed, {"lora_dtype": "float32"}, **settings) as made:
        made.load(adapter)
        found, plain = made.run([(SHORT, adapter), (SHORT, None)], scored)
        generated, beside = made.run([(SHORT, adapter), (SHORT, None)], GREEDY)
    wanted = oracle.logits(SHORT).numpy()[:-1]
    logits = prompt_logits(found, twins.vocabulary)
    assert np.abs(logits - wanted).max() <= 1e-4 * np.abs(wanted).max()
    assert np.abs(prompt_logits(plain, twins.vocabulary) - wanted).max() > 1e-2 * np.abs(wanted).max()
    assert tokens_of(generated) == oracle.greedy(SHORT, 32) != tokens_of(beside)

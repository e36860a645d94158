"""Adapters on a quantized base are computed next to it, from inputs that are not rounded."""

from pathlib import Path

import numpy as np
import pytest

from core import SamplingParams
from tests.adapters.engines import bits_of, engine, prompt_logits
from tests.adapters.made import Oracle, save_adapter

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

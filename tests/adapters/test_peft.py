"""Requests with adapters have the logits of peft, and the tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core import SamplingParams
from tests.adapters.engines import engine, prompt_logits, tokens_of
from tests.adapters.made import Oracle, save_adapter

PROMPT = [1, 40, 77, 90, 12, 201, 33, 54, 99, 100, 101, 7, 250]
GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
SCORED = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=260)

VARIANTS: dict[str, dict[str, Any]] = {
    "all seven matrices": {},
    "rank-stabilized, with patterns": {
        "use_rslora": True, "rank_pattern": {"q_proj": 4, "layers.1.mlp.down_proj": 12}, "alpha_pattern": {"v_proj": 3},
    },
    "DoRA": {"use_dora": True},
    "biases of B": {"lora_bias": True},
    "embedding and head": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "saved embedding and head": {"target_modules": ["down_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "DoRA of embedding and head": {"use_dora": True, "target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "saved norms": {
        "target_modules": ["q_proj", "down_proj"],
        "modules_to_save": [
            "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
            "q_norm", "k_norm", "norm",
        ],
    },
    "trained tokens": {"target_modules": ["k_proj"], "trainable_token_indices": [7, 90, 12, 250]},
}  # fmt: skip


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_gemma3"])
def base(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_tokens_are_those_of_peft(base: Path, tmp_path: Path, variant: str) -> None:
    adapter = save_adapter(base, tmp_path / "adapter", **VARIANTS[variant])
    oracle = Oracle(base, adapter)
    with engine(base, {}) as made:
        made.load(adapter)
        scored, plain = made.run([(PROMPT, adapter), (PROMPT, None)], SCORED)
        generated = made.run([(PROMPT, adapter)], GREEDY)[0]
    wanted = oracle.logits(PROMPT).numpy()[:-1]
    assert np.abs(prompt_logits(scored) - wanted).max() <= 1e-4 * np.abs(wanted).max()
    assert np.abs(prompt_logits(plain) - wanted).max() > 1e-2 * np.abs(wanted).max()
    assert tokens_of(generated) == oracle.greedy(PROMPT, 32)

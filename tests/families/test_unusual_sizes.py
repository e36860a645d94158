"""Checkpoints of unusual sizes through a whole engine: each token is the best one by transformers' logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from core import LLM, SamplingParams
from tests.families.oracle import randomize

COMMON: dict[str, Any] = {
    "num_attention_heads": 6, "vocab_size": 211, "max_position_embeddings": 512, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "sliding_window": 16,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "gpt_oss": {
        "hidden_size": 96,
        "head_dim": 16,
        "num_key_value_heads": 2,
        "num_local_experts": 6,
        "intermediate_size": 72,
        "num_hidden_layers": 3,
    },
    "olmo3": {"hidden_size": 120, "num_key_value_heads": 3, "intermediate_size": 201, "num_hidden_layers": 5},
}
TIE = 1e-3
"""Logits nearer than this may be ordered by rounding."""


@pytest.mark.parametrize("model_type", SIZES)
def test_tokens_are_the_best_ones_by_transformers(model_type: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = AutoConfig.for_model(model_type, **COMMON, **SIZES[model_type])
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(made)
    made.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    prompts = [torch.randint(3, 211, (length,)).tolist() for length in (1, 7, 90)]
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, detokenize=False)
    with LLM(str(tmp_path), dtype="float32", skip_tokenizer_init=True, max_model_len=128, max_num_seqs=2) as llm:
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + tokens[:-1]]), use_cache=False).logits[0, len(prompt) - 1 :]
        chosen = logits[torch.arange(len(tokens)), tokens]
        assert (logits.amax(1) - chosen).max() < TIE, len(prompt)

"""All drafts from one pass: what transformers gives behind mask tokens, and the target's bits beside it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from core import LLM, SamplingParams
from core.api.errors import ConfigError
from core_runtime.executor.drafts.passes import DraftPass
from tests.speculative.checkpoints import MASK, save_parallel
from tests.speculative.test_draft_model import run


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_parallel(tmp_path_factory.mktemp("parallel"))


def drafting(draft: Path, method: str = "parallel", **keys: object) -> dict[str, Any]:
    return {
        "speculative_config": {
            "method": method,
            "model": str(draft),
            "num_speculative_tokens": 3,
            "adaptive": False,
            **keys,
        }
    }


def test_drafts_are_those_behind_masks(tiny_llama: Path, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[int], list[int]]] = []
    behind = DraftPass.run

    def noted(self: DraftPass, plan: Any, result: Any, positions: Any, proposed: Any) -> None:
        before = {slot: self.batch.tokens.num_tokens(result.slots.astype("int64")) for slot in result.slots.tolist()}
        known = [int(count) for count in next(iter(before.values()))] if before else []
        behind(self, plan, result, positions, proposed)
        for slot, count in zip(result.slots.tolist(), known, strict=False):
            seen.append((self.batch.tokens.array[slot, :count].tolist(), proposed.get(slot, [])))

    monkeypatch.setattr(DraftPass, "run", noted)
    oracle = AutoModelForCausalLM.from_pretrained(draft, dtype=torch.float32)
    asked = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompts = [{"prompt_token_ids": [20 + n % 5 for n in range(length)]} for length in (3, 40)]
    with LLM(
        model=str(tiny_llama), dtype="float32", max_model_len=64, use_tqdm_on_load=False, **drafting(draft)
    ) as llm:
        llm.generate(prompts, asked, use_tqdm=False)
    checked = 0
    for known, drafts in seen:
        if not drafts:
            continue
        masks = [MASK] * (len(drafts) - 1)
        with torch.inference_mode():
            logits = oracle(torch.tensor([known + masks])).logits[0]
        assert drafts == logits[len(known) - 1 :].argmax(-1).tolist()
        checked += len(drafts)
    assert checked > 20


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 9}, {"num_gpu_blocks_override": 14}])
def test_bits_do_not_depend_on_parallel_drafts(tiny_llama: Path, draft: Path, settings: dict[str, Any]) -> None:
    expected, _ = run(tiny_llama)
    bits, stats = run(tiny_llama, **settings, **drafting(draft, "draft_model", parallel_drafting=True))
    assert bits == expected
    assert stats.spec_num_draft_tokens > 0


def test_a_model_without_a_mask_token_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="names its mask token as 'pard_token'"):
        LLM(model=str(tiny_llama), **drafting(tiny_llama))

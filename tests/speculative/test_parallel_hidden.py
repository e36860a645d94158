"""All drafts of a block with hidden states from one pass: bits, passes, and what plain torch draws behind unknown tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from core import LLM, SamplingParams
from core_runtime.executor.drafts.passes import DraftPass
from tests.speculative.checkpoints import DRAFT, LAYER_IDS, save, state_of
from tests.speculative.oracles import Eagle3
from tests.speculative.test_draft_model import PROMPTS, Bits, noted, run
from tests.speculative.test_hidden_drafts import drafting, hidden_of_eagle3

MASK = 259


@pytest.fixture(scope="module")
def target(tiny_llama: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def peagle(target: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Eagle3, Tensor]:
    torch.manual_seed(4)
    oracle = Eagle3(DRAFT, target.model.embed_tokens.weight.detach(), 3, norms_stream=False).eval()
    mask_hidden = torch.randn(3 * 64)
    state = {**state_of(oracle), "d2t": oracle.d2t, "mask_hidden": mask_hidden}
    config = {
        **DRAFT.to_dict(),
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_aux_hidden_state_layer_ids": LAYER_IDS,
        "ptd_token_id": MASK,
    }
    return save(tmp_path_factory.mktemp("peagle"), config, state), oracle, mask_hidden


def recorded(
    target: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[tuple[list[int], list[int]]], int, int]:
    """Known tokens with the drafts behind them; steps that drafted, and passes."""
    passes: list[int] = []
    steps: list[int] = []
    seen = noted(monkeypatch, DraftPass)
    run_pass, compute = DraftPass.run, DraftPass._compute

    def timed(self: DraftPass, plan: Any, result: Any, positions: Any, proposed: Any) -> None:
        before = len(passes)
        run_pass(self, plan, result, positions, proposed)
        if len(passes) > before:
            steps.append(1)

    def counted(self: DraftPass, *arguments: Any) -> None:
        passes.append(1)
        compute(self, *arguments)

    monkeypatch.setattr(DraftPass, "run", timed)
    monkeypatch.setattr(DraftPass, "_compute", counted)
    given: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 8, "use_tqdm_on_load": False, "dtype": "float32"}
    with LLM(model=str(target), enable_prefix_caching=False, **given, **settings) as llm:
        llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), use_tqdm=False)
    return seen, len(steps), len(passes)


def test_a_block_with_a_hidden_state_for_unknown_tokens(
    tiny_llama: Path, target: Any, peagle: tuple[Path, Eagle3, Tensor], expected: Bits, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, oracle, mask_hidden = peagle
    bits, stats = run(tiny_llama, **drafting("eagle3", path))
    assert bits == expected
    assert stats.spec_num_draft_tokens > 0

    seen, steps, passes = recorded(tiny_llama, drafting("eagle3", path), monkeypatch)
    assert len(seen) > 10
    assert passes == steps, "one pass a step"
    with torch.no_grad():
        unknown_state = oracle.fc(mask_hidden)[None]
        for tokens, drafts in seen:
            taken = hidden_of_eagle3(target, oracle, tokens)
            more = len(drafts) - 1
            hidden = torch.cat([torch.zeros(1, 64), taken, *[unknown_state] * more])
            ids = torch.tensor(tokens + [MASK] * more)
            stream = oracle.out_of(oracle.embedding[ids], hidden)
            assert drafts == [int(oracle.logits(row).argmax()) for row in stream[-len(drafts) :]]


def test_one_pass_for_each_draft_when_asked(
    tiny_llama: Path, peagle: tuple[Path, Eagle3, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, _ = peagle
    _, steps, passes = recorded(tiny_llama, drafting("eagle3", path, parallel_drafting=False), monkeypatch)
    assert passes > steps

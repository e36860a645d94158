"""EAGLE's drafts of Llama 4, DeepSeek, MiniCPM and Mistral Large 3 as their makers publish them, against plain torch."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from core.api.errors import UserError
from core_loaders.mistral.loader import MistralLoader
from core_speculative.eagle.layout import eagle_spec
from tests.speculative.draft_harness import DraftHarness, context_of, target_harness
from tests.speculative.eagle_layouts import LAYOUTS, made_eagle
from tests.speculative.mtp_cases import SHAPE, TOKENS


@pytest.mark.parametrize("name", LAYOUTS)
@torch.no_grad()
def test_drafts_of_other_makers(name: str, tmp_path: Path) -> None:
    made = made_eagle(name, tmp_path)
    draft = eagle_spec(context_of(made.config, made.draft_config, made.draft_state))
    assert draft.shares_embedding and draft.shares_head
    whole = target_harness(made.config, made.state, draft.taps)
    harness = DraftHarness(whole, draft, made.draft_config, made.draft_state)
    found, logits = harness.drafts(TOKENS, 3, (4, 5))
    out = made.target(torch.tensor([TOKENS[:-1]]), output_hidden_states=True)
    expected, wanted = made.oracle.drafts(TOKENS, out.hidden_states[-1][0] / made.width, 3)
    assert found == expected
    torch.testing.assert_close(logits, wanted, atol=5e-4, rtol=5e-4)


def test_a_head_of_fewer_tokens_is_refused(tmp_path: Path) -> None:
    made = made_eagle("llama4", tmp_path)
    tensors = {**made.draft_state, "lm_head.weight": torch.zeros(90, SHAPE["hidden_size"])}
    with pytest.raises(UserError, match="draft_vocab_size is 90; expected 160"):
        eagle_spec(context_of(made.config, {**made.draft_config, "draft_vocab_size": 90}, tensors))


def test_a_depth_that_is_none_is_refused(tmp_path: Path) -> None:
    made = made_eagle("minicpm", tmp_path)
    said = {**made.draft_config, "mup_denominator": 0}
    with pytest.raises(UserError, match="mup_denominator is 0 in the draft's configuration"):
        eagle_spec(context_of(made.config, said, made.draft_state))


def test_mistrals_own_layout_names_the_projection(tmp_path: Path) -> None:
    """`params.json` beside consolidated files, whose projection is called `eagle_linear`."""
    params = {
        "dim": 32, "n_layers": 1, "head_dim": 8, "hidden_dim": 56, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5,
        "vocab_size": 160, "rope_theta": 10000.0,
    }  # fmt: skip
    (tmp_path / "params.json").write_text(json.dumps(params))
    save_file({"eagle_linear.weight": torch.zeros(32, 64)}, tmp_path / "consolidated.safetensors")
    assert set(MistralLoader().resolve(str(tmp_path)).tensors) == {"fc.weight"}

"""Heads of a plugin's own behind the steps of a model: its bits without them, and drafts that follow from the hidden state."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from core_runtime.executor.drafts.rows import DraftRows
from tests.speculative.test_draft_model import Bits, run

HIDDEN = 64


@pytest.fixture(scope="module")
def heads(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two heads, the first of which gives what the model's own head gives (so it drafts the newest token once more)."""
    folder = tmp_path_factory.mktemp("heads")
    model = load_file(tiny_llama / "model.safetensors")
    head = model.get("lm_head.weight", model["model.embed_tokens.weight"]).float()
    size = head.shape[1]
    state = {}
    for place in range(2):
        state[f"{place}.0.linear.weight"] = torch.zeros(size, size)
        state[f"{place}.0.linear.bias"] = torch.zeros(size)
        state[f"{place}.1.weight"] = head.clone()
    save_file(state, folder / "model.safetensors")
    config = {"model_type": "medusa", "medusa_num_heads": 2, "medusa_num_layers": 1, "hidden_size": size}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def drafting(heads: Path) -> dict[str, Any]:
    return {
        "speculative_config": {"method": "medusa", "model": str(heads), "num_speculative_tokens": 2, "adaptive": False}
    }


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 8}, {"num_gpu_blocks_override": 14}])
def test_bits_do_not_depend_on_heads(
    tiny_llama: Path, heads: Path, expected: Bits, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    places: set[int] = set()
    draw = DraftRows.draw

    def noted(self: DraftRows, logits: Any, slots: Any, known: Any, place: int) -> Any:
        places.add(place)
        return draw(self, logits, slots, known, place)

    monkeypatch.setattr(DraftRows, "draw", noted)
    bits, stats = run(tiny_llama, **settings, **drafting(heads))
    assert bits == expected
    assert stats.spec_num_draft_tokens > 0
    assert places == {0, 1}

"""Invented weights: the shapes of real ones, the same in every run."""

import shutil
from pathlib import Path

import pytest
import torch

from core.api.errors import CheckpointError, UserError
from core_loaders.dummy.loader import DummyLoader
from core_loaders.safetensors.loader import SafetensorsLoader


@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_gemma3"])
def test_shapes_are_those_of_the_real_checkpoint(fixture: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    real = request.getfixturevalue(fixture)
    shutil.copy(real / "config.json", tmp_path)
    dummy = DummyLoader().resolve(str(tmp_path))
    expected = SafetensorsLoader().resolve(str(real)).tensors
    assert {name: info.shape for name, info in dummy.tensors.items()} == {
        name: info.shape for name, info in expected.items()
    }


def test_values_repeat_and_norms_are_neutral(tiny_llama: Path, tiny_gemma3: Path) -> None:
    loader = DummyLoader()
    for directory, neutral in ((tiny_llama, 1.0), (tiny_gemma3, 0.0)):
        manifest = loader.resolve(str(directory))
        first, second = (dict(loader.iter(manifest, list(manifest.tensors))) for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert first["model.norm.weight"].unique().tolist() == [neutral]
        q, k = (first[f"model.layers.{i}.self_attn.q_proj.weight"] for i in (0, 1))
        assert not torch.equal(q, k) and abs(q.float().std().item() - 0.02) < 0.002


def test_it_needs_a_known_configuration(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        DummyLoader().resolve(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "lama", "architectures": ["LlamaForCausalLN"]}')
    with pytest.raises(UserError, match="nearest names are LlamaForCausalLM"):
        DummyLoader().resolve(str(tmp_path))

"""Invented weights: the shapes of real ones, the same in every run."""

import shutil
from pathlib import Path

import pytest
import torch

from core.api.errors import CheckpointError, UserError
from core.plugin.hookspecs import LoadContext
from core_loaders.dummy import loader, manifest
from core_loaders.dummy.loader import DummyLoader
from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.models.families import decoder_spec, weight_map
from tests.families.architectures import tiny_config


@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_gemma3"])
def test_shapes_are_those_of_the_real_checkpoint(fixture: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    real = request.getfixturevalue(fixture)
    shutil.copy(real / "config.json", tmp_path)
    dummy = DummyLoader().resolve(str(tmp_path))
    expected = SafetensorsLoader().resolve(str(real)).tensors
    assert {name: info.shape for name, info in dummy.tensors.items()} == {
        name: info.shape for name, info in expected.items()
    }


def test_layers_that_share_keys_and_values_start_with_invented_weights(tmp_path: Path) -> None:
    """Such a layer has no tensors for keys and values, in a checkpoint or among invented weights."""
    tiny_config("gemma3n_text", "plain").save_pretrained(tmp_path)
    dummy = DummyLoader().resolve(str(tmp_path))
    spec = decoder_spec(dummy.config)
    assert weight_map(dummy, spec).manifest.tensors.keys() == spec.tensor_shapes().keys()


def test_values_repeat_and_norms_are_neutral(tiny_llama: Path, tiny_gemma3: Path) -> None:
    invented = DummyLoader()
    for directory, neutral in ((tiny_llama, 1.0), (tiny_gemma3, 0.0)):
        described = invented.resolve(str(directory))
        first, second = (dict(invented.iter(described, list(described.tensors))) for _ in range(2))
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


def test_a_gpu_draws_its_own_values_a_piece_at_a_time(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accelerator is a processor here; what is drawn, for which device, and where it ends up are as on a GPU."""
    context = LoadContext(device="cuda:1")
    assert torch.equal(drawn(context, tiny_llama), drawn(LoadContext(), tiny_llama)), "torch sees no GPU here"
    asked: list[torch.device] = []
    generator = torch.Generator

    def generator_of(device: torch.device) -> torch.Generator:
        asked.append(device)
        return generator("cpu")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cpu"))
    monkeypatch.setattr(torch, "Generator", generator_of)
    monkeypatch.setattr(loader, "PIECE", 1000)
    first, second = drawn(context, tiny_llama), drawn(context, tiny_llama)
    assert torch.equal(first, second) and first.device.type == "cpu" and first.dtype == torch.float32
    assert asked == [torch.device("cpu", 1)] * 2
    assert first.numel() % 1000 and first.unique().numel() > 0.99 * first.numel(), "pieces have values of their own"
    assert abs(first.mean()) < 1e-3 and abs(first.std() - 0.02) < 1e-3


def drawn(context: LoadContext, directory: Path) -> torch.Tensor:
    """The embedding, by the loader that the manifest builds."""
    made = manifest.core_load(context)
    ((_, tensor),) = made.iter(made.resolve(str(directory)), ["model.embed_tokens.weight"])
    return tensor

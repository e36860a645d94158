"""Projector files: how they join a text model, and the sentence for each that does not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from core.api.errors import CheckpointError, ConfigError
from core_config.locating.located import locate
from core_config.locating.projectors import projector_file, projectors_beside, why_none
from core_loaders.gguf.arguments import GGUFArguments
from core_loaders.gguf.loader import GGUFLoader
from core_runtime.specs.checkpoint import CheckpointManifest
from tests.media.checkpoints import save_gemma3, save_llava, save_qwen
from tests.media.projector_files import write_pair

SAVE: dict[str, Any] = {
    "gemma3": save_gemma3,
    "llava": save_llava,
    "qwen2_vl": lambda folder: save_qwen(folder, "qwen2_vl"),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: save(tmp_path_factory.mktemp(kind)) for kind, save in SAVE.items()}


def resolved(text: Path, projector: Path) -> CheckpointManifest:
    return GGUFLoader(GGUFArguments(str(projector))).resolve(str(text))


@pytest.mark.parametrize("kind", SAVE)
def test_the_towers_numbers_are_those_of_the_checkpoint(
    kind: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    text, projector = write_pair(checkpoints[kind], tmp_path, kind)
    manifest = resolved(text, projector)
    expected = load_file(checkpoints[kind] / "model.safetensors")
    names = [name for name, info in manifest.tensors.items() if info.file == 1]
    assert len(names) > 30
    for name, tensor in GGUFLoader(GGUFArguments(str(projector))).iter(manifest, names):
        assert tensor.shape == expected[name].shape, name
        assert np.abs(tensor.float().numpy() - expected[name].numpy()).max() < 1e-6, name


def test_a_tower_may_be_packed(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    text, projector = write_pair(checkpoints["llava"], tmp_path, "llava", packed=True)
    manifest = resolved(text, projector)
    expected = load_file(checkpoints["llava"] / "model.safetensors")
    name = "multi_modal_projector.linear_2.weight"
    assert manifest.tensors[name].nbytes < expected[name].numel() * 2
    [(_, tensor)] = GGUFLoader(GGUFArguments(str(projector))).iter(manifest, [name])
    assert np.abs(tensor.numpy() - expected[name].numpy()).max() < 0.01 * float(expected[name].abs().max())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"projector_type": "resampler"}, "'resampler', which is not served; expected one of gemma3, idefics3"),
        ({"vision.block_count": 4}, "no tensor 'v.blk.3.ln1.weight', though it announces 4 layers"),
        ({"vision.image_size": 60}, "60 pixels into patches of 14, which do not fill it"),
        ({"vision.attention.head_count": 5}, "5 heads in a tower of width 32"),
        ({"vision.image_mean": [0.5, 0.5]}, "'clip.vision.image_mean' has 2 entries, expected 3"),
        ({"vision.patch_size": None}, "'clip.vision.patch_size' is missing"),
        ({"vision.patch_size": 0}, "'clip.vision.patch_size' is 0, expected an integer from 1"),
        ({"vision.swirl": 3}, "'clip.vision.swirl'"),
        ({"has_audio_encoder": True}, "an encoder of sounds, too"),
    ],
)
def test_a_projector_with_a_wrong_key_is_refused_with_a_sentence(
    change: dict[str, Any], said: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    text, projector = write_pair(checkpoints["gemma3"], tmp_path, "gemma3", **change)
    with pytest.raises(CheckpointError) as caught:
        resolved(text, projector)
    assert said in str(caught.value) and str(projector) in str(caught.value)


def test_a_projector_of_another_text_model_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    gemma, gemma_projector = write_pair(checkpoints["gemma3"], tmp_path / "gemma3", "gemma3")
    llama, llava_projector = write_pair(checkpoints["llava"], tmp_path / "llava", "llava")
    with pytest.raises(
        CheckpointError, match=r"belongs to text models of type gemma3_text; this one is of type 'llama'"
    ):
        resolved(llama, gemma_projector)
    with pytest.raises(CheckpointError, match=r"needs a token '<image>', which the text model's vocabulary has not"):
        resolved(gemma, llava_projector)
    with pytest.raises(CheckpointError, match=r"is a model of architecture 'gemma3'; expected a projector"):
        resolved(gemma, gemma)


def test_a_projector_of_another_width_is_refused(tmp_path: Path) -> None:
    wide = save_llava(tmp_path / "wide")
    tensors = {"multi_modal_projector.linear_2.weight": 48}
    text, projector = write_pair(wide, tmp_path / "gguf", "llava", rows=tensors)
    with pytest.raises(CheckpointError, match=r"makes rows of 48 numbers \(tensor 'mm.2.weight'\); .* have 64"):
        resolved(text, projector)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.99])
def test_a_projector_that_is_cut_is_refused(share: float, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    text, projector = write_pair(checkpoints["gemma3"], tmp_path, "gemma3")
    whole = projector.read_bytes()
    projector.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError, match=str(projector)):
        resolved(text, projector)


def test_names_that_the_first_converter_exchanged_are_put_right(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    text, projector = write_pair(checkpoints["llava"], tmp_path, "llava", exchanged=True)
    manifest = resolved(text, projector)
    info = manifest.tensors["vision_tower.encoder.layers.0.mlp.fc1.weight"]
    assert info.shape == (40, 32) and info.source == "v.blk.0.ffn_down.weight"


def test_which_projector_is_chosen(tmp_path: Path) -> None:
    model = tmp_path / "model-Q8_0.gguf"
    model.write_bytes(b"GGUF")
    assert projector_file("auto", str(model)) == "" and projectors_beside(str(model)) == []
    first = tmp_path / "mmproj-model-f16.gguf"
    first.write_bytes(b"GGUF")
    assert projector_file("auto", str(model)) == projector_file(str(first), str(model)) == str(first)
    assert projector_file("none", str(model)) == "" and why_none("auto", str(model)) == ""
    (tmp_path / "model.mmproj-bf16.gguf").write_bytes(b"GGUF")
    assert projector_file("auto", str(model)) == ""
    assert "2 projectors lie beside the model" in why_none("auto", str(model))
    with pytest.raises(CheckpointError, match="there is no such file; expected a file, auto or none"):
        projector_file(str(tmp_path / "other.gguf"), str(model))


def test_a_named_projector_ends_the_start_and_another_is_a_warning(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    text, projector = write_pair(checkpoints["gemma3"], tmp_path, "gemma3", projector_type="resampler")
    with pytest.raises(ConfigError, match=r"'resampler', which is not served"):
        locate({"model": str(text), "mmproj": str(projector)})
    _, manifest, warnings = locate({"model": str(text), "mmproj": "auto"})
    assert manifest.config["model_type"] == "gemma3_text"
    assert any("The model takes text, since the projector beside it cannot be served" in each for each in warnings)
    with pytest.raises(ConfigError, match="belongs to GGUF models; the loader 'safetensors'"):
        locate({"model": str(checkpoints["gemma3"]), "mmproj": str(projector)})


def test_a_projector_beside_the_model_is_taken_but_not_copied(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    text, projector = write_pair(checkpoints["gemma3"], tmp_path, "gemma3")
    _, manifest, warnings = locate({"model": str(text), "mmproj": "auto"})
    assert manifest.config["model_type"] == "gemma3" and manifest.files[1] == str(projector) and not warnings
    _, manifest, _ = locate({"model": str(text)})  # as commands that copy models do
    assert manifest.config["model_type"] == "gemma3_text" and len(manifest.files) == 1
    _, manifest, _ = locate({"model": str(text), "mmproj": "auto", "language_model_only": True})
    assert len(manifest.files) == 1

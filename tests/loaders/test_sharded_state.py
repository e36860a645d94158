"""`core save-sharded` and the loader of what it writes."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from core import LLM, SamplingParams
from core.api.errors import CheckpointError, ConfigError, UserError
from core.commands.main import main
from core.plugin.registry import PluginRegistry
from core.plugin.table import PluginTable
from core_config.resolve import resolve
from core_loaders.sharded_state import manifest as sharded_manifest
from core_loaders.sharded_state.loader import ShardedStateLoader
from core_runtime.executor.plugin_loading import load_plugin
from core_runtime.specs.checkpoint import FileFacts
from tests.loaders.gguf_files import write_gguf
from tests.tiny_models import save_checkpoint


def read(directory: Path, pattern: str | None = None) -> dict[str, torch.Tensor]:
    loader = ShardedStateLoader() if pattern is None else ShardedStateLoader(pattern)
    manifest = loader.resolve(str(directory))
    return {name: tensor.clone() for name, tensor in loader.iter(manifest, list(manifest.tensors))}


def test_what_is_saved_is_loaded_to_the_bit(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "saved"
    assert main(["save-sharded", str(tiny_llama), str(out), "--max-file-size", "100k"]) == 0
    parts = sorted(out.glob("model-rank-0-part-*.safetensors"))
    assert len(parts) > 2 and f"in {len(parts)} files" in capsys.readouterr().out
    assert all(part.stat().st_size < 110_000 for part in parts)
    expected = load_file(tiny_llama / "model.safetensors")
    found = read(out)
    assert set(found) == set(expected) and all(torch.equal(found[name], expected[name]) for name in expected)
    by_the_library: dict[str, torch.Tensor] = {}
    for part in parts:
        by_the_library |= load_file(part)
    assert all(torch.equal(by_the_library[name], expected[name]) for name in expected)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (out / name).read_bytes() == (tiny_llama / name).read_bytes()
    resolution = resolve({"model": str(out), "device": "cpu"}, context="llm", registry=PluginRegistry(), environ={})
    assert resolution.engine.plugins.loader == "sharded_state"
    assert resolution.manifest.config["model_type"] == "llama"


def test_the_pattern_is_the_users(tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "saved"
    assert main(["save-sharded", str(tiny_llama), str(out), "--file-pattern", "w-{part}.safetensors"]) == 0
    assert (out / "w-0.safetensors").is_file()
    assert set(read(out, "w-{part}.safetensors")) == set(load_file(tiny_llama / "model.safetensors"))
    with pytest.raises(CheckpointError, match=r"no model-rank-0-part-0\.safetensors"):
        read(out)
    for pattern in ("w.safetensors", "../w-{part}.safetensors", "w-{part}-{node}.safetensors", "w-{part}.bin"):
        with pytest.raises(UserError, match="expected a file name with one"):
            ShardedStateLoader(pattern)


def test_what_is_incomplete_or_of_other_ranks_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "saved"
    assert main(["save-sharded", str(tiny_llama), str(out), "--max-file-size", "100k"]) == 0
    first = out / "model-rank-0-part-1.safetensors"
    first.rename(out / "model-rank-1-part-0.safetensors")
    with pytest.raises(CheckpointError, match="saved by ranks 0, 1"):
        read(out)
    (out / "model-rank-1-part-0.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-rank-0-part-1\.safetensors: is missing"):
        read(out)


def as_vllm_saves(source: Path, target: Path) -> dict[str, torch.Tensor]:
    """Write the tensors of one rank of vLLM: fused matrices, and a vocabulary of a multiple of 64 rows."""
    tensors = load_file(source / "model.safetensors")
    saved: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        for parts, fused in ((("q_proj", "k_proj", "v_proj"), "qkv_proj"), (("gate_proj", "up_proj"), "gate_up_proj")):
            if f".{parts[0]}." in name:
                saved[name.replace(parts[0], fused)] = torch.cat(
                    [tensors[name.replace(parts[0], one)] for one in parts]
                )
            if any(f".{part}." in name for part in parts):
                break
        else:
            rows = -len(tensor) % 64 if name.startswith(("model.embed", "lm_head")) else 0
            saved[name] = torch.cat([tensor, tensor.new_zeros(rows, *tensor.shape[1:])])
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(saved, target / "model-rank-0-part-0.safetensors")
    return saved


def test_what_vllm_saves_with_one_rank_is_read(tiny_llama: Path, tmp_path: Path) -> None:
    saved = as_vllm_saves(tiny_llama, tmp_path / "saved")
    assert saved["model.layers.0.self_attn.qkv_proj.weight"].shape == (128, 64)
    assert len(saved["model.embed_tokens.weight"]) == 320
    params = SamplingParams(temperature=0, max_tokens=16, logprobs=1)
    found = []
    for path in (tiny_llama, tmp_path / "saved"):
        with LLM(str(path), max_model_len=64, use_tqdm_on_load=False) as llm:
            found.append(llm.generate("abc", params, use_tqdm=False)[0].outputs[0])
    assert found[0].token_ids == found[1].token_ids and found[0].logprobs == found[1].logprobs


def test_rows_of_another_number_of_ranks_are_a_sentence(tiny_llama: Path, tmp_path: Path) -> None:
    saved = as_vllm_saves(tiny_llama, tmp_path / "saved")
    name = "model.layers.1.self_attn.qkv_proj.weight"
    saved[name] = saved[name][:64].clone()
    save_file(saved, tmp_path / "saved" / "model-rank-0-part-0.safetensors")
    with pytest.raises(ConfigError, match=r"qkv_proj\.weight' has 64 rows, expected 64 \+ 32 \+ 32 of q_proj, k_proj"):
        resolve({"model": str(tmp_path / "saved")}, context="llm", environ={})


def test_nothing_half_is_left(tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = write_gguf(tmp_path / "m.gguf")
    target = tmp_path / "out"
    assert main(["save-sharded", str(packed), str(target)]) == 2
    assert "packed type Q8_0" in capsys.readouterr().err
    assert main(["save-sharded", str(tiny_llama)]) == 2
    assert "core save-sharded MODEL OUT" in capsys.readouterr().err
    assert main(["save-sharded", str(tiny_llama), str(tiny_llama)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_claims() -> None:
    def claim(*names: str) -> str | None:
        return sharded_manifest.core_claim(FileFacts("m", "/m", True, names))

    assert claim("config.json", "model-rank-0-part-0.safetensors")
    assert not claim("config.json", "model.safetensors") and not claim("model-rank-0-part-0.safetensors")


def test_the_streamer_reads_what_is_saved(tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("runai_model_streamer")
    out = tmp_path / "saved"
    assert main(["save-sharded", str(tiny_llama), str(out), "--max-file-size", "100k"]) == 0
    given = {
        "model": str(out),
        "load_format": "runai_streamer_sharded",
        "model_loader_extra_config": {"concurrency": 2},
    }
    config = resolve(given, context="llm", environ={}).engine
    assert config.plugins.loader == "runai_streamer_sharded"
    loader = load_plugin(config, PluginTable(config.plugins.table), "loader", config.plugins.loader)
    manifest = loader.resolve(str(out))
    found = {name: tensor.clone() for name, tensor in loader.iter(manifest, list(manifest.tensors))}
    expected = load_file(tiny_llama / "model.safetensors")
    assert set(found) == set(expected) and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "load_format, words",
    [
        ("runai_streamer_sharded", "there is no model-rank-0-part-0.safetensors"),
        ("instanttensor", "its own reader is not used"),
    ],
)
def test_formats_of_vllm_that_do_not_fit_are_a_sentence(tiny_llama: Path, load_format: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve({"model": str(tiny_llama), "load_format": load_format}, context="llm", environ={})


def test_bitsandbytes_is_a_loader_to_scripts_for_vllm(tmp_path: Path) -> None:
    """A plain checkpoint is rounded, as there."""
    path = save_checkpoint(tmp_path, intermediate_size=128, num_hidden_layers=1)
    found = []
    for name in ("load_format", "quantization"):
        with LLM(str(path), max_model_len=32, **{name: "bitsandbytes"}) as llm:
            params = SamplingParams(temperature=0, max_tokens=8, logprobs=1)
            found.append(llm.generate("abc", params, use_tqdm=False)[0].outputs[0])
    assert found[0].token_ids == found[1].token_ids and found[0].logprobs == found[1].logprobs

"""Checkpoints and configurations that do not belong together: one sentence each, before torch or a weight is asked."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.numpy import load_file, save_file

from core.api.errors import ConfigError, UserError
from core.plugin.registry import PluginRegistry
from core_config.resolve import resolve
from core_runtime.models.families import families, family_for, read_configuration, table


@pytest.fixture(scope="module")
def problems_of(registry: PluginRegistry):
    """problems_of(model, overrides) -> sentences; none when it resolves."""

    def run(model: Path, **overrides: Any) -> list[str]:
        arguments = {"model": str(model), "hf_overrides": overrides}
        try:
            resolve(arguments, context="llm", registry=registry, environ={})
        except ConfigError as error:
            return list(error.problems)
        return []

    return run


def test_more_layers_than_the_checkpoint_has(problems_of, tiny_llama: Path) -> None:
    (problem,) = problems_of(tiny_llama, num_hidden_layers=5)
    assert "says 5 layers, its tensors are of 3" in problem and "model.layers.3." in problem
    assert "--hf-overrides.num_hidden_layers 3" in problem


def test_fewer_layers_than_the_checkpoint_has(problems_of, tiny_llama: Path) -> None:
    (problem,) = problems_of(tiny_llama, num_hidden_layers=2)
    assert "says 2 layers, the tensors are of 3" in problem and "model.layers.2." in problem
    assert problems_of(tiny_llama, num_hidden_layers=2, ignored_tensors=["model.layers.2.*"]) == []


def test_sizes_that_the_tensors_do_not_have(problems_of, tiny_llama: Path) -> None:
    (problem,) = problems_of(tiny_llama, intermediate_size=64)
    assert "'model.layers.0.mlp.gate_proj.weight'" in problem and "says [64, 64]" in problem


def test_two_rows_that_claim_one_checkpoint(problems_of, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = msgspec.structs.replace(families()[0], name="twin")
    rows = (*families(), twin)
    monkeypatch.setattr(table, "families", lambda: rows)
    (problem,) = problems_of(tiny_llama)
    assert "mean 'llama' and 'twin'" in problem and "--hf-overrides.model_type" in problem


def test_the_first_known_of_several_architectures_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = msgspec.structs.replace(families()[0], name="twin", architectures=("TwinForCausalLM",))
    rows = (*families(), twin)
    monkeypatch.setattr(table, "families", lambda: rows)
    for names, chosen in (
        (["NobodyForCausalLM", "TwinForCausalLM", "LlamaForCausalLM"], "twin"),
        (["LlamaForCausalLM", "TwinForCausalLM"], "llama"),
        (["TwinForCausalLM"], "twin"),
    ):
        assert table.family_for({"model_type": "llama", "architectures": names}).name == chosen
    either = {"model_type": "", "architectures": ["Qwen3ForCausalLM", "LlamaForCausalLM"]}
    assert table.family_for(either).name == "qwen3"


def test_an_unknown_architecture(problems_of, tiny_llama: Path) -> None:
    (problem,) = problems_of(tiny_llama, model_type="lama", architectures=["LamaForCausalLM"])
    for words in ("nearest names are LlamaForCausalLM", "`core models`", "core plugins new model NAME"):
        assert words in problem


def wrapped(config: dict[str, Any], **outer: Any) -> dict[str, Any]:
    """A model of text and images around a text's configuration."""
    return {"model_type": "seer", "architectures": ["SeerForAll"], "text_config": config, **outer}


VISION = {
    "vision_config": {"hidden_size": 8},
    "image_token_id": 3,
    "mm_tokens_per_image": 4,
    "projector_hidden_act": "relu",
}


@pytest.fixture(scope="module")
def text(tiny_llama: Path) -> dict[str, Any]:
    return json.loads((tiny_llama / "config.json").read_text())


def test_the_text_of_a_wrapper_may_be_unknown(text: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"'lama' of the text in a model of type 'seer'.*nearest names are"):
        family_for(wrapped({"model_type": "lama"}))


def test_keys_around_a_text_are_listed_or_refused(text: dict[str, Any]) -> None:
    given = wrapped(text, **VISION, hidden_size=text["hidden_size"] + 1, attention_bias=False, made_by="us")
    reading = read_configuration(given, family_for(given))
    for key in VISION:
        assert reading.unread.neutral[key] == "it is not of the text"
    assert reading.unread.neutral["hidden_size"] == "the text has its own"
    assert reading.unread.unknown == ["made_by"]
    with pytest.raises(UserError, match=r"residual_multiplier = 0.3 outside of its text's"):
        read_configuration({**given, "residual_multiplier": 0.3}, family_for(given))


def test_a_wrapper_serves_its_text(registry: PluginRegistry, problems_of, tiny_llama, tmp_path: Path, text) -> None:
    import numpy as np

    tensors = {
        f"model.language_model.{name.removeprefix('model.')}": tensor
        for name, tensor in load_file(str(tiny_llama / "model.safetensors")).items()
        if not name.startswith("lm_head")
    }
    tensors["lm_head.weight"] = load_file(str(tiny_llama / "model.safetensors"))["lm_head.weight"]
    tensors["model.visual.patch_embed.weight"] = np.zeros((2, 2), np.float32)
    tensors["model.visual.merger.weight"] = np.zeros((2, 2), np.float32)
    save_file(tensors, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps(wrapped(text, **VISION)))
    (tmp_path / "tokenizer.json").write_bytes((tiny_llama / "tokenizer.json").read_bytes())
    done = resolve({"model": str(tmp_path)}, context="llm", registry=registry, environ={})
    assert "text only: 2 tensors of visual are not loaded." in done.warnings
    assert done.engine.model.vocab_size == text["vocab_size"]
    (problem,) = problems_of(tmp_path, residual_multiplier=0.3)  # an override of the text, as the way out is one
    assert "--hf-overrides.residual_multiplier null" in problem
    (problem,) = problems_of(tmp_path, num_hidden_layers=5)
    assert "says 5 layers" in problem

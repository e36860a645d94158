"""A configuration from another place, names of other engines for our arguments, and what has no effect."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.api.errors import ConfigError
from core_config.resolve import resolve


def resolved(model: Path, **more: Any) -> Any:
    return resolve({"model": str(model), **more}, context="explain")


def test_a_configuration_of_another_place_takes_the_place_of_the_checkpoints_own(
    tiny_llama: Path, tmp_path: Path
) -> None:
    config = json.loads((tiny_llama / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 12345.0, "max_position_embeddings": 48}))
    own = resolved(tiny_llama).engine.model
    for path in (tmp_path, tmp_path / "config.json"):
        other = resolved(tiny_llama, hf_config_path=str(path)).engine.model
        assert other.max_model_len == 48 != own.max_model_len
        assert other.hf_config["rope_theta"] == 12345.0
    both = resolved(tiny_llama, hf_config_path=str(tmp_path), hf_overrides={"rope_theta": 7.0}).engine.model
    assert both.hf_config["rope_theta"] == 7.0 and both.max_model_len == 48


def test_a_configuration_that_is_none_is_a_sentence(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--hf-config-path .*no such directory"):
        resolved(tiny_llama, hf_config_path=str(tmp_path / "missing"))
    (tmp_path / "config.json").write_text('{"vocab_size": 3}')
    with pytest.raises(ConfigError, match="neither model_type nor architectures"):
        resolved(tiny_llama, hf_config_path=str(tmp_path))


def test_additional_config_is_the_platforms(tiny_llama: Path) -> None:
    wrong = {"no_such_key": 1}
    with pytest.raises(ConfigError, match="no_such_key") as ours:
        resolved(tiny_llama, platform_config=wrong)
    with pytest.raises(ConfigError) as theirs:
        resolved(tiny_llama, additional_config=wrong)
    assert str(theirs.value) == str(ours.value)


def test_a_place_for_torchs_files_has_no_effect_and_says_so(tiny_llama: Path) -> None:
    found = resolved(tiny_llama, pt_load_map_location="cuda:0")
    assert [each for each in found.warnings if "--pt-load-map-location cuda:0: no effect" in each]


def test_the_strategy_of_torchao_is_of_its_files(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="--safetensors-load-strategy torchao: the checkpoint is none"):
        resolved(tiny_llama, safetensors_load_strategy="torchao")
    found = resolved(tiny_llama, safetensors_load_strategy="lazy").engine
    assert found.safetensors_load_strategy == "lazy"


def test_forms_in_reasoning_reach_the_server_and_not_the_engine(tiny_llama: Path) -> None:
    found = resolved(tiny_llama, structured_outputs_config={"enable_in_reasoning": True})
    assert found.server.answers.form_in_reasoning and not resolved(tiny_llama).server.answers.form_in_reasoning


def test_a_function_changes_the_configuration_as_in_other_engines(tiny_llama: Path) -> None:
    def longer(config: Any) -> Any:
        assert config.model_type == "llama"
        config.update({"rms_norm_eps": 0.25, "max_position_embeddings": 40})
        return config

    found = resolved(tiny_llama, hf_overrides=longer)
    assert found.engine.model.hf_config["rms_norm_eps"] == 0.25 and found.engine.model.max_model_len == 40
    plain = resolved(tiny_llama, hf_overrides={"rms_norm_eps": 0.25, "max_position_embeddings": 40})
    assert found.engine.model.hf_config == plain.engine.model.hf_config

    def nothing(config: Any) -> None:
        config.hidden_size = 3

    def fails(config: Any) -> Any:
        return config.no_such_key

    for function, words in ((nothing, "nothing returned a NoneType"), (fails, "fails failed .AttributeError")):
        with pytest.raises(ConfigError, match=words):
            resolved(tiny_llama, hf_overrides=function)


def test_dataclasses_of_other_packages_give_the_fields_that_a_script_set(tiny_llama: Path) -> None:
    @dataclass
    class StructuredOutputs:
        backend: str = "auto"
        disable_fallback: bool = False
        no_such_key: int = 3

    found = resolved(tiny_llama, structured_outputs_config=StructuredOutputs(disable_fallback=True, backend="xgrammar"))
    assert found.engine.structured_outputs.disable_fallback
    with pytest.raises(ConfigError, match="no_such_key"):
        resolved(tiny_llama, structured_outputs_config=StructuredOutputs(no_such_key=4))

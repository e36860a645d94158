"""Drafts that cannot be served are refused before anything is loaded, and what is served shows in the plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.api.errors import ConfigError
from core.plugin.registry import PluginRegistry
from core_config.resolve import Resolution, resolve
from core_config.speculation.keys import NEUTRAL
from tests.tiny_models import save_checkpoint


def resolved(registry: PluginRegistry, target: Path, **keys: Any) -> Resolution:
    config = {"method": "draft_model", "num_speculative_tokens": 3, **keys}
    given = {"model": str(target), "speculative_config": config, "max_model_len": 64}
    return resolve(given, context="llm", registry=registry, environ={})


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("small"), num_hidden_layers=1)


def test_the_plan_has_the_draft_s_weights_layers_and_buffers(
    registry: PluginRegistry, tiny_llama: Path, small: Path
) -> None:
    given = {"model": str(tiny_llama), "max_model_len": 64}
    alone = resolve(given, context="llm", registry=registry, environ={})
    own = resolve({**given, "model": str(small)}, context="llm", registry=registry, environ={})
    both = resolved(registry, tiny_llama, model=str(small))
    assert alone.memory and own.memory and both.memory
    assert both.memory.weights == alone.memory.weights
    assert both.memory.proposer == own.memory.weights
    assert both.memory.block == alone.memory.block + own.memory.block
    assert both.memory.workspace > alone.memory.workspace
    assert both.engine.draft is not None
    assert both.engine.draft.model.model == str(small)


def test_a_target_with_windows_shares_one_group_with_a_draft_of_other_sizes(
    registry: PluginRegistry, tiny_gemma3: Path, small: Path
) -> None:
    found = resolved(registry, tiny_gemma3, model=str(small))
    assert found.memory is not None
    layers = [layer for group in found.memory.groups for layer in group.layers]
    assert sorted(layers) == list(range(len(layers)))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no checkpoint": ({}, "--speculative-config.model: missing"),
    "nowhere": ({"model": "/nowhere/at/all"}, "--speculative-config.model: .*/nowhere/at/all"),
    "unknown key": ({"model": "SMALL", "modle": 1}, "--speculative-config.modle: unknown key"),
    "length": ({"model": "SMALL", "max_model_len": 0}, "--speculative-config.max_model_len 0"),
    "quantization": ({"model": "SMALL", "quantization": "nonsense"}, "nonsense"),
    "loader": ({"model": "SMALL", "load_format": "nonsense"}, "nonsense"),
    "ranks": ({"model": "SMALL", "draft_tensor_parallel_size": 2}, "expected 1"),
    "vocabularies": ({"model": "SMALL", "use_heterogeneous_vocab": True}, "use_heterogeneous_vocab True: not served"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_is_refused_by_name(
    registry: PluginRegistry, tiny_llama: Path, small: Path, case: str
) -> None:
    keys, sentence = REFUSED[case]
    named = {key: str(small) if value == "SMALL" else value for key, value in keys.items()}
    with pytest.raises(ConfigError, match=sentence):
        resolved(registry, tiny_llama, **named)


def test_keys_that_ask_for_nothing_are_taken(registry: PluginRegistry, tiny_llama: Path, small: Path) -> None:
    values: dict[str, Any] = {name: allowed[0] for name, (allowed, _) in NEUTRAL.items() if allowed}
    assert resolved(registry, tiny_llama, model=str(small), **values).engine.draft is not None


def test_a_draft_with_states_is_refused(registry: PluginRegistry, tiny_llama: Path, tiny_lfm2: Path) -> None:
    with pytest.raises(ConfigError, match="layers with a state"):
        resolved(registry, tiny_llama, model=str(tiny_lfm2))


def test_a_smaller_vocabulary_is_refused(registry: PluginRegistry, tiny_llama: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, vocab_size=200)
    with pytest.raises(ConfigError, match="has a vocabulary of 200 tokens, the main model of"):
        resolved(registry, tiny_llama, model=str(tmp_path))


def test_another_vocabulary_of_the_same_size_is_refused(
    registry: PluginRegistry, tiny_llama: Path, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path)
    file = tmp_path / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    ids = sorted(vocab.values())
    tokenizer["model"]["vocab"] = dict(zip(vocab, reversed(ids), strict=True))
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match="has another vocabulary: its token"):
        resolved(registry, tiny_llama, model=str(tmp_path))

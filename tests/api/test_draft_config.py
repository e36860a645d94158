"""The configuration of an engine carries a draft through messages without knowing its shape."""

import msgspec
import pytest

from core.api.config import CacheConfig, EngineConfig, ModelConfig, PluginChoices, SchedulerConfig
from core.engine import wire
from core_runtime.models.families import decoder_spec
from core_runtime.specs.draft_config import DraftConfig, draft_of
from core_runtime.specs.draft_spec import DraftSpec

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "vocab_size": 260,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
MODEL = ModelConfig(model="m", served_names=("m",))
PLUGINS = PluginChoices(loader="safetensors", platform="cpu")
DRAFT = DraftConfig(
    spec=DraftSpec(decoder=decoder_spec(LLAMA), taps=(0, 1), names=(("a.*", "b.*"),)),
    model=MODEL,
    plugins=PLUGINS,
    tree=(-1, 0, 0),
)


def engine_config(draft: object) -> EngineConfig:
    return EngineConfig(model=MODEL, cache=CacheConfig(), scheduler=SchedulerConfig(), plugins=PLUGINS, draft=draft)


def received(config: EngineConfig) -> EngineConfig:
    """The configuration as the engine process reads it."""
    sent = wire.encode(wire.StartEngine(1, config, 20))
    return msgspec.msgpack.decode(sent, type=wire.StartEngine).config


def test_a_draft_survives_the_way_to_the_engine_process() -> None:
    config = engine_config(DRAFT)
    assert draft_of(received(config)) == DRAFT
    assert draft_of(received(received(config))) == DRAFT
    assert draft_of(config) is DRAFT
    assert draft_of(received(engine_config(None))) is None


def test_a_configuration_that_is_sent_on_has_the_same_bytes() -> None:
    config = engine_config(DRAFT)
    assert msgspec.msgpack.encode(received(config)) == msgspec.msgpack.encode(config)


def test_values_that_are_no_draft_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="missing required field"):
        draft_of(engine_config({"model": {}}))

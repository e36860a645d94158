"""What rows cannot be divided into, how long their sequences may be, and configurations that they refuse by name."""

from typing import Any

import pytest

from core.api.errors import UserError
from core_runtime.models.families import decoder_spec
from core_runtime.specs.model_part import Part
from tests.families.architectures import tiny_config


def config_of(model_type: str, variant: str = "plain", **changes: Any) -> dict[str, Any]:
    """A tiny configuration as a file would have it, with other values."""
    return {**tiny_config(model_type, variant).to_dict(), **changes}


@pytest.mark.parametrize("model_type", ["deepseek_v32", "glm_moe_dsa"])
def test_there_is_no_index_where_it_would_choose_every_key(model_type: str) -> None:
    for longest, has_index in ((255, True), (256, False), (4096, False)):
        spec = decoder_spec(config_of(model_type, index_topk=longest))
        assert spec.max_position == 256
        assert [mixer.index is not None for mixer in spec.mixers] == [has_index] * 4
        assert any(".indexer." in name for name in spec.tensor_shapes()) == has_index


@pytest.mark.parametrize(
    "model_type, variant, part, sentence",
    [
        ("longcat_flash", "plain", Part(0, 2), "choices that return their input cannot be divided"),
        ("longcat_flash", "plain", Part(0, 1, blocks=(0, 1)), "experts of block 0 is added after block 1"),
        ("gemma4_text", "experts", Part(0, 2), "experts beside an MLP"),
        ("gemma4_text", "inputs of layers", Part(0, 2), "has embeddings for each layer"),
        ("gemma4_text", "inputs of layers", Part(0, 1, blocks=(0, 2)), "embeddings for each layer are computed"),
        ("minimax", "plain", Part(0, 2), "lightning"),
    ],
)
def test_what_no_rank_can_compute_alone_is_refused(model_type: str, variant: str, part: Part, sentence: str) -> None:
    spec = decoder_spec(config_of(model_type, variant))
    with pytest.raises(UserError, match=sentence):
        spec.local(part)


def test_a_stage_holds_the_keys_that_its_blocks_borrow() -> None:
    spec = decoder_spec(config_of("gemma4_text", num_kv_shared_layers=2))
    assert spec.local(Part(0, 1, blocks=(0, 4))) == spec
    with pytest.raises(UserError, match="keys and values of earlier blocks"):
        spec.local(Part(0, 1, blocks=(2, 4)))


def test_dense_gemma_4_and_mistral_4_are_divided() -> None:
    for model_type in ("gemma4_text", "mistral4"):
        part = decoder_spec(config_of(model_type)).local(Part(1, 2))
        assert part.mixers[0].num_heads == 2


@pytest.mark.parametrize(
    "model_type, changes, sentence",
    [
        ("gemma4_text", {"num_kv_shared_layers": 3}, "no layer before the last 3 is of the kind 'full'"),
        ("gemma4_text", {"num_kv_shared_layers": 4}, "fewer than there are layers"),
        ("gemma4_text", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
        (
            "gemma4_text",
            {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 7},
            "at least vocab_size, 263",
        ),
        ("gte", {"type_vocab_size": -1}, "type_vocab_size is -1"),
    ],
)
def test_impossible_values_are_refused_by_name(model_type: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        decoder_spec(config_of(model_type, **changes))


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"logn_attention_scale": True}, "logn_attention_scale is True"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type is 'absolute'"),
        ({"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.5}}, "mixed_b is 0.5"),
    ],
)
def test_the_first_gte_is_refused_where_it_differs(changes: dict[str, Any], sentence: str) -> None:
    base = {**config_of("gte"), "model_type": "new", "architectures": ["NewModel"]}
    del base["rope_parameters"]
    with pytest.raises(UserError, match=sentence):
        decoder_spec({**base, **changes})


def test_layers_that_share_keys_have_no_projections_of_their_own() -> None:
    spec = decoder_spec(config_of("gemma4_text", num_kv_shared_layers=2))
    names = spec.tensor_shapes()
    assert "model.layers.3.self_attn.q_proj.weight" in names
    assert not [name for name in names if name.startswith("model.layers.3.self_attn.") and ".k_proj" in name]
    assert spec.blocks[0].heads is not None and spec.blocks[0].heads.lends == "sliding"

"""What configurations of llamas say without the words that transformers writes when it saves them."""

import pytest
from transformers import SmolLM3Config

from core.api.errors import UserError
from core_runtime.models.families import decoder_spec
from core_runtime.specs.model_part import Part
from tests.families.architectures import tiny_config

SMOL = {
    "model_type": "smollm3", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"no_rope_layer_interval": 3}, {"no_rope_layers": [0, 1, 1, 0, 1, 1, 1, 1]}])
def test_layers_of_smollm3_without_rotary_embedding_slide(changes):
    config = {**SMOL, "use_sliding_window": True, "sliding_window": 16, **changes}
    expected = SmolLM3Config(**config)
    blocks = decoder_spec(config).blocks
    slides = [kind == "sliding_attention" for kind in expected.layer_types]
    assert [block.mixer.window == 16 for block in blocks] == slides
    assert [block.rope is None for block in blocks] == slides


def test_a_list_of_rotating_layers_that_is_too_short_is_refused():
    with pytest.raises(UserError, match="a number for each of 8 layers, not 2"):
        decoder_spec({**SMOL, "no_rope_layers": [1, 0]})


@pytest.mark.parametrize("model_type", ["cwm", "ministral3", "apertus"])
def test_a_configuration_without_rotary_parameters_has_those_of_its_class(model_type):
    config = {key: value for key, value in tiny_config(model_type).to_dict().items() if key != "rope_parameters"}
    rope = decoder_spec(config).blocks[0].rope
    theirs = type(tiny_config(model_type))().rope_parameters
    assert rope.theta == theirs["rope_theta"]
    assert rope.rope_type == theirs["rope_type"]
    assert rope.factor == theirs["factor"]


def test_a_model_whose_heads_are_normed_together_is_not_divided():
    spec = decoder_spec(tiny_config("bitnet").to_dict())
    with pytest.raises(UserError, match="output of its heads"):
        spec.local(Part(0, 2))

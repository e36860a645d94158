"""What configurations of llamas say without the words that transformers writes when it saves them."""

import pytest
import torch
from transformers import SmolLM3Config

from core.api.errors import UserError
from core_runtime.models.families import decoder_spec
from core_runtime.specs.model_part import Part
from tests.families.architectures import tiny_config
from tests.families.comparison import distances
from tests.families.converted import SIZES, llama, write
from tests.families.expected import TOLERANCE
from tests.families.harness import LONGEST, Harness
from tests.families.oracle import Reference

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


def test_dynamic_scaling_has_the_base_of_the_longest_sequence(tmp_path):
    """Transformers takes that of the sequence at hand, which is as long here as the engine's longest."""
    scaling = {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 3.0}
    model = llama(max_position_embeddings=32, rope_parameters=scaling, rms_norm_eps=1e-6)
    config = {**SIZES, "model_type": "llama", "max_position_embeddings": 32, "rope_parameters": scaling}
    ids = [7 + 3 * number % 200 for number in range(LONGEST)]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits
    write(tmp_path, config, model.state_dict())
    found = distances(Harness(tmp_path), Reference(tmp_path, [ids], [logits[0]], [], [], encodes=False))
    assert max(found.values()) < TOLERANCE, found
    shape = decoder_spec(config)
    assert (shape.stretch, shape.growth, shape.max_position) == (1.0, 3.0, 32)


def test_a_model_whose_heads_are_normed_together_is_not_divided():
    spec = decoder_spec(tiny_config("bitnet").to_dict())
    with pytest.raises(UserError, match="output of its heads"):
        spec.local(Part(0, 2))
